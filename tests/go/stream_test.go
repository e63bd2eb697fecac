package tests

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/device/devicetest"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/all"
	"github.com/tent-engine/tent/transports/sim"
)

// Streams of the platform without hardware: only the test carries out their work.
const (
	busyStream = 7
	idleStream = 8
)

// streaming is an engine with memory of its own, and a peer's region; 100,000 bytes each.
type streaming struct {
	*testing.T
	gpu       *devicetest.Platform
	e         *engine.Engine
	own, into uintptr
	to        engine.SegmentID
}

func newStreaming(t *testing.T) *streaming {
	const size = 100_000
	s := &streaming{T: t, gpu: devicetest.New(t, mem.Cuda, 1)}
	s.own, s.into = taken(t, s.gpu, 0, size), taken(t, s.gpu, 0, size)
	n := sim.NewInline(1)
	s.e = openWithGPU(t, n, s.gpu)
	there := openWithGPU(t, n, s.gpu)
	_, err := s.e.Register(engine.Memory{Addr: s.own, Size: size})
	require.NoError(t, err)
	_, err = there.Register(engine.Memory{Addr: s.into, Size: size, Name: "kv", Permission: mem.GlobalReadWrite})
	require.NoError(t, err)
	s.to = segment(t, s.e, there, "kv")
	return s
}

func (s *streaming) bytes() int { return 100_000 }

// request is a WRITE of everything behind a stream.
func (s *streaming) request(stream uint64) engine.Request {
	return engine.Request{Terms: request.Terms{Op: transport.Write, Stream: stream}, Source: s.own,
		Length: uint64(s.bytes()), Remote: engine.Remote{Segment: s.to}}
}

func (s *streaming) write(stream uint64) dispatch.BatchID {
	s.Helper()
	r := s.request(stream)
	b, err := s.e.Move(&r)
	require.NoError(s, err)
	return b
}

// store fills memory with a pattern that depends on its place.
func (s *streaming) store(at uintptr, pattern int) {
	want := make([]byte, s.bytes())
	fill(want, pattern)
	require.NoError(s, s.gpu.Store(at, want))
}

func (s *streaming) load(at uintptr) []byte {
	got := make([]byte, s.bytes())
	require.NoError(s, s.gpu.Load(got, at))
	return got
}

// pending looks at a batch often.
func (s *streaming) pending(b dispatch.BatchID) {
	s.Helper()
	for range 100 {
		s.e.Progress()
	}
	require.Equal(s, dispatch.Pending, s.e.Wait(b, 5*time.Millisecond))
}

// ends waits for the end of a batch, and leaves it.
func (s *streaming) ends(b dispatch.BatchID) dispatch.Summary {
	s.Helper()
	s.e.Wait(b, 10*time.Second)
	sum, err := s.e.Summary(b)
	require.NoError(s, err)
	return sum
}

// given requires that no gate and no latch is left.
func (s *streaming) given() {
	s.Helper()
	require.Eventually(s, func() bool { return s.gpu.GatesLeft() == 0 }, 10*time.Second, time.Millisecond)
	require.Zero(s, s.gpu.LatchesLeft())
}

// The source is written by the work of the stream: bytes that leave earlier are the old ones. Inline transports and
// queues alike see the request only when its gate has opened.
func TestATransferBeginsBehindTheWorkOfItsStream(t *testing.T) {
	s := newStreaming(t)
	s.store(s.own, 1)
	s.store(s.into, 2)
	s.gpu.Enqueue(busyStream)
	waits := s.write(busyStream)
	s.gpu.Enqueue(busyStream) // comes later, and is not waited for
	s.pending(waits)
	same(t, s.load(s.into), 2, 0)
	s.store(s.own, 3) // the work
	s.gpu.Finish(busyStream)
	sum := s.ends(waits)
	require.Equal(t, dispatch.Completed, sum.State, "%v", sum.Err)
	same(t, s.load(s.into), 3, 0)

	free := s.write(idleStream)
	require.Equal(t, dispatch.Completed, s.ends(free).State)
	require.Equal(t, dispatch.Completed, s.ends(s.write(0)).State)
	s.given()
}

func TestATransferEndsWhileItWaitsForItsStream(t *testing.T) {
	for name, end := range map[string]func(s *streaming, b dispatch.BatchID) dispatch.State{
		"cancel": func(s *streaming, b dispatch.BatchID) dispatch.State {
			n, err := s.e.Cancel(b, -1)
			require.NoError(s, err)
			require.Equal(s, 1, n)
			return dispatch.Canceled
		},
		"deadline": func(*streaming, dispatch.BatchID) dispatch.State { return dispatch.TimedOut },
		"a broken stream": func(s *streaming, _ dispatch.BatchID) dispatch.State {
			s.gpu.Fail(busyStream, errs.New(errs.CudaError, "fake", "an illegal address"))
			return dispatch.Failed
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStreaming(t)
			s.store(s.own, 1)
			s.store(s.into, 2)
			s.gpu.Enqueue(busyStream)
			r := s.request(busyStream)
			if name == "deadline" {
				r.Deadline = clock.Now().Add(20 * time.Millisecond)
			}
			b, err := s.e.Move(&r)
			require.NoError(t, err)
			want := end(s, b)
			sum := s.ends(b)
			require.Equal(t, want, sum.State, "%v", sum.Err)
			require.False(t, sum.Dirty)
			s.given()
			s.gpu.Finish(busyStream)
			s.e.Progress()
			same(t, s.load(s.into), 2, 0)
		})
	}
}

