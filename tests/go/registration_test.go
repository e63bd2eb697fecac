package tests

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/device/devicetest"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/sim"
)

// noRoom is the reason of a transport that may not pin memory.
func noRoom() error {
	return errs.New(errs.NotHere, "pinned.register", "RLIMIT_MEMLOCK is 8 MiB").WithHint("ulimit -l unlimited")
}

// openPinned opens an engine over two simulated transports: "pinned", which comes first and registers as the function
// says, and "plain".
func openPinned(t *testing.T, n *sim.Network, settings map[string]any,
	registering func(context.Context, mem.Region) error) *engine.Engine {
	return open(t, settings, []string{"pinned", "plain"}, func() []engine.Plug {
		return []engine.Plug{
			{Factory: sim.Factory{Settings: sim.Settings{Name: "pinned", Network: n, Inline: true, Pins: true,
				Registering: registering}}},
			{Factory: sim.Factory{Settings: sim.Settings{Name: "plain", Network: n, Inline: true}}}}
	})
}

// write moves the pattern k from one buffer to a region and checks both the bytes and the transport.
func write(t *testing.T, from *engine.Engine, source, there []byte, to engine.SegmentID, k int) dispatch.Summary {
	t.Helper()
	fill(source, k)
	batch, err := from.Move(&engine.Request{Terms: request.Terms{Op: transport.Write}, Source: address(source),
		Length: uint64(len(source)), Remote: engine.Remote{Segment: to}})
	require.NoError(t, err)
	sum := ended(t, from, batch)
	require.Equal(t, dispatch.Completed, sum.State, "%v", sum.Err)
	same(t, there[:len(source)], k, 0)
	return sum
}

// wouldTake is the transport that a write of a byte would begin with now, with the reasons against the others.
func wouldTake(t *testing.T, from *engine.Engine, source []byte, to engine.SegmentID) *engine.Explanation {
	t.Helper()
	x, err := from.Explain(&engine.Request{Terms: request.Terms{Op: transport.Write}, Source: address(source),
		Length: 1, Remote: engine.Remote{Segment: to}})
	require.NoError(t, err)
	return x
}

// A transport that cannot use memory here is a reason, and no failure: the region lives on the others.
func TestARegionLivesWithoutATransportThatCannotUseIt(t *testing.T) {
	n := sim.NewInline(1)
	here := openPinned(t, n, nil, func(context.Context, mem.Region) error { return noRoom() })
	there := openPinned(t, n, nil, nil)
	source, kv := memory(t, 65536), memory(t, 65536)
	id := offer(t, here, source, "")
	offer(t, there, kv, "kv")
	to := segment(t, here, there, "kv")
	write(t, here, source, kv, to, 1)
	x := wouldTake(t, here, source, to)
	require.Equal(t, "plain", x.Taken)
	require.Len(t, x.Rejected, 1)
	require.Equal(t, "pinned", x.Rejected[0].Transport)
	require.Contains(t, x.Rejected[0].Reason, "RLIMIT_MEMLOCK is 8 MiB")
	require.Contains(t, x.Rejected[0].Reason, "ulimit -l")
	standing, err := here.Standing(id)
	require.NoError(t, err)
	require.Equal(t, engine.RegionReady, standing.On["plain"].State)
	require.Equal(t, engine.RegionNotHere, standing.On["pinned"].State)
	require.Contains(t, standing.On["pinned"].Why, "RLIMIT_MEMLOCK")
	require.NoError(t, here.CloseRegion(t.Context(), id))
}

