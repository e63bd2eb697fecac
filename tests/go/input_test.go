package tests

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// TestWrongInputIsRefusedBeforeAnythingMoves gives each mistake its code and a part of its sentence.
func TestWrongInputIsRefusedBeforeAnythingMoves(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		here, there := w.open(t, nil), w.open(t, nil)
		own, theirs, readable := memory(t, 4096), newGuarded(t, 4096), memory(t, 4096)
		fixed := memory(t, 4096)
		offer(t, here, own, "")
		_, err := here.Register(engine.Memory{Addr: address(fixed), Size: 4096, ReadOnly: true, Location: "cpu:0"})
		require.NoError(t, err)
		offer(t, there, theirs.bytes, "kv")
		_, err = there.Register(engine.Memory{Addr: address(readable), Size: 4096, Name: "ro",
			Permission: mem.GlobalReadOnly, Location: "*"})
		require.NoError(t, err)
		kv, ro, all := segment(t, here, there, "kv"), segment(t, here, there, "ro"), segment(t, here, there, "")
		good := engine.Request{Terms: engine.Terms{Op: transport.Write}, Source: address(own), Length: 4096,
			Remote: engine.Remote{Segment: kv}}
		for name, c := range map[string]struct {
			change func(r *engine.Request)
			code   errs.Code
			says   string
		}{
			"unregistered local": {func(r *engine.Request) { r.Source = 4096 }, errs.AddressNotRegistered,
				"register the buffer first"},
			"leaves local region": {func(r *engine.Request) { r.Source++ }, errs.AddressNotRegistered,
				"leave the region"},
			"wraps around": {func(r *engine.Request) { r.Length = math.MaxUint64 }, errs.InvalidArgument,
				"2^64"},
			"zero length": {func(r *engine.Request) { r.Length = 0 }, errs.InvalidArgument, "length is 0"},
			"leaves remote region": {func(r *engine.Request) { r.Remote.Offset = 1 }, errs.InvalidArgument,
				"remote region"},
			"remote offset wraps": {func(r *engine.Request) { r.Remote.Offset = math.MaxUint64 - 1 },
				errs.InvalidArgument, "remote region"},
			"unknown opcode":         {func(r *engine.Request) { r.Op = 2 }, errs.InvalidArgument, "opcode"},
			"unknown priority":       {func(r *engine.Request) { r.Class = 3 }, errs.InvalidArgument, "PRIO_LOW"},
			"unknown hint":           {func(r *engine.Request) { r.Hint = 99 }, errs.InvalidArgument, "TransportType"},
			"hint that is not there": {func(r *engine.Request) { r.Hint = 1 }, errs.InvalidArgument, "rdma"},
			"segment not open": {func(r *engine.Request) { r.Remote.Segment = 77 }, errs.InvalidEntry,
				"not open"},
			"write to read-only": {func(r *engine.Request) { r.Remote.Segment = ro }, errs.PermissionDenied,
				"GlobalReadOnly"},
			"read into read-only": {func(r *engine.Request) { r.Op, r.Source = transport.Read, address(fixed) },
				errs.PermissionDenied, "read-only"},
			"remote address unknown": {func(r *engine.Request) {
				r.Remote = engine.Remote{Segment: all,
					Offset: 12345}
			}, errs.AddressNotRegistered, "offers"},
		} {
			t.Run(name, func(t *testing.T) {
				b, err := here.NewBatch(2)
				require.NoError(t, err)
				bad := good
				c.change(&bad)
				_, err = here.Submit(b, []engine.Request{good, bad}, nil)
				require.Equal(t, c.code, errs.CodeOf(err), "%v", err)
				require.ErrorContains(t, err, c.says)
				sum, err := here.Summary(b)
				require.NoError(t, err)
				require.Zero(t, sum.Tasks, "a refused submit must leave nothing behind")
				require.NoError(t, here.FreeBatch(b))
			})
		}
		theirs.check(t)
		for i, b := range theirs.bytes {
			require.EqualValues(t, 0xa5, b, "byte %d was written by a refused submit", i)
		}
	})
}

