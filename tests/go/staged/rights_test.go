//go:build cgo

package staged

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"maps"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/control"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/security"
	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/cuda"
	"github.com/tent-engine/tent/tests/forked"
	"github.com/tent-engine/tent/transports/delegate"
)

// liar speaks the control plane without being an engine, and lies about itself. Its ID is its own.
func liar(t *testing.T, claims transport.Peer) (voice, transport.ID) {
	credentials, err := security.Open(security.Settings{})
	require.NoError(t, err)
	c := control.NewClient(control.Options{Self: func() transport.Peer { return claims }, Credentials: credentials,
		Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	t.Cleanup(c.Close)
	return func(ctx context.Context, to transport.Peer, message []byte) ([]byte, error) {
		return c.Call(ctx, to, delegate.Name, message)
	}, credentials.ID()
}

// as returns memory of an engine as if it was another one's.
func (a *asker) as(owner transport.ID) transport.Lent {
	lent, mine := a.lent, a.Self().ID
	lent.Descriptors = maps.Clone(lent.Descriptors)
	for name, d := range lent.Descriptors {
		lent.Descriptors[name] = bytes.ReplaceAll(d, mine[:], owner[:])
	}
	return lent
}

// An order has the rights that its connection proves. A liar claims the ID, the name and the address of a peer, and
// knows all keys and descriptors of that. It reaches no region of the peer's, and none through the peer's stage.
func TestAnOrderIsNotItsClaimsOwn(t *testing.T) {
	fake.Run(t, fake.Driver{}, nil, func(t *testing.T, _ *fake.Loaded) {
		friend := newAsker(t)
		k := newKeeper(t, friend)
		keys, staged := friend.knows(k), friend.stage.mustAll(t)
		before := staged()
		for name, claims := range map[string]transport.Peer{"a peer": friend.Self(), "the keeper": k.Self()} {
			by, id := liar(t, claims)
			for _, op := range []transport.Op{transport.Read, transport.Write} {
				o := friend.order(op, keys["theirs"], size)
				require.Equal(t, errs.PermissionDenied, outcome(t, by, k, o), "%s, %v", name, op)
				o = friend.order(op, keys["cache"], size)
				require.NotEqual(t, errs.OK, outcome(t, by, k, o), "%s, %v by the stage of a peer", name, op)
				o = friend.order(op, keys["cache"], size)
				o.lent = friend.as(id)
				require.NotEqual(t, errs.OK, outcome(t, by, k, o), "%s, %v by that as the liar's own", name, op)
			}
		}
		k.unchanged("orders of liars")
		require.Equal(t, before, staged(), "the stage of the peer changed")
		for _, op := range []transport.Op{transport.Write, transport.Read} {
			o := friend.order(op, keys["theirs"], size)
			require.Equal(t, errs.OK, friend.gives(k, o), "the peer itself, %v", op)
		}
		theirs := k.regions["theirs"]
		copy(theirs.must[band:], before[band:band+size])
		k.settles(friend, "orders of liars")
	})
}

// The lanes of peers are apart. Somebody with the claims of a peer cancels each of its orders, before that comes and
// while it is under way. The peer's transfer does not notice, and its ends are told to nobody else.
func TestALaneIsOfOneConnectionsPeer(t *testing.T) {
	fake.Run(t, fake.Driver{}, nil, func(t *testing.T, _ *fake.Loaded) {
		friend := newAsker(t)
		k := newKeeper(t, friend)
		by, _ := liar(t, friend.Self())
		to := open(t, friend.Engine, k.Address())
		heard := make(chan order, 1024)
		hears := func(b []byte) {
			o := order{kind: cancel, lane: binary.LittleEndian.Uint64(b[1:]), seq: binary.LittleEndian.Uint64(b[9:])}
			if b[0] == begin {
				_, _ = says(t, by, k, o)
				heard <- o
			}
		}
		friend.line.hears.Store(&hears)
		before := retriesOf(friend.Engine)
		id, err := friend.Move(request(transport.Write, friend.stage, to, 0, size))
		require.NoError(t, err)
		s := finish(t, friend.Engine, id)
		require.Equal(t, dispatch.Completed, s.State, "%v", s.Err)
		require.Zero(t, s.Failovers)
		require.Equal(t, before, retriesOf(friend.Engine), "an order was taken back")
		require.NotEmpty(t, heard)
		other, _ := liar(t, friend.Self())
		for len(heard) > 0 {
			state, _ := says(t, other, k, (<-heard).as(ask))
			require.EqualValues(t, unknown, state, "the end of another peer's order")
		}
		copy(k.regions["cache"].must[band:], friend.stage.mustAll(t)()[band:band+size])
		k.settles(friend, "orders of one peer")
	})
}

// A peer tries every key that a small table may have, and every place beyond a region. It reaches the memory that it
// was given.
func TestAnOrderReachesWhatItsPeerWasGiven(t *testing.T) {
	const tries = 16 // indexes, and generations, of keys
	fake.Run(t, fake.Driver{}, nil, func(t *testing.T, _ *fake.Loaded) {
		friend, thief := newAsker(t), newAsker(t)
		k := newKeeper(t, friend)
		given := thief.knows(k)
		require.Len(t, given, 2, "regions that are described to it: %v", given)
		before := thief.stage.mustAll(t)()
		for generation := range uint64(tries) {
			for index := range uint64(tries) {
				key := (generation+1)<<32 | index + 1
				op := transport.Op((generation + index) % 2)
				if key == given["cache"] || key == given["shown"] && op == transport.Read {
					continue
				}
				code := thief.gives(k, thief.order(op, key, size))
				require.Contains(t, []errs.Code{errs.AddressNotRegistered, errs.PermissionDenied}, code, "key %x", key)
			}
		}
		known := friend.knows(k)
		require.Less(t, known["theirs"], uint64(tries)<<32, "the key was tried")
		require.Equal(t, errs.PermissionDenied, thief.gives(k, thief.order(transport.Read, known["theirs"], size)))
		require.Equal(t, errs.PermissionDenied, thief.gives(k, thief.order(transport.Write, given["shown"], size)))
		for _, at := range [][]uint64{{1}, {size}, {math.MaxUint64 - size + 1}, {0, size - 1, 4096}} {
			o := thief.order(transport.Write, given["cache"], size)
			o.places = at
			o.bytes /= uint64(len(at))
			if len(at) == 1 {
				o.bytes = size
			}
			require.Equal(t, errs.InvalidArgument, thief.gives(k, o), "places %v of %d bytes", at, o.bytes)
		}
		k.unchanged("orders for regions of others")
		require.Equal(t, before, thief.stage.mustAll(t)(), "bytes of others arrived")
		require.Equal(t, errs.OK, thief.gives(k, thief.order(transport.Write, given["cache"], size)), "its own right")
		copy(k.regions["cache"].must[band:], before[band:band+size])
		k.settles(friend, "orders for regions of others")
	})
}

// An order moves bytes to and from memory of its own peer. Descriptors of another engine's stage are of no use in it,
// whether they say so or not.
func TestAnOrderTargetsItsPeersOwnStage(t *testing.T) {
	fake.Run(t, fake.Driver{}, nil, func(t *testing.T, _ *fake.Loaded) {
		friend, thief := newAsker(t), newAsker(t)
		k := newKeeper(t, friend)
		key := thief.knows(k)["cache"]
		k.warm(friend) // so that the keeper has a way to the stage of the other one, too
		staged := friend.stage.mustAll(t)
		before := staged()
		for _, op := range []transport.Op{transport.Read, transport.Write} {
			o := thief.order(op, key, size)
			o.lent = friend.lent
			require.NotEqual(t, errs.OK, thief.gives(k, o), "%v by the stage of another engine", op)
		}
		o := thief.order(transport.Read, key, size) // by descriptors that name the thief as their owner
		o.lent = friend.as(thief.Self().ID)
		thief.gives(k, o) // it may reach memory of the thief itself, by a key of that number
		k.unchanged("orders by the stage of another engine")
		require.Equal(t, before, staged(), "the stage of another engine changed")
		k.settles(friend, "orders by the stage of another engine")
	})
}

// The memory that an engine lends is for one peer. Another one, which has its descriptors and carries out an order
// that nobody gave, has no access.
func TestAStageIsLentToOnePeer(t *testing.T) {
	fake.Run(t, fake.Driver{}, nil, func(t *testing.T, _ *fake.Loaded) {
		friend, thief := newAsker(t), newAsker(t)
		k := newKeeper(t, friend)
		to := open(t, friend.Engine, k.Address())
		id, err := friend.Move(request(transport.Write, friend.stage, to, 0, size))
		require.NoError(t, err)
		require.Equal(t, dispatch.Completed, finish(t, friend.Engine, id).State)
		copy(k.regions["cache"].must[band:], friend.stage.mustAll(t)()[band:band+size])
		stage := friend.lends()

		m, region, err := give(thief.Engine, 0, "loot", 7)
		require.NoError(t, err)
		for _, r := range regionsOf(t, thief.Engine, engine.Local) {
			if r.ID != region {
				continue
			}
			for _, op := range []transport.Op{transport.Write, transport.Read} { // first from the stage, then into it
				_, err = thief.line.Execute(t.Context(), &transport.Order{From: friend.Self(), Op: op,
					Key: transport.LocalKey(keyIn(r.Descriptors[delegate.Name])), Places: []uint64{0}, Bytes: 4096,
					Lent: stage})
				require.Error(t, err, "%v: the stage is lent to the keeper", op)
				t.Log(err)
			}
		}
		require.Equal(t, pattern(7, size+2*band), m.mustAll(t)())
		_, err = k.line.Execute(t.Context(), &transport.Order{From: friend.Self(), Op: transport.Read,
			Key: transport.LocalKey(friend.knows(k)["shown"]), Places: []uint64{0}, Bytes: 4096, Lent: stage})
		require.NoError(t, err, "to the keeper it is lent")
		release(t, thief.Engine, m, region)
		k.settles(friend, "a foreign order")
	})
}

// Blob exports the region.
func (a *Actor) Blob(_ forked.Nothing, blob *[]byte) (err error) {
	*blob, err = a.engine.Export([]string{"cache"})
	return err
}

// A stage is lent by the peer's ID: a peer that was opened by a blob, which says no identity, uses it as any other.
func TestAStageIsLentToAPeerOfABlob(t *testing.T) {
	fake.Run(t, fake.Driver{}, nil, func(t *testing.T, _ *fake.Loaded) {
		p := start(t, 1)
		e, m := here(t, 0)
		var blob []byte
		p.do("Blob", forked.Nothing{}, &blob)
		to, err := e.OpenBlob(blob)
		require.NoError(t, err)
		for _, op := range []transport.Op{transport.Write, transport.Read} {
			r := request(op, m, to, 0, size)
			r.Remote.Region = regionsOf(t, e, to)[0].ID
			id, err := e.Move(r)
			require.NoError(t, err)
			s := finish(t, e, id)
			require.Equal(t, dispatch.Completed, s.State, "%v: %v", op, s.Err)
		}
		require.Equal(t, pattern(2, size+2*band)[band:band+size], p.bytes()[band:band+size])
	})
}
