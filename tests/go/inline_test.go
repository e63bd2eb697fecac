package tests

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/sim"
)

// gate is a transport with an Inline of the test's, instead of or around the inner one's.
type gate struct {
	transport.Transport
	inner  transport.Inliner
	inline func(list []*transport.Slice, inner transport.Inliner) bool
}

func (g *gate) Inner() transport.Transport { return g.Transport }

func (g *gate) Inline(list []*transport.Slice) bool { return g.inline(list, g.inner) }

// gated makes gates.
type gated struct {
	sim.Factory
	inline func([]*transport.Slice, transport.Inliner) bool
}

func (f gated) Open(ctx context.Context, config any, host transport.Host, sink transport.Sink) (transport.Transport,
	error) {
	t, err := f.Factory.Open(ctx, config, host, sink)
	if err != nil {
		return nil, err
	}
	inner, _ := transport.Find[transport.Inliner](t)
	return &gate{t, inner, f.inline}, nil
}

// openGated opens an engine over a network that drives itself, with the test's Inline.
func openGated(t testing.TB, n *sim.Network, inline func([]*transport.Slice, transport.Inliner) bool) *engine.Engine {
	return open(t, nil, []string{"sim"}, func() []engine.Plug {
		return []engine.Plug{{Factory: gated{sim.Factory{Settings: sim.Settings{Network: n, Inline: true,
			Vectors: true}}, inline}}}
	})
}

// couple is two engines with guarded memory, and a request of 4 KiB between them.
type couple struct {
	here, there *engine.Engine
	own, theirs guarded
	at          engine.SegmentID
}

func newCouple(t *testing.T, inline func([]*transport.Slice, transport.Inliner) bool) *couple {
	n := sim.NewInline(1)
	c := &couple{here: openGated(t, n, inline), there: openGated(t, n, inline), own: newGuarded(t, 1<<20),
		theirs: newGuarded(t, 1<<20)}
	offer(t, c.here, c.own.bytes, "")
	offer(t, c.there, c.theirs.bytes, "kv")
	c.at = segment(t, c.here, c.there, "kv")
	return c
}

func (c *couple) write(offset, length int) *engine.Request {
	return &engine.Request{Terms: engine.Terms{Op: transport.Write}, Source: address(c.own.bytes[offset:]),
		Length: uint64(length),
		Remote: engine.Remote{Segment: c.at, Offset: uint64(offset)}}
}

func TestALittleIsThereWhenTheCallReturns(t *testing.T) {
	var calls atomic.Int32
	c := newCouple(t, func(list []*transport.Slice, inner transport.Inliner) bool {
		calls.Add(1)
		return inner.Inline(list)
	})
	fill(c.own.bytes, 1)
	done := func(id dispatch.BatchID, n uint64) {
		t.Helper()
		sum, err := c.here.Summary(id)
		require.NoError(t, err)
		require.Equal(t, dispatch.Completed, sum.State, "nobody has waited")
		require.Equal(t, []uint64{n, n, 1, 0}, []uint64{sum.Bytes, sum.Total, uint64(sum.Transports),
			uint64(sum.Failovers)})
		require.Positive(t, c.here.Elapsed(id))
		require.Zero(t, c.here.Failed(id, nil))
		require.NoError(t, c.here.FreeBatch(id))
		same(t, c.theirs.bytes[:256<<10], 1, 0)
		clear(c.theirs.bytes)
	}
	id, err := c.here.Move(c.write(0, 256<<10))
	require.NoError(t, err)
	done(id, 256<<10)

	near, _, err := c.here.NewGrid(engine.OwnMemory, []engine.GridRegion{{Addr: address(c.own.bytes), Size: 1 << 20}},
		engine.Layout{PageBytes: 4096})
	require.NoError(t, err)
	far, _, err := c.here.NewGrid(c.at, []engine.GridRegion{{Size: 1 << 20}}, engine.Layout{PageBytes: 4096})
	require.NoError(t, err)
	var pages, offsets, lengths []int64
	for i := range int64(64) {
		page := i * 13 % 64
		pages, offsets, lengths = append(pages, page), append(offsets, page*4096), append(lengths, 4096)
	}
	write := engine.Terms{Op: transport.Write}
	id, err = c.here.Pages(write, &engine.Pages{Local: near, Remote: far, N: 64,
		Src: engine.IndexesOf(pages), Dst: engine.IndexesOf(pages)}, nil)
	require.NoError(t, err)
	done(id, 256<<10)
	id, err = c.here.Ranges(write, &engine.Ranges{Local: address(c.own.bytes), LocalSize: 1 << 20,
		Remote: engine.Remote{Segment: c.at}, RemoteSize: 1 << 20, N: 64, LocalOffsets: engine.IndexesOf(offsets),
		RemoteOffsets: engine.IndexesOf(offsets), Bytes: engine.IndexesOf(lengths)}, nil)
	require.NoError(t, err)
	done(id, 256<<10)

	id, err = c.here.NewBatch(64)
	require.NoError(t, err)
	for k := range 4 {
		var list []engine.Request
		for i := range 16 {
			list = append(list, *c.write((16*k+i)*4096, 4096))
		}
		first, err := c.here.Submit(id, list, nil)
		require.NoError(t, err)
		require.Equal(t, 16*k, first)
		s, err := c.here.Status(id, first+15)
		require.NoError(t, err)
		require.Equal(t, dispatch.Status{State: dispatch.Completed, Attempts: 1, Bytes: 4096}, s)
	}
	done(id, 256<<10)
	require.EqualValues(t, 7, calls.Load(), "each call was carried out at once")

	id, err = c.here.Move(c.write(0, 256<<10+1))
	require.NoError(t, err)
	require.Equal(t, dispatch.Completed, ended(t, c.here, id).State)
	require.EqualValues(t, 7, calls.Load(), "one byte too many")
	c.own.check(t)
	c.theirs.check(t)
}

