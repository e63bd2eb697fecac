package tests

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/sim"
)

// revocations is a factory that records the peers of each Revoke.
type revocations struct {
	transport.Factory
	mu    sync.Mutex
	peers []*transport.Peer
}

type recording struct {
	transport.Transport
	of *revocations
}

func (r *revocations) Open(ctx context.Context, c any, host transport.Host, sink transport.Sink) (transport.Transport,
	error) {
	inner, err := r.Factory.Open(ctx, c, host, sink)
	return &recording{inner, r}, err
}

func (r *recording) Inner() transport.Transport { return r.Transport }

func (r *recording) Revoke(ctx context.Context, key transport.LocalKey, peer *transport.Peer,
	epoch transport.Epoch) error {
	r.of.mu.Lock()
	r.of.peers = append(r.of.peers, peer)
	r.of.mu.Unlock()
	return r.Transport.Revoke(ctx, key, peer, epoch)
}

// A fence for one peer reaches the engine that the caller means, by any address that it was opened with. It is an error
// when it means nobody. A fence that silently covers no peer is memory that is written afterwards.
func TestAFenceForOnePeerMeansThatEngineOrFails(t *testing.T) {
	n := sim.NewInline(1)
	spy := &revocations{Factory: sim.Factory{Settings: sim.Settings{Network: n}}}
	owner := open(t, nil, []string{"sim"}, func() []engine.Plug { return []engine.Plug{{Factory: spy}} })
	writer := open(t, nil, []string{"sim"}, func() []engine.Plug {
		return []engine.Plug{{Factory: sim.Factory{Settings: sim.Settings{Network: n}}}}
	})
	id, err := owner.Register(engine.Memory{Addr: address(memory(t, 4096)), Size: 4096, Name: "kv", Location: "cpu:0",
		Permission: mem.GlobalReadWrite})
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(writer.Address())
	require.NoError(t, err)
	alias := "localhost:" + port
	fenced := func(address string) []*transport.Peer {
		spy.peers = nil
		require.NoError(t, owner.FenceRegion(context.Background(), id, address))
		return spy.peers
	}
	for _, address := range []string{writer.Address(), alias} { // not open here: the engine that answers there
		peers := fenced(address)
		require.Len(t, peers, 1)
		require.Equal(t, writer.Self().ID, peers[0].ID, address)
	}
	s, err := owner.OpenSegment(context.Background(), alias)
	require.NoError(t, err)
	peers := fenced(alias)
	require.Len(t, peers, 1)
	require.Equal(t, writer.Self().ID, peers[0].ID)
	require.NoError(t, owner.CloseSegment(s))
	require.Equal(t, []*transport.Peer{nil}, fenced(""))

	_, err = writer.OpenSegment(context.Background(), owner.Address()) // its own address may lead nowhere
	require.NoError(t, err)
	number := writer.Self().ID.String()
	for _, name := range []string{number, "id:" + number, fmt.Sprint("uid:", os.Getuid())} {
		peers := fenced(name)
		require.Len(t, peers, 1)
		require.Equal(t, writer.Self().ID, peers[0].ID, name)
	}

	spy.peers = nil
	err = owner.FenceRegion(context.Background(), id, "127.0.0.1:9") // the discard port: nobody listens
	require.Equal(t, errs.InvalidEntry, errs.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, "127.0.0.1:9")
	for _, nobody := range []string{"dns:other.svc", owner.Self().ID.String()} {
		require.Equal(t, errs.InvalidEntry, errs.CodeOf(owner.FenceRegion(context.Background(), id, nobody)), nobody)
	}
	require.Empty(t, spy.peers)
}