// Errors that are no reasons undo a region everywhere, and so does a reason of a transport that is required.
func TestAFailedRegistrationLeavesNothing(t *testing.T) {
	mistake := func(context.Context, mem.Region) error {
		return errs.New(errs.InvalidArgument, "pinned.register", "no such thing")
	}
	reason := func(context.Context, mem.Region) error { return noRoom() }
	for name, c := range map[string]struct {
		settings    map[string]any
		registering func(context.Context, mem.Region) error
		code        errs.Code
	}{
		"a mistake": {nil, mistake, errs.InvalidArgument},
		"a reason of one that is required": {map[string]any{"transports/pinned/required": true}, reason,
			errs.NotHere},
		"too late, and required": {map[string]any{"transports/pinned/required": true, "register_timeout": 0.05},
			untilEnd, errs.Timeout},
	} {
		t.Run(name, func(t *testing.T) {
			e := openPinned(t, sim.NewInline(1), c.settings, c.registering)
			b := memory(t, 4096)
			_, err := e.Register(engine.Memory{Addr: address(b), Size: 4096, Name: "kv", Location: "*"})
			require.Equal(t, c.code, errs.CodeOf(err), "%v", err)
			info, err := e.Segment(t.Context(), engine.Local, true)
			require.NoError(t, err)
			require.Empty(t, info.Regions)
			_, err = e.Move(&engine.Request{Terms: request.Terms{Op: transport.Write}, Source: address(b), Length: 1,
				Remote: engine.Remote{Offset: uint64(address(b))}})
			require.Equal(t, errs.AddressNotRegistered, errs.CodeOf(err))
		})
	}
}

// untilEnd registers until it is told to stop.
func untilEnd(ctx context.Context, _ mem.Region) error {
	<-ctx.Done()
	return errs.Wrap(errs.Timeout, "pinned.register", ctx.Err())
}

// A region that no transport can use is an error with all reasons.
func TestARegionThatNoTransportCanUseIsAnError(t *testing.T) {
	n := sim.NewInline(1)
	e := open(t, nil, []string{"pinned"}, func() []engine.Plug {
		return []engine.Plug{{Factory: sim.Factory{Settings: sim.Settings{Name: "pinned", Network: n, Pins: true,
			Registering: func(context.Context, mem.Region) error { return noRoom() }}}}}
	})
	_, err := e.Register(engine.Memory{Addr: address(memory(t, 4096)), Size: 4096, Location: "*"})
	require.Equal(t, errs.NotHere, errs.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, "pinned: pinned.register: RLIMIT_MEMLOCK")
}