func TestCloseEndsTransfersThatWaitForStreams(t *testing.T) {
	s := newStreaming(t)
	s.gpu.Enqueue(busyStream)
	b := s.write(busyStream)
	_, err := s.e.HoldStream(b, idleStream)
	require.NoError(t, err)
	s.pending(b)
	require.Empty(t, s.e.Close(patience, true))
	s.given()
	require.Equal(t, []uint32{uint32(dispatch.Canceled)}, s.gpu.Passed(idleStream))
}

// A stream goes on at every end, with the state of the batch.
func TestAStreamWaitsForTheEndOfATransfer(t *testing.T) {
	s := newStreaming(t)
	s.gpu.Enqueue(busyStream)
	var batches []dispatch.BatchID
	hold := func(b dispatch.BatchID) {
		_, err := s.e.HoldStream(b, idleStream)
		require.NoError(t, err)
		batches = append(batches, b)
	}
	first, second := s.write(busyStream), s.write(busyStream)
	hold(first)
	hold(second)
	s.pending(first)
	require.Empty(t, s.gpu.Passed(idleStream))
	_, err := s.e.Cancel(second, -1)
	require.NoError(t, err)
	require.Equal(t, dispatch.Canceled, s.ends(second).State)
	require.Empty(t, s.gpu.Passed(idleStream), "the stream comes to the first wait first")
	s.gpu.Finish(busyStream)
	require.Equal(t, dispatch.Completed, s.ends(first).State)
	hold(first) // it has ended
	require.Equal(t, []uint32{uint32(dispatch.Completed), uint32(dispatch.Canceled), uint32(dispatch.Completed)},
		s.gpu.Passed(idleStream))
	require.Equal(t, 3, s.gpu.LatchesLeft(), "work on the device may still look at the words")
	require.NoError(t, s.e.FreeBatch(first))
	require.NoError(t, s.e.FreeBatch(second))
	_, err = s.e.HoldStream(first, idleStream)
	require.Equal(t, errs.InvalidEntry, errs.CodeOf(err), "%v", err)

	s.gpu.Enqueue(busyStream)
	freed := s.write(busyStream)
	_, err = s.e.HoldStream(freed, idleStream)
	require.NoError(t, err)
	require.NoError(t, s.e.FreeBatch(freed))
	require.Len(t, s.gpu.Passed(idleStream), 3, "a batch that was freed goes on, and so does the wait for it")
	s.gpu.Finish(busyStream)
	require.Eventually(t, func() bool { return len(s.gpu.Passed(idleStream)) == 4 }, 10*time.Second, time.Millisecond)
	s.given()
}

func TestABatchNeverWaitsForItself(t *testing.T) {
	s := newStreaming(t)
	b, err := s.e.NewBatch(3)
	require.NoError(t, err)
	s.gpu.Enqueue(busyStream)
	_, err = s.e.Submit(b, []engine.Request{s.request(busyStream)}, nil)
	require.NoError(t, err)
	_, err = s.e.HoldStream(b, busyStream)
	require.NoError(t, err, "the gate is before the wait")
	_, err = s.e.Submit(b, []engine.Request{s.request(busyStream)}, nil)
	require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, "the stream waits for this batch")
	s.gpu.Finish(busyStream)
	require.Equal(t, dispatch.Completed, s.ends(b).State)
	_, err = s.e.Submit(b, []engine.Request{s.request(busyStream)}, nil)
	require.NoError(t, err, "the stream has gone on")
	require.Equal(t, dispatch.Completed, s.ends(b).State)
	require.NoError(t, s.e.FreeBatch(b))
	s.given()
}

// Each stream of a call counts, and streams that wait are bounded.
func TestManyStreams(t *testing.T) {
	s := newStreaming(t)
	const most = 1024
	var batches []dispatch.BatchID
	for i := range most {
		s.gpu.Enqueue(uintptr(100 + i))
		r := s.request(uint64(100 + i))
		r.Length = 8
		b, err := s.e.Move(&r)
		require.NoError(t, err)
		batches = append(batches, b)
	}
	s.gpu.Enqueue(busyStream)
	r := s.request(busyStream)
	_, err := s.e.Move(&r)
	require.Equal(t, errs.TooManyRequests, errs.CodeOf(err), "%v", err)
	for i := range most {
		s.gpu.Finish(uintptr(100 + i))
	}
	for _, b := range batches {
		require.Equal(t, dispatch.Completed, s.ends(b).State)
	}
	two := []engine.Request{s.request(busyStream), s.request(idleStream)}
	b, err := s.e.NewBatch(2)
	require.NoError(t, err)
	_, err = s.e.Submit(b, two, nil)
	require.NoError(t, err)
	s.pending(b)
	status, err := s.e.Status(b, 1)
	require.NoError(t, err)
	require.Equal(t, dispatch.Completed, status.State, "the other stream's request")
	s.gpu.Finish(busyStream)
	require.Equal(t, dispatch.Completed, s.ends(b).State)
	s.given()
}

func TestAStreamWithoutADriverIsRefused(t *testing.T) {
	gone := devicetest.New(t, mem.Cuda, 1)
	gone.Absent = errors.New("no driver")
	e := openWith(t, nil, all.Transports(), engine.Plugs(all.Factories()...), gone)
	own := memory(t, 4096)
	offer(t, e, own, "")
	terms := request.Terms{Op: transport.Write, Stream: busyStream}
	_, err := e.Move(&engine.Request{Terms: terms, Source: address(own), Length: 2048,
		Remote: engine.Remote{Offset: uint64(address(own)) + 2048}})
	require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, "no driver")
	_, err = e.HoldStream(1, busyStream)
	require.ErrorContains(t, err, "no driver")
}