func TestWhatCouldNotBeCarriedOutGoesThroughTheCore(t *testing.T) {
	c := newCouple(t, func(list []*transport.Slice, inner transport.Inliner) bool {
		inner.Inline(list[:len(list)/2])
		return false
	})
	fill(c.own.bytes, 2)
	id, err := c.here.NewBatch(8)
	require.NoError(t, err)
	var list []engine.Request
	for i := range 8 {
		list = append(list, *c.write(i*4096, 4096))
	}
	_, err = c.here.Submit(id, list, &engine.Note{Name: []byte("done")})
	require.NoError(t, err)
	sum := ended(t, c.here, id)
	require.Equal(t, dispatch.Completed, sum.State)
	require.EqualValues(t, 8*4096, sum.Bytes, "what was carried out before counts once")
	same(t, c.theirs.bytes[:8*4096], 2, 0)
	require.Equal(t, 1, c.there.NotesWait(patience))
	c.theirs.check(t)
}

func TestErrorsOfWhatIsCarriedOutComeFromTheCore(t *testing.T) {
	n := sim.NewInline(1)
	through := func(list []*transport.Slice, inner transport.Inliner) bool { return inner.Inline(list) }
	here, there := openGated(t, n, through), openGated(t, n, through)
	own, theirs := memory(t, 4096), memory(t, 4096)
	offer(t, here, own, "")
	region := offer(t, there, theirs, "kv")
	at := segment(t, here, there, "kv")
	require.NoError(t, there.CloseRegion(context.Background(), region))
	id, err := here.Move(&engine.Request{Terms: engine.Terms{Op: transport.Write}, Source: address(own), Length: 4096,
		Remote: engine.Remote{Segment: at}})
	require.NoError(t, err)
	sum := ended(t, here, id)
	require.Equal(t, dispatch.Failed, sum.State)
	require.Contains(t, []errs.Code{errs.PermissionDenied, errs.AddressNotRegistered}, sum.Err.Code)
}

// While a call is being carried out its batch is pending. It can be freed and watched, and neither its region nor the
// engine comes to an end before it.
func TestNothingEndsWhileACallIsCarriedOut(t *testing.T) {
	entered, proceed := make(chan struct{}), make(chan struct{})
	c := newCouple(t, func(list []*transport.Slice, inner transport.Inliner) bool {
		entered <- struct{}{}
		<-proceed
		return inner.Inline(list)
	})
	for _, carried := range []bool{true, false} {
		fill(c.own.bytes, 3)
		id, err := c.here.NewBatch(2)
		require.NoError(t, err)
		submitted := make(chan error)
		go func() {
			_, err := c.here.Submit(id, []engine.Request{*c.write(0, 4096)}, nil)
			submitted <- err
		}()
		<-entered
		require.Equal(t, dispatch.Pending, func() dispatch.State { s, _ := c.here.Summary(id); return s.State }())
		asked, err := c.here.Cancel(id, -1)
		require.NoError(t, err)
		require.Zero(t, asked, "there is nothing to cancel: it ends by itself")
		require.NoError(t, c.here.Watch(id))
		if carried {
			require.NoError(t, c.here.FreeBatch(id))
		}
		proceed <- struct{}{}
		require.NoError(t, <-submitted)
		var ids [4]uint64
		require.Equal(t, 1, c.here.Drain(ids[:]))
		require.EqualValues(t, id, ids[0])
		if carried {
			require.Equal(t, dispatch.Invalid, c.here.Wait(id, 0), "it was freed, and is gone")
		} else {
			require.Equal(t, dispatch.Completed, ended(t, c.here, id).State)
		}
		same(t, c.theirs.bytes[:4096], 3, 0)
		clear(c.theirs.bytes)
	}

	moved, closed := make(chan error), make(chan []string)
	go func() {
		_, err := c.here.Move(c.write(0, 4096))
		moved <- err
	}()
	<-entered
	require.Empty(t, pendingOnPage(c.here), "nobody asked")
	require.Equal(t, 1, c.here.UnderWay())
	require.Len(t, pendingOnPage(c.here), 1, "a reader of the page sees it behind that")
	go func() { closed <- c.here.Close(0, true) }()
	for id, err := c.here.NewBatch(1); err == nil; id, err = c.here.NewBatch(1) { // until Close has begun
		require.NoError(t, c.here.FreeBatch(id))
		runtime.Gosched()
	}
	select {
	case <-closed:
		require.Fail(t, "the engine has closed over a call that is being carried out")
	default:
	}
	proceed <- struct{}{}
	require.NoError(t, <-moved)
	require.Empty(t, <-closed)
	c.theirs.check(t)
}