// While a transport pins pages, transfers go over the others; later ones take it, at both ends, without a new
// registration. They pass there behind a fence of meanwhile, too: TestFencesHoldOnATransportThatRegistersLate is about
// those of before it.
func TestARegionIsUsableWhileTransportsStillRegisterIt(t *testing.T) {
	n := sim.NewInline(1)
	release := make(chan struct{})
	slow := func(ctx context.Context, m mem.Region) error {
		if m.Name != "kv" {
			return nil
		}
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	here := openPinned(t, n, nil, nil)
	there := openPinned(t, n, map[string]any{"register_wait_ms": 1}, slow)
	source, kv := memory(t, 65536), memory(t, 65536)
	offer(t, here, source, "")
	id := offer(t, there, kv, "kv")
	to := segment(t, here, there, "kv")
	write(t, here, source, kv, to, 1)
	require.Equal(t, "plain", wouldTake(t, here, source, to).Taken)
	own := segment(t, there, there, "kv")
	require.Contains(t, wouldTake(t, there, kv, own).Rejected[0].Reason, "has not finished registering it")
	standing, err := there.Standing(id)
	require.NoError(t, err)
	require.Equal(t, engine.RegionRegistering, standing.On["pinned"].State)
	require.NoError(t, there.FenceRegion(t.Context(), id, ""))
	close(release)
	require.Eventually(t, func() bool {
		standing, err := there.Standing(id)
		return err == nil && standing.On["pinned"].State == engine.RegionReady
	}, patience, time.Millisecond)
	require.Eventually(t, func() bool { // it was registered before its number of descriptors grew
		_, err := here.Segment(t.Context(), to, true)
		return err == nil && wouldTake(t, here, source, to).Taken == "pinned"
	}, patience, time.Millisecond)
	require.Eventually(t, func() bool { // the owner's plans are made anew behind the word to its peers
		return wouldTake(t, there, kv, own).Taken == "pinned"
	}, patience, time.Millisecond)
	write(t, here, source, kv, to, 2)
}

// Regions that are closed while a transport registers them end there first: it must not pin pages that are freed.
func TestAClosedRegionIsNoLongerRegistered(t *testing.T) {
	var begun, ended atomic.Int32
	e := openPinned(t, sim.NewInline(1), map[string]any{"register_wait_ms": 1},
		func(ctx context.Context, m mem.Region) error {
			begun.Add(1)
			defer ended.Add(1)
			return untilEnd(ctx, m)
		})
	id := offer(t, e, memory(t, 4096), "kv")
	require.NoError(t, e.CloseRegion(t.Context(), id))
	require.EqualValues(t, 1, begun.Load())
	require.EqualValues(t, 1, ended.Load(), "the transport has let go of it")
}

// A transport that does not end with its context holds the close of the region up, and the error names it.
func TestACloseThatATransportHoldsUpNamesIt(t *testing.T) {
	release := make(chan struct{})
	e := openPinned(t, sim.NewInline(1), map[string]any{"register_wait_ms": 1},
		func(context.Context, mem.Region) error { <-release; return nil })
	id := offer(t, e, memory(t, 4096), "kv")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	err := e.CloseRegion(ctx, id)
	require.Equal(t, errs.Timeout, errs.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, "pinned")
	close(release)
	require.NoError(t, e.CloseRegion(t.Context(), id))
}

// A transport that needs too long is left out with that reason.
func TestATransportThatIsTooSlowIsLeftOut(t *testing.T) {
	e := openPinned(t, sim.NewInline(1), map[string]any{"register_timeout": 0.02, "register_wait_ms": 10_000}, untilEnd)
	id := offer(t, e, memory(t, 4096), "kv")
	standing, err := e.Standing(id)
	require.NoError(t, err)
	require.Equal(t, engine.RegionNotHere, standing.On["pinned"].State)
	require.Equal(t, engine.RegionReady, standing.On["plain"].State)
}

// Transports get the dma-buf of memory of a device, and the engine closes it when the last one has answered.
func TestTransportsGetTheDMABufOfADevice(t *testing.T) {
	const size = 8192
	gpu := devicetest.New(t, mem.Cuda, 2)
	addr := taken(t, gpu, 1, 4*size)
	n := sim.NewInline(1)
	got := make(chan mem.Region, 1)
	bytes := make([]byte, size)
	s := sim.Settings{Network: n, Platform: gpu, Pins: true, Registering: func(_ context.Context, m mem.Region) error {
		got <- m
		if m.DMABuf == nil {
			return nil
		}
		_, err := unix.Pread(m.DMABuf.Fd, bytes, int64(m.DMABuf.Offset))
		return err
	}}
	s.Pairs[mem.Cuda][mem.Cuda] = true
	e := openWith(t, nil, table([]string{"sim"}), []engine.Plug{{Factory: sim.Factory{Settings: s}}}, gpu)
	want := make([]byte, size)
	fill(want, 5)
	require.NoError(t, gpu.Store(addr+size, want))
	open := count(t).files
	id, err := e.Register(engine.Memory{Addr: addr + size, Size: size, Location: "*"})
	require.NoError(t, err)
	m := <-got
	require.NotNil(t, m.DMABuf)
	require.Equal(t, want, bytes, "the descriptor holds the range, from its offset on")
	require.Equal(t, "0000:02:00.0", m.Device.PCI)
	require.NotZero(t, m.Device.Allocation)
	require.Nil(t, m.Landing)
	require.NoError(t, e.CloseRegion(t.Context(), id))
	require.Equal(t, open, count(t).files, "the engine closed the descriptor")

	gpu.Sealed = errs.New(errs.CudaError, "cuda", "this allocation cannot be exported")
	_, err = e.Register(engine.Memory{Addr: addr + size, Size: size, Location: "*"})
	require.NoError(t, err)
	require.Nil(t, (<-got).DMABuf)

	late := &mem.Landing{}
	gpu.Lands = func(ordinal int) *mem.Landing {
		require.Equal(t, 1, ordinal)
		return late
	}
	_, err = e.Register(engine.Memory{Addr: addr + size, Size: size, Location: "*"})
	require.NoError(t, err)
	require.Same(t, late, (<-got).Landing)
}

// wordy is a transport with descriptors that are too long for peers, of regions from wordyFrom on.
type wordy struct {
	transport.Factory
	opened *wordyTransport
}

type wordyTransport struct {
	transport.Transport
	host transport.Host
	last transport.LocalKey // registered
}

const wordyFrom = 65536

func (w *wordy) Open(ctx context.Context, settings any, host transport.Host, sink transport.Sink) (transport.Transport,
	error,
) {
	inner, err := w.Factory.Open(ctx, settings, host, sink)
	w.opened = &wordyTransport{Transport: inner, host: host}
	return w.opened, err
}

func (w *wordyTransport) Inner() transport.Transport { return w.Transport }

func (w *wordyTransport) Info() transport.Info {
	info := w.Transport.Info()
	info.Replaces = true
	return info
}

func (w *wordyTransport) Register(ctx context.Context, m mem.Region) (transport.LocalKey, transport.Descriptor, error) {
	key, d, err := w.Transport.Register(ctx, m)
	if w.last = key; m.Size >= wordyFrom {
		d = make(transport.Descriptor, transport.DescriptorMax+1)
	}
	return key, d, err
}

// TestADescriptorThatIsTooLongIsLeftOut: peers would refuse all regions with it. The region is shared by other
// transports, and used here by this one. So it is with a descriptor that replaces another.
func TestADescriptorThatIsTooLongIsLeftOut(t *testing.T) {
	n := sim.NewInline(1)
	var wordyThere *wordy
	both := func() *engine.Engine {
		return open(t, nil, []string{"wordy", "plain"}, func() []engine.Plug {
			wordyThere = &wordy{Factory: sim.Factory{Settings: sim.Settings{Name: "wordy", Network: n, Inline: true}}}
			return []engine.Plug{{Factory: wordyThere},
				{Factory: sim.Factory{Settings: sim.Settings{Name: "plain", Network: n, Inline: true}}}}
		})
	}
	here, there := both(), both()
	source, small, large := memory(t, 4096), memory(t, 4096), memory(t, wordyFrom)
	offer(t, here, source, "source")
	ids := map[string]mem.RegionID{"large": offer(t, there, large, "large"), "small": offer(t, there, small, "small")}
	is := func(name string, state engine.RegionState, taken string) {
		t.Helper()
		standing, err := there.Standing(ids[name])
		require.NoError(t, err)
		require.Equal(t, state, standing.On["wordy"].State)
		require.Equal(t, engine.RegionReady, standing.On["plain"].State)
		if state != engine.RegionReady {
			require.Contains(t, standing.On["wordy"].Why, "the descriptor of transport wordy has 65537 bytes")
		}
		to := segment(t, here, there, name)
		_, err = here.Segment(t.Context(), to, true) // as the regions are now
		require.NoError(t, err)
		require.Equal(t, taken, wouldTake(t, here, source, to).Taken)
	}
	is("large", engine.RegionUnshared, "plain")
	is("small", engine.RegionReady, "wordy")
	write(t, here, source, large, segment(t, here, there, "large"), 1)
	require.Equal(t, "wordy", wouldTake(t, there, large, segment(t, there, here, "source")).Taken)

	wordyThere.opened.host.Describe(wordyThere.opened.last, make(transport.Descriptor, transport.DescriptorMax+1))
	is("small", engine.RegionUnshared, "plain")
	write(t, here, source, small, segment(t, here, there, "small"), 2)
}
