package kit

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// device is a bench with a device: begin notes the slices, and the test ends them. It fails a question that names a
// slice that has ended, or that comes while another one is open.
type device struct {
	*bench
	t      *testing.T
	begun  []uint64        // guarded by mu, as those below are
	bursts []int           // their lengths
	broken map[uint64]bool // slices that fail when they are begun
	over   map[uint64]bool // slices that the test has ended
	seen   map[uint64]bool // slices of which the end was told
	asks   int
	asking bool
	gate   chan struct{} // a question that stands still
}

type rest struct {
	d  *device
	id uint64
}

func (r rest) Finish() *errs.Error {
	r.d.mu.Lock()
	defer r.d.mu.Unlock()
	if !r.d.seen[r.id] {
		r.d.t.Errorf("slice %d is finished before its end was seen", r.id)
	}
	r.d.carried = append(r.d.carried, r.id)
	return nil
}

func newDevice(t *testing.T) *device {
	d := &device{bench: newIdleBench(), t: t, over: map[uint64]bool{}, seen: map[uint64]bool{},
		broken: map[uint64]bool{}}
	require.NoError(t, d.StartPosting(32, d.bench, d.isUp, d.post, d.ask))
	t.Cleanup(d.Stop)
	return d
}

func (d *device) post(list []Beginning[bench]) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.bursts = append(d.bursts, len(list))
	for i, b := range list {
		d.begun = append(d.begun, b.Slice.Id)
		if d.broken[b.Slice.Id] {
			list[i].Err = errs.New(errs.Lost, "x", "slice %d", b.Slice.Id)
		} else {
			list[i].Rest = rest{d, b.Slice.Id}
		}
	}
	d.changed.Broadcast()
}

func (d *device) ask(list []Posted, ends []bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.asking {
		d.t.Error("two goroutines ask at once")
	}
	d.asking = true
	d.asks++
	d.changed.Broadcast()
	if gate := d.gate; gate != nil {
		d.mu.Unlock()
		<-gate
		d.mu.Lock()
	}
	for i, p := range list {
		id := p.(rest).id
		if d.seen[id] {
			d.t.Errorf("slice %d has ended, and is asked about again", id)
		}
		ends[i] = d.over[id]
		d.seen[id] = ends[i]
	}
	d.asking = false
}

// end lets the device end slices.
func (d *device) end(ids ...uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, id := range ids {
		d.over[id] = true
	}
}

// begin waits until just these slices were begun, in order.
func (d *device) begin(ids ...uint64) {
	d.t.Helper()
	d.await(func() bool { return len(d.begun) >= len(ids) })
	d.mu.Lock()
	defer d.mu.Unlock()
	require.Equal(d.t, ids, d.begun)
}

// asked waits until the device was asked a number of times more.
func (d *device) asked(more int) {
	d.mu.Lock()
	until := d.asks + more
	d.mu.Unlock()
	d.await(func() bool { return d.asks >= until })
}

func (d *device) completed(ids ...uint64) {
	d.await(func() bool {
		for _, id := range ids {
			if d.ends[id].Slice == nil {
				return false
			}
		}
		return true
	})
}

// long is the length of a slice that goes in no burst.
const long = ShortBytes + 1

func (d *device) accept(op transport.Op, ids ...uint64) {
	d.t.Helper()
	d.acceptOf(op, long, ids...)
}

func (d *device) acceptOf(op transport.Op, length uint64, ids ...uint64) {
	d.t.Helper()
	list := slicesOf(ids...)
	for _, s := range list {
		s.Op, s.Length = op, length
	}
	require.Equal(d.t, len(ids), d.Accept(list, d.here))
}

// Two slices of a class and direction are posted, so the device has its next work. The rest waits for its turn, and a
// more urgent slice passes it: the worker posts it although it rests between two questions.
func TestTwoSlicesOfALaneArePosted(t *testing.T) {
	d := newDevice(t)
	d.accept(transport.Write, 200, 201, 202, 203)
	d.begin(200, 201)
	d.asked(3)
	d.accept(transport.Write, 1)
	d.begin(200, 201, 1)
	d.accept(transport.Read, 2)
	d.begin(200, 201, 1, 2)
	d.end(201) // of another device than 200
	d.begin(200, 201, 1, 2, 202)
	d.end(200, 1, 2, 202)
	d.begin(200, 201, 1, 2, 202, 203)
	d.end(203)
	d.completed(1, 2, 200, 201, 202, 203)
	require.EqualValues(t, long, d.ends[203].Bytes)
	require.NotContains(t, d.bursts, 2, "a long slice is a burst of its own")
}

