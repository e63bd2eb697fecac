package tests

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/verbs"
	"github.com/tent-engine/tent/transports/all"
	"github.com/tent-engine/tent/transports/rdma"
	"github.com/tent-engine/tent/transports/tcp"
)

// overFake is the rdma transport over a library without hardware.
type overFake struct {
	rdma.Factory
	path string
}

func (overFake) Check() error { return nil }

func (f overFake) Open(ctx context.Context, config any, host transport.Host, sink transport.Sink) (transport.Transport,
	error,
) {
	settings := *config.(*rdma.Settings)
	settings.Library, settings.Scan = f.path, 20*time.Millisecond
	return f.Factory.Open(ctx, settings, host, sink)
}

// openRDMA opens an engine over the fake's two devices. Lanes are few, for the tests are many.
func openRDMA(t testing.TB, settings map[string]any, beside ...engine.Plug) *engine.Engine {
	own := map[string]any{"transports/shm/enable": false, "transports/tcp/enable": false,
		"transports/rdma/num_lanes": 2}
	for key, value := range settings {
		own[key] = value
	}
	first := []engine.Plug{{Factory: overFake{path: fake.Open(t).Path}}}
	return openWith(t, own, all.Transports(), append(first, beside...))
}

// rdmaPair is two engines that have nothing but RDMA.
func rdmaPair(t *testing.T) (a, b *engine.Engine) { return openRDMA(t, nil), openRDMA(t, nil) }

func TestBytesArriveByRDMAThroughAnEngine(t *testing.T) {
	a, b := rdmaPair(t)
	for k, size := range []int{1, 4095, 65536, 1<<20 + 1, 8<<20 + 13} {
		for _, op := range []transport.Op{transport.Write, transport.Read} {
			name := fmt.Sprintf("r%d%v", k, op)
			source, destination := memory(t, size+13)[13:], newGuarded(t, size)
			fill(source, k)
			mine, theirs := source, destination.bytes
			if op == transport.Read {
				mine, theirs = theirs, mine
			}
			offer(t, b, theirs, name)
			offer(t, a, mine, "")
			batch, err := a.Move(&engine.Request{Terms: request.Terms{Op: op}, Source: address(mine),
				Remote: engine.Remote{Segment: segment(t, a, b, name)}, Length: uint64(size)})
			require.NoError(t, err)
			sum := ended(t, a, batch)
			require.Equal(t, dispatch.Completed, sum.State, "%v of %d bytes: %v", op, size, sum.Err)
			same(t, destination.bytes, k, 0)
			destination.check(t)
		}
	}
}

// TestARegionServesOverTCPWhileItsNICsPinIt holds the NICs' registrations, as a terabyte would.
func TestARegionServesOverTCPWhileItsNICsPinIt(t *testing.T) {
	f := fake.Open(t)
	settings := map[string]any{"transports/tcp/enable": true, "register_wait_ms": 1}
	beside := engine.Plug{Factory: tcp.Factory{}}
	a, b := openRDMA(t, settings, beside), openRDMA(t, settings, beside)
	const size = 4 << 20
	source, destination := memory(t, size), newGuarded(t, size)
	offer(t, a, source, "")
	t.Cleanup(func() { f.Control(t, "hold 0") }) // before the engines close
	f.Control(t, "hold %d", size)
	before := f.Control(t, "bytes")
	id := offer(t, b, destination.bytes, "there")
	s := segment(t, a, b, "there")
	write(t, a, source, destination.bytes, s, 1)
	standing, err := b.Standing(id)
	require.NoError(t, err)
	require.Equal(t, engine.RegionReady, standing.On["tcp"].State)
	require.Equal(t, engine.RegionRegistering, standing.On["rdma"].State)
	require.Equal(t, before, f.Control(t, "bytes"), "the NICs have moved nothing")
	require.Equal(t, "tcp", wouldTake(t, a, source, s).Taken)

	f.Control(t, "hold 0")
	require.Eventually(t, func() bool {
		_, err := a.Segment(t.Context(), s, true)
		return err == nil && wouldTake(t, a, source, s).Taken == "rdma"
	}, patience, time.Millisecond)
	write(t, a, source, destination.bytes, s, 2)
	destination.check(t)
	require.GreaterOrEqual(t, f.Control(t, "bytes"), before+size)
}

// TestADeadNICSendsItsWorkToTheOther kills one of two devices under a transfer: the transfer ends whole.
func TestADeadNICSendsItsWorkToTheOther(t *testing.T) {
	f := fake.Open(t)
	a, b := rdmaPair(t)
	const size = 64 << 20
	source, destination := memory(t, size), newGuarded(t, size)
	fill(source, 5)
	offer(t, a, source, "")
	offer(t, b, destination.bytes, "there")
	s := segment(t, a, b, "there")
	batch, err := a.Move(&engine.Request{Terms: request.Terms{Op: transport.Write}, Source: address(source),
		Remote: engine.Remote{Segment: s}, Length: size})
	require.NoError(t, err)
	f.Control(t, "dead fake0 1")
	sum := ended(t, a, batch)
	require.Equal(t, dispatch.Completed, sum.State, "%v", sum.Err)
	same(t, destination.bytes, 5, 0)
	destination.check(t)
}

// TestFencesOverRDMAFailNoTransferOfOthers fences one peer while another one writes, and then all. New keys reach both:
// tasks that begin after a fence complete, and those of the other peer complete while it goes on.
func TestFencesOverRDMAFailNoTransferOfOthers(t *testing.T) {
	fenced, owner := rdmaPair(t)
	other := openRDMA(t, nil)
	const size = 1 << 20
	destination := newGuarded(t, size)
	id := offer(t, owner, destination.bytes, "there")
	source, own := memory(t, size), memory(t, size)
	offer(t, fenced, source, "")
	offer(t, other, own, "")
	mine, theirs := segment(t, fenced, owner, "there"), segment(t, other, owner, "there")
	write(t, fenced, source, destination.bytes, mine, 300) // both have met the owner: it calls them at a fence
	write(t, other, own, destination.bytes, theirs, 400)
	for round := range 10 {
		stop, failed := make(chan struct{}), make(chan error, 1)
		go func() { failed <- writeUntil(stop, other, own, theirs) }()
		require.NoError(t, owner.FenceRegion(t.Context(), id, fenced.Address()))
		close(stop)
		require.NoError(t, <-failed, "round %d: a transfer of another peer", round)
		write(t, fenced, source, destination.bytes, mine, round)
		require.NoError(t, owner.FenceRegion(t.Context(), id, ""))
		write(t, fenced, source, destination.bytes, mine, round+100)
		write(t, other, own, destination.bytes, theirs, round+200)
	}
	destination.check(t)
}

// writeUntil writes one time after the other, and returns the first failure.
func writeUntil(stop <-chan struct{}, from *engine.Engine, source []byte, to engine.SegmentID) error {
	for {
		batch, err := from.Move(&engine.Request{Terms: request.Terms{Op: transport.Write}, Source: address(source),
			Remote: engine.Remote{Segment: to}, Length: uint64(len(source))})
		if err != nil {
			return err
		}
		from.Wait(batch, patience)
		sum, err := from.Summary(batch)
		if err != nil {
			return err
		}
		if sum.State != dispatch.Completed {
			return fmt.Errorf("%v: %w", sum.State, sum.Err)
		}
		select {
		case <-stop:
			return nil
		default:
		}
	}
}