func TestABatchIsTakenWholeOrNotAtAll(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		here, there := w.open(t, map[string]any{"max_pending_requests": 16}), w.open(t, nil)
		own, theirs := memory(t, 4096), memory(t, 4096)
		offer(t, here, own, "")
		offer(t, there, theirs, "kv")
		r := engine.Request{Terms: engine.Terms{Op: transport.Write}, Source: address(own), Length: 64,
			Remote: engine.Remote{Segment: segment(t, here, there, "kv")}}
		small, err := here.NewBatch(2)
		require.NoError(t, err)
		_, err = here.Submit(small, []engine.Request{r, r, r}, nil)
		require.Equal(t, errs.TooManyRequests, errs.CodeOf(err), "more than the batch's capacity: %v", err)
		first, err := here.Submit(small, []engine.Request{r, r}, nil)
		require.NoError(t, err)
		require.Zero(t, first)
		require.EqualValues(t, 128, ended(t, here, small).Bytes)

		_, err = here.NewBatch(17)
		require.ErrorContains(t, err, "max_pending_requests")
		offsets := make([]int64, 17)
		lengths := make([]int64, 17)
		for i := range lengths {
			lengths[i] = 1
		}
		_, err = here.Ranges(r.Terms, &engine.Ranges{Local: address(own), LocalSize: 4096, Remote: r.Remote,
			RemoteSize: 4096,
			N:          17, LocalOffsets: engine.IndexesOf(offsets), RemoteOffsets: engine.IndexesOf(offsets),
			Bytes: engine.IndexesOf(lengths)}, nil)
		require.Equal(t, errs.TooManyRequests, errs.CodeOf(err), "%v", err)

		layout := engine.Layout{PageBytes: 64}
		mine, _, err := here.NewGrid(engine.OwnMemory, []engine.GridRegion{{Addr: address(own), Size: 4096}}, layout)
		require.NoError(t, err)
		other, _, err := here.NewGrid(r.Remote.Segment, []engine.GridRegion{{Size: 4096}}, layout)
		require.NoError(t, err)
		pages := engine.Pages{Local: mine, Remote: other, N: 17, Src: engine.IndexesOf(offsets),
			Dst: engine.IndexesOf(offsets)}
		_, err = here.Pages(r.Terms, &pages, nil)
		require.Equal(t, errs.TooManyRequests, errs.CodeOf(err), "%v", err)
		require.ErrorContains(t, err, "17 requests in one call")
		require.NotContains(t, err.Error(), "wait", "no wait makes room for so many")
		pages.N = 16
		id, err := here.Pages(r.Terms, &pages, nil)
		require.NoError(t, err)
		require.EqualValues(t, 16*64, ended(t, here, id).Bytes)
	})
}

func TestStaleIdsAreErrorsNeverSomebodyElse(t *testing.T) {
	e := worlds()[0].open(t, nil)
	a, err := e.NewBatch(1)
	require.NoError(t, err)
	require.NoError(t, e.FreeBatch(a))
	b, err := e.NewBatch(1)
	require.NoError(t, err)
	require.NotEqual(t, a, b)
	for name, call := range map[string]func() error{
		"status":  func() error { _, err := e.Status(a, 0); return err },
		"summary": func() error { _, err := e.Summary(a); return err },
		"cancel":  func() error { _, err := e.Cancel(a, -1); return err },
		"free":    func() error { return e.FreeBatch(a) },
		"watch":   func() error { return e.Watch(a) },
		"submit":  func() error { _, err := e.Submit(a, []engine.Request{{}}, nil); return err },
	} {
		require.Error(t, call(), name)
	}
	require.Equal(t, dispatch.Invalid, e.Wait(a, time.Second), "waiting for a freed batch returns at once")
	require.Equal(t, dispatch.Invalid, e.Wait(1<<64-1, time.Second), "an id that never was one")
	require.Equal(t, 2, e.WaitMany([]dispatch.BatchID{a, 1<<64 - 1}, 2, time.Second))
	require.NoError(t, e.FreeBatch(b))
	s, err := e.OpenSegment(context.Background(), "")
	require.NoError(t, err)
	require.Equal(t, engine.Local, s)
}

func TestANameInUseIsRefusedAndFreeAgainAfterClose(t *testing.T) {
	e := worlds()[0].open(t, nil)
	b := memory(t, 4096)
	id := offer(t, e, b, "kv")
	_, err := e.Register(engine.Memory{Addr: address(b), Size: 10, Name: "kv", Location: "*"})
	require.ErrorContains(t, err, "in use")
	require.NoError(t, e.CloseRegion(context.Background(), id))
	require.NoError(t, e.CloseRegion(context.Background(), id), "closing twice is no mistake")
	offer(t, e, b, "kv")
}

func TestAClosedEngineRefusesEverything(t *testing.T) {
	e := worlds()[0].open(t, nil)
	require.Empty(t, e.Close(time.Second, false))
	for name, call := range map[string]func() error{
		"batch":    func() error { _, err := e.NewBatch(1); return err },
		"register": func() error { _, err := e.Register(engine.Memory{Addr: 4096, Size: 1}); return err },
		"open":     func() error { _, err := e.OpenSegment(context.Background(), "127.0.0.1:1"); return err },
		"move":     func() error { _, err := e.Move(&engine.Request{}); return err },
	} {
		require.Equal(t, errs.EngineClosed, errs.CodeOf(call()), name)
	}
	require.Empty(t, e.Close(time.Second, false), "closing twice is no mistake")
}