// Of two transfers of a sender that runs, the second waits while the first moves. Hardly a slice of it is in any
// transport when the owner fences. Both end there: nothing of them lands after FenceRegion has returned, and a transfer
// that begins then passes at once.
func TestTransfersThatWaitEndWithTheFenceOfTheirRegion(t *testing.T) {
	const size = 64 << 20
	for name, settings := range map[string]map[string]any{
		"tcp":  {"transports/shm/enable": false},
		"shm":  {"transports/tcp/enable": false},
		"both": {},
	} {
		t.Run(name, func(t *testing.T) {
			owner, writer := openAll(t, maps.Clone(settings)), openAll(t, maps.Clone(settings))
			kv, source := memory(t, size), memory(t, size)
			fill(source, 1)
			id := offer(t, owner, kv, "kv")
			offer(t, writer, source, "")
			to := segment(t, writer, owner, "kv")
			move := func(n int) dispatch.BatchID {
				batch, err := writer.Move(&engine.Request{Terms: request.Terms{Op: transport.Write},
					Source: address(source), Remote: engine.Remote{Segment: to}, Length: uint64(n)})
				require.NoError(t, err)
				return batch
			}
			require.Equal(t, dispatch.Completed, ended(t, writer, move(4096)).State, "both ends know each other")
			for range 3 {
				begun := []dispatch.BatchID{move(size), move(size)}
				require.NoError(t, owner.FenceRegion(context.Background(), id, ""))
				clear(kv)
				source[0]++
				require.Equal(t, dispatch.Completed, ended(t, writer, move(1)).State, "begun after the fence")
				for _, batch := range begun[1:] {
					sum := ended(t, writer, batch)
					require.Equal(t, dispatch.Failed, sum.State, "begun before the fence")
					require.Equal(t, errs.AddressNotRegistered, sum.Err.Code)
					require.ErrorContains(t, sum.Err, `"kv"`)
					require.ErrorContains(t, sum.Err, "fenced")
					require.False(t, sum.Dirty)
					require.Zero(t, sum.Failovers, "another transport cannot revive it")
				}
				ended(t, writer, begun[0]) // it may have arrived before the fence
				require.Equal(t, dispatch.Completed, ended(t, writer, move(4096)).State, "the second look")
				require.Equal(t, source[:4096], kv[:4096])
				require.True(t, painted(kv[4096:], 0), "a byte landed after the fence")
			}
		})
	}
}

// A transfer that begins after a fence passes at once. That holds for a peer that has never heard of the fences of
// before, for one that hears of each, for the owner itself, and while others fence too.
func TestTransfersOfAfterAFencePassAtOnce(t *testing.T) {
	all := append(worlds(), world{"all", openAll})
	for _, w := range all {
		t.Run(w.name, func(t *testing.T) {
			owner := w.open(t, nil)
			kv := memory(t, 1<<20)
			id := offer(t, owner, kv, "kv")
			other := offer(t, owner, memory(t, 4096), "other")
			fence := func(region mem.RegionID, peer string) {
				require.NoError(t, owner.FenceRegion(context.Background(), region, peer))
			}
			pass := func(from, to *engine.Engine, source []byte) {
				t.Helper()
				s := segment(t, from, to, "kv")
				batch, err := from.Move(&engine.Request{Terms: request.Terms{Op: transport.Write},
					Source: address(source), Remote: engine.Remote{Segment: s}, Length: uint64(len(source))})
				require.NoError(t, err)
				sum := ended(t, from, batch)
				require.Equal(t, dispatch.Completed, sum.State, "%v", sum.Err)
				require.Equal(t, source, kv[:len(source)])
				require.NoError(t, from.CloseSegment(s))
			}
			own := memory(t, 4096)
			offer(t, owner, own, "")
			for range 3 {
				fence(id, "")
				pass(owner, owner, own)
			}
			writer, source := w.open(t, nil), memory(t, 256<<10)
			offer(t, writer, source, "")
			pass(writer, owner, source)
			keep := segment(t, writer, owner, "kv") // its links stay: a peer that connects meanwhile may hear late
			pass(writer, owner, source)
			var stop atomic.Bool
			var beside sync.WaitGroup
			defer beside.Wait()
			defer stop.Store(true)
			if w.name == "tcp" || w.name == "all" { // calls of the simulated network wait for nobody
				beside.Go(func() {
					for !stop.Load() {
						if err := owner.FenceRegion(context.Background(), other, ""); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			for i := range 20 {
				source[0]++
				fence(id, []string{"", writer.Address()}[i&1])
				pass(writer, owner, source[:1+i*13_000])
			}
			stop.Store(true)
			beside.Wait()
			require.NoError(t, writer.CloseSegment(keep))
			fence(id, "")
			pass(writer, owner, source)
		})
	}
}

// Leases that end meanwhile fail no fence of their region, and no other call that closes it.
func TestFencesAndClosesAgreeBesideLeasesThatEnd(t *testing.T) {
	for _, w := range leaseWorlds() {
		t.Run(w.name, func(t *testing.T) {
			const rounds, leases, closers = 30, 32, 3
			e := w.open(t, nil)
			own := memory(t, leases*512)
			for range rounds {
				whole := offer(t, e, own, "")
				var wg sync.WaitGroup
				for i := range leases {
					id, err := e.Share(whole, engine.Share{Offset: uint64(i) * 512, Size: 512})
					require.NoError(t, err)
					wg.Go(func() { assert.NoError(t, e.CloseRegion(t.Context(), id)) })
				}
				assert.NoError(t, e.FenceRegion(t.Context(), whole, ""))
				for range closers {
					wg.Go(func() { assert.NoError(t, e.CloseRegion(t.Context(), whole)) })
				}
				wg.Wait()
			}
		})
	}
}
