package security

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

const liarBytes = 4096

// owner is an engine with a region of each permission, and the bytes that each of them must hold.
type owner struct {
	*engine.Engine
	regions [3][]byte
	must    [3][]byte
}

// The regions of an owner: for peers to write, for peers to read, and for nobody.
const (
	written = iota
	shown
	private
)

func newOwner(t *testing.T) *owner {
	t.Helper()
	o := &owner{Engine: victim(t)}
	for i, m := range []engine.Memory{written: {Name: "written", Permission: mem.GlobalReadWrite},
		shown: {Name: "shown", Permission: mem.GlobalReadOnly}, private: {}} {
		o.regions[i] = memory(t, liarBytes)
		for at := range o.regions[i] {
			o.regions[i][at] = byte(at%63) + byte(64*i) // of a region, and of a place in it
		}
		o.must[i] = bytes.Clone(o.regions[i])
		m.Addr, m.Size, m.Location = mem.AddressOf(o.regions[i]), liarBytes, "cpu:0"
		_, err := o.Register(m)
		require.NoError(t, err)
	}
	return o
}

// liar is a rogue that got as far as a rail.
type liar struct {
	*rogue
	rail transport.Rail
	own  []byte
	keys [2]transport.RemoteKey // of the regions that peers may use
}

// Peers lie at random about their name, their address and their keys, and try any access. None has one that was not
// given: a region for nobody is never seen, one to read never changes, one to write changes as its writers say.
func TestLiarsHaveOnlyTheAccessThatPeersWereGiven(t *testing.T) {
	const liars, moves = 6, 60
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	o, honest := newOwner(t), victim(t)
	segment, err := honest.OpenSegment(context.Background(), o.Address())
	require.NoError(t, err)
	var in []*liar
	for range liars {
		claims := []transport.Peer{o.Self(), honest.Self(), {Address: honest.Address(), ID: o.Self().ID},
			{Address: "10.0.0.1:1", MachineID: o.Self().MachineID, Network: o.Self().Network}}[random.IntN(4)]
		if len(in) > 0 && random.IntN(3) == 0 {
			claims = in[random.IntN(len(in))].claims
		}
		if l := o.liar(t, claims); l != nil {
			in = append(in, l)
		}
	}
	stranger := o.liar(t, transport.Peer{Address: "127.0.0.1:1", MachineID: o.Self().MachineID,
		Network: o.Self().Network})
	require.NotNil(t, stranger, "it claims nothing, so it gets a rail whatever the seed")
	in = append(in, stranger)
	for range moves {
		o.try(t, random, in[random.IntN(len(in))], in)
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		lie := note(random.Uint64()>>random.IntN(64)|1, "lie", nil)
		_ = in[random.IntN(len(in))].client.Notify(ctx, o.Self(), 1, lie) // most are refused
		cancel()
	}
	notifies(t, honest, segment, "true")
	names, peers := arrived(o.Engine)
	for i := range names {
		require.Equal(t, names[i] == "true", peers[i] == honest.Address(), "%q from %s", names[i], peers[i])
	}
	require.Contains(t, names, "true")
}

// liar is a rogue with a rail to the owner and the keys of its regions, nil if it was refused.
func (o *owner) liar(t *testing.T, claims transport.Peer) *liar {
	t.Helper()
	l := &liar{own: memory(t, liarBytes)}
	l.rogue = newRogue(t, claims, l.own)
	link, rail, refused := l.attach(o.Engine)
	if refused != nil {
		return nil
	}
	l.rail = rail
	for i, name := range []string{written: "written", shown: "shown"} {
		var err error
		l.keys[i], err = l.transport.Import(link, l.describe(o.Engine).Find(name).Descriptors["tcp"])
		require.NoError(t, err)
	}
	return l
}

// try makes a liar move its memory from or to a key of its own, of another liar, or of nobody, and checks all regions.
func (o *owner) try(t *testing.T, random *rand.Rand, l *liar, all []*liar) {
	t.Helper()
	which := random.IntN(2)
	key, op := l.keys[which], transport.Op(random.IntN(2))
	genuine := true
	switch random.IntN(4) {
	case 0:
		key, genuine = key^1<<random.IntN(64), false
	case 1:
		key = all[random.IntN(len(all))].keys[which]
		genuine = key == l.keys[which]
	case 2:
		key, genuine = transport.RemoteKey(random.Uint64()), false
	}
	for i := range l.own {
		l.own[i] = byte(random.Uint32())
	}
	before := bytes.Clone(l.own)
	failure := l.move(op, l.rail, key, l.own)
	switch {
	case failure != nil:
		require.Equal(t, before, l.own, "a move that failed brought bytes")
		require.False(t, genuine && (op == transport.Read || which == written), "%v", failure)
	case op == transport.Read:
		require.Equal(t, o.must[which], l.own, "bytes of another region")
	default:
		require.Equal(t, written, which, "a region to read was written")
		require.True(t, genuine)
		o.must[written] = before
	}
	for i := range o.regions {
		require.True(t, bytes.Equal(o.must[i], o.regions[i]), "region %d changed", i)
	}
}