// pendingOnPage returns the slots that the shared page shows as pending.
func pendingOnPage(e *engine.Engine) (slots []int) {
	at, size := e.Page()
	words := mem.Words(at, size/8)
	for i := 0; i < len(words); i += 4 { // of a cell the first has the state
		if dispatch.State(atomic.LoadUint64(&words[i])&0xff) == dispatch.Pending {
			slots = append(slots, i/4)
		}
	}
	return slots
}

// A close settles the batches of the page, before the engine is gone. So one that a caller is carrying out is there
// when no other can begin, and stays pending until it has ended.
func TestABatchThatIsCarriedOutIsOnThePageOfAnEngineThatRefuses(t *testing.T) {
	for _, carries := range []bool{true, false} {
		entered, proceed := make(chan struct{}), make(chan struct{})
		c := newCouple(t, func(list []*transport.Slice, inner transport.Inliner) bool {
			entered <- struct{}{}
			<-proceed
			return carries && inner.Inline(list)
		})
		fill(c.own.bytes, 5)
		moved := make(chan dispatch.BatchID)
		go func() {
			id, _ := c.here.Move(c.write(0, 4096))
			moved <- id
		}()
		<-entered
		c.here.Refuse()
		slots := pendingOnPage(c.here)
		require.Len(t, slots, 1)
		close(proceed)
		id := <-moved
		require.EqualValues(t, slots[0], id.Slot())
		if carries {
			require.Equal(t, dispatch.Completed, ended(t, c.here, id).State)
			same(t, c.theirs.bytes[:4096], 5, 0)
		} else { // it goes to the core, behind the look of a close
			require.Equal(t, dispatch.Canceled, ended(t, c.here, id).State)
		}
		require.Empty(t, pendingOnPage(c.here))
		c.own.check(t)
		c.theirs.check(t)
	}
}

func TestInlineBytesCanBeSetToNone(t *testing.T) {
	n := sim.NewInline(1)
	never := func([]*transport.Slice, transport.Inliner) bool {
		t.Error("nothing may be carried out at once")
		return false
	}
	settings := map[string]any{"inline_bytes": 0}
	plug := func() []engine.Plug {
		return []engine.Plug{{Factory: gated{sim.Factory{Settings: sim.Settings{Network: n, Inline: true}}, never}}}
	}
	here, there := open(t, settings, []string{"sim"}, plug), open(t, settings, []string{"sim"}, plug)
	own, theirs := memory(t, 4096), memory(t, 4096)
	offer(t, here, own, "")
	offer(t, there, theirs, "kv")
	exchange(t, here, segment(t, here, there, "kv"), own, transport.Write)
}

// inlined is a pair of engines over a transport that does nothing, at once: only the engine is left.
func inlined(tb testing.TB) (*engine.Engine, engine.Request) {
	n := sim.NewInline(1)
	nothing := func([]*transport.Slice, transport.Inliner) bool { return true }
	here, there := openGated(tb, n, nothing), openGated(tb, n, nothing)
	own, theirs := memory(tb, 1<<20), memory(tb, 1<<20)
	offer(tb, here, own, "")
	offer(tb, there, theirs, "kv")
	return here, engine.Request{Terms: engine.Terms{Op: transport.Write}, Source: address(own), Length: 4096,
		Remote: engine.Remote{Segment: segment(tb, here, there, "kv")}}
}

// BenchmarkInline measures the engine's own share of a small request: Move, Wait and FreeBatch.
func BenchmarkInline(b *testing.B) {
	here, request := inlined(b)
	m := mover{here, request}
	m.move(b)
	b.ReportAllocs()
	for b.Loop() {
		m.move(b)
	}
}

// BenchmarkInlineSubmit is the same by the calls of upstream: NewBatch, Submit, Status, FreeBatch.
func BenchmarkInlineSubmit(b *testing.B) {
	here, request := inlined(b)
	list := []engine.Request{request}
	b.ReportAllocs()
	for b.Loop() {
		id, _ := here.NewBatch(1)
		if _, err := here.Submit(id, list, nil); err != nil {
			b.Fatal(err)
		}
		if s, err := here.Status(id, 0); err != nil || s.State != dispatch.Completed {
			b.Fatal(s.State, err)
		}
		if err := here.FreeBatch(id); err != nil {
			b.Fatal(err)
		}
	}
}