// A slice that stands still on the device holds up no other one. Each look completes a piece that has ended, the most
// urgent first.
func TestAStalledSliceHoldsUpNoOther(t *testing.T) {
	d := newDevice(t)
	require.Zero(t, d.Poll(1, transport.AllClasses))
	d.accept(transport.Write, 1, 100, 101, 200)
	require.Zero(t, d.Poll(8, transport.AllClasses), "nothing has ended")
	d.end(200, 101, 100)
	require.Equal(t, 1, d.Poll(1, transport.AllClasses))
	require.Equal(t, 1, d.Poll(1, transport.AllClasses))
	asks := d.asks
	require.Equal(t, []uint64{100, 101}, d.carried)
	require.Equal(t, 1, d.Poll(8, transport.AllClasses))
	require.Equal(t, []uint64{100, 101, 200}, d.carried)
	require.Equal(t, asks+1, d.asks, "three ends were seen by one question, and 1 is asked about once more")
	d.Arm()
	d.end(1)
	d.completed(1)
}

// One goroutine asks. Others that poll meanwhile return at once, and neither wait nor ask.
func TestOneGoroutineAsks(t *testing.T) {
	d := newDevice(t)
	require.Zero(t, d.Poll(1, transport.AllClasses))
	gate := make(chan struct{})
	d.gate = gate
	d.accept(transport.Write, 1)
	first := make(chan int)
	go func() { first <- d.Poll(1, transport.AllClasses) }()
	d.await(func() bool { return d.asking })
	require.Zero(t, d.Poll(1, transport.AllClasses))
	d.end(1)
	close(gate)
	require.Equal(t, 1, <-first)
	d.Arm()
}

// Slices that a waiter has posted are the worker's when the waiter leaves. They are not dropped, and Evict waits for
// them.
func TestPostedSlicesEndByThemselves(t *testing.T) {
	d := newDevice(t)
	require.Zero(t, d.Poll(1, transport.AllClasses))
	d.accept(transport.Write, 1, 2, 3)
	d.end(1)
	require.Equal(t, 1, d.Poll(1, transport.AllClasses))
	d.begin(1, 2)
	cause := errs.New(errs.Withdrawn, "x", "asked back")
	d.Drop(cause, func(*transport.Slice, *bench) bool { return true })
	require.Same(t, cause, d.ends[3].Err)
	require.NotContains(t, d.ends, uint64(2))
	d.Arm()
	d.asked(1)
	done := make(chan struct{})
	go func() {
		d.Evict(cause, func(*transport.Slice, *bench) bool { return true })
		close(done)
	}()
	d.asked(3)
	select {
	case <-done:
		t.Fatal("slice 2 is still under way")
	default:
	}
	d.end(2)
	<-done
	d.completed(1, 2, 3)
	require.Nil(t, d.ends[2].Err)
}

// With nothing posted nobody asks: the worker sleeps. Its timer ends with it.
func TestAnIdleWorkerAsksNothing(t *testing.T) {
	d := newDevice(t)
	d.accept(transport.Write, 1)
	d.end(1)
	d.completed(1)
	d.Poll(1, transport.AllClasses)
	asks := d.asks
	d.Arm()
	require.Zero(t, d.posting.count)
	require.Equal(t, asks, d.asks)
	require.NotZero(t, d.posting.alarm.fd)
	d.Stop()
	require.Zero(t, d.posting.alarm.fd)
}

// Pauses of the worker double while nothing ends, up to a bound, and begin anew with each piece that moves.
func TestPausesDoubleUntilSomethingMoves(t *testing.T) {
	d := newDevice(t)
	pause := func() any {
		d.Executor.mu.Lock()
		defer d.Executor.mu.Unlock()
		return d.posting.pause
	}
	d.accept(transport.Write, 1)
	d.asked(12)
	require.Equal(t, pauseMost, pause())
	require.Zero(t, d.Poll(1, transport.AllClasses)) // the worker sleeps from here on
	d.accept(transport.Write, 2)
	require.Zero(t, d.Poll(1, transport.AllClasses))
	require.Equal(t, pauseLeast, pause())
	d.end(1, 2)
	d.Arm()
	d.completed(1, 2)
}
