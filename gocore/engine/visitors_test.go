//go:build cgo

package engine

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/security"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/all"
)

// caller is the n-th engine of an identity that has called.
func caller(n int, identity string) transport.Peer {
	p := transport.Peer{Identity: identity}
	binary.BigEndian.PutUint64(p.ID[:], uint64(n)+1)
	return p
}

// without opens an engine that has a transport less.
func without(t *testing.T, transport string) *Engine {
	t.Helper()
	c, err := config.Load(config.Options{Transports: all.Transports()},
		map[string]any{"transports/" + transport + "/enable": false})
	require.NoError(t, err)
	e, err := Open(context.Background(), Options{Config: c, Transports: Plugs(all.Factories()...)})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.Empty(t, e.Close(patience, true))
		require.NoError(t, e.Forget())
	})
	return e
}

const pageBytes = 4096

// pageOf registers a page of an engine, for all peers if it has a name.
func pageOf(t *testing.T, e *Engine, name string) []byte {
	t.Helper()
	page := mapped(t, pageBytes)
	m := Memory{Addr: mem.AddressOf(page), Size: pageBytes, Name: name, Location: "cpu:0"}
	if name != "" {
		m.Permission = mem.GlobalReadWrite
	}
	_, err := e.Register(m)
	require.NoError(t, err)
	return page
}

// pageWriter opens a page of one engine in another, and returns the function that writes the other's page there.
func pageWriter(t *testing.T, from, to *Engine, name string) (page []byte, write func() dispatch.State) {
	t.Helper()
	page = pageOf(t, from, "")
	segment, err := from.OpenSegment(context.Background(), to.Address()+"/"+name)
	require.NoError(t, err)
	return page, func() dispatch.State {
		id, err := from.Move(&Request{Terms: Terms{Op: transport.Write}, Source: mem.AddressOf(page), Length: pageBytes,
			Remote: Remote{Segment: segment}})
		if err != nil {
			return dispatch.Failed
		}
		from.Wait(id, 5*time.Second)
		sum, err := from.Summary(id)
		require.NoError(t, err)
		require.NoError(t, from.FreeBatch(id))
		return sum.State
	}
}

// An engine that opened lanes long ago, and one that was opened here, make no call while three tables of others come
// and go. Both stay known, so that Disconnect finds them, and the first one's writes go on.
func TestAnEngineWithLanesOutlastsThoseThatComeAndGo(t *testing.T) {
	for _, other := range []string{"shm", "tcp"} {
		t.Run("without "+other, func(t *testing.T) { outlast(t, other) })
	}
}

func outlast(t *testing.T, other string) {
	owner, writer, opened := without(t, other), without(t, other), without(t, other)
	pageOf(t, owner, "kv")
	pageOf(t, opened, "kv")
	_, write := pageWriter(t, writer, owner, "kv")
	_, back := pageWriter(t, owner, opened, "kv")
	require.Equal(t, dispatch.Completed, write())
	user := owner.Peers()[0].Peer.Identity
	for n := range 3 * visitorsMax {
		owner.shown(caller(n, user), security.Proof{})
	}
	require.Equal(t, dispatch.Completed, write())
	require.Equal(t, dispatch.Completed, back())
	require.LessOrEqual(t, len(owner.Peers()), visitorsMax+2)
	for _, e := range []*Engine{writer, opened} {
		n, err := owner.Disconnect(context.Background(), "id:"+e.credentials.ID().String())
		require.NoError(t, err)
		require.Equal(t, 1, n)
	}
	require.NotEqual(t, dispatch.Completed, write())
}

// A visitor that was forgotten is entered again by its next call. That comes on the connection that it has, or by a
// handshake where its certificate has an end.
func TestAForgottenVisitorComesAgainByACall(t *testing.T) {
	for name, proof := range map[string]security.Proof{
		"without an end": {}, "with an end": {Until: time.Now().Add(time.Hour)},
	} {
		t.Run(name, func(t *testing.T) {
			owner, other := without(t, "shm"), without(t, "shm")
			id := other.credentials.ID()
			call := func() (known bool) {
				err := other.client.Probe(context.Background(), transport.Peer{Address: owner.Address()})
				require.NoError(t, err)
				return owner.visitors.use(id, time.Now()) != nil
			}
			require.True(t, call())
			is := owner.Peers()[0].Peer
			owner.shown(is, proof)
			for n := range 2 * visitorsMax {
				owner.shown(caller(n, is.Identity), security.Proof{})
			}
			require.Nil(t, owner.visitors.use(id, time.Now()))
			require.False(t, owner.credentials.Barred(id))
			require.Equal(t, proof.Until.IsZero(), owner.server.Connected(id))
			require.True(t, call())
		})
	}
}

// The engines of an identity that has called from fewer than its share stay, however many others an identity makes.
// Those for which something is open stay anyway; of the rest of an identity the latest callers do.
func TestAnIdentityTakesItsOwnPlacesInTheTable(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, seed))
	v, open := visitors{}, map[transport.ID]bool{}
	begin, last := time.Now(), map[transport.ID]int{}
	const identities, share = 5, visitorsKept / 6
	few := map[transport.ID]bool{}
	for n := 0; n < 3*visitorsMax || len(v.byID) <= v.open+visitorsKept; n++ {
		p := caller(n, "")
		if p.Identity = "spiffe://flood"; n%20 < identities && n/20 < share {
			p.Identity = fmt.Sprintf("spiffe://few/%d", n%20)
			few[p.ID] = true
		} else if random.IntN(50) == 0 {
			open[p.ID] = true
		}
		last[p.ID] = n
		if _, _, many := v.note(p, security.Proof{}, begin.Add(time.Duration(n))); !many {
			continue
		}
		left := v.tidy(open)
		require.NotEmpty(t, left)
		latest := 0
		for _, each := range left {
			require.False(t, open[each.peer.ID] || few[each.peer.ID], each.peer.Identity)
			latest = max(latest, last[each.peer.ID])
		}
		for id := range v.byID {
			require.True(t, open[id] || few[id] || last[id] > latest)
		}
		require.Len(t, v.byID, v.open+visitorsKept)
	}
	require.NotZero(t, v.open)
}
