package tcp

import (
	"runtime/debug"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/spin"
	"github.com/tent-engine/tent/gocore/transport"
)

// worker collects completions while locks are held and hands them to the core when they are not. Each goroutine of the
// transport has one; callers of Poll and Submit borrow one.
type worker struct {
	t     *Transport
	ended []transport.Completion
	rails []transport.Rail
	event [4]unix.EpollEvent // of work
	high  [4]unix.EpollEvent // of urgent, which does not nest: its events are still being served
	inner bool               // inside urgent
	low   [2]unix.EpollEvent // of bulkTurn

	company spin.Company
	passes  spin.Passes // of its goroutine

	dropped []*responderLane // for others that it reads, to be closed when it holds no lock

	buffers *readBuffers // for the next lane that it reads, nil at first
}

func (t *Transport) newWorker() *worker {
	return &worker{t: t, ended: make([]transport.Completion, 0, 256), rails: make([]transport.Rail, 0, 4)}
}

// complete notes a completion. Any lock may be held. The record is still the slice's: a lane detaches it once.
func (w *worker) complete(s *transport.Slice, bytes uint64, err *errs.Error) {
	w.ended = append(w.ended, transport.Completion{Slice: s, Id: s.Id, Bytes: bytes, Err: err})
}

// completeAs completes a slice as a whole, or with the error of why it failed.
func (w *worker) completeAs(s *transport.Slice, err *errs.Error) {
	if err != nil {
		w.complete(s, 0, err)
		return
	}
	w.complete(s, s.Length, nil)
}

// closeDropped closes the lanes that had to go for others. No lock may be held. A goroutine for each would leave a
// flood more descriptors than the process has.
func (w *worker) closeDropped() {
	for i, l := range w.dropped {
		l.closeLane()
		w.dropped[i] = nil
	}
	w.dropped = w.dropped[:0]
}

// ready notes that a rail takes slices again.
func (w *worker) ready(set *laneSet) { w.rails = append(w.rails, set.id()) }

// flush hands the notes to the core. No lock that Submit, Withdraw, Fence or Poll needs may be held: the core may call
// them.
func (w *worker) flush() {
	if ended := w.ended; len(ended) > 0 {
		w.ended = ended[:0] // no panic of the core's makes the next turn report them again
		w.t.sink.Complete(ended)
		clear(ended)
	}
	for _, r := range w.rails {
		w.t.sink.Ready(r)
	}
	w.rails = w.rails[:0]
}

// borrow gives a worker to a caller; giveBack takes it back.
func (t *Transport) borrow() *worker {
	t.spareMu.Lock()
	defer t.spareMu.Unlock()
	if n := len(t.spare); n > 0 {
		w := t.spare[n-1]
		t.spare = t.spare[:n-1]
		return w
	}
	return t.newWorker()
}

func (t *Transport) giveBack(w *worker) {
	w.flush()
	t.spareMu.Lock()
	defer t.spareMu.Unlock()
	if len(t.spare) < cap(t.spare) {
		t.spare = append(t.spare, w)
	}
}

// spawn runs f on a goroutine that Close waits for. It reports false, and runs nothing, once Close has begun to wait.
func (t *Transport) spawn(f func()) bool {
	t.spareMu.Lock()
	defer t.spareMu.Unlock()
	if t.ending {
		return false
	}
	t.tasks.Add(1)
	go func() {
		defer t.tasks.Done()
		defer t.guard()
		f()
	}()
	return true
}

// guard ends a goroutine, or one turn of it, that panicked instead of the process it is a guest of.
func (t *Transport) guard() {
	if p := recover(); p != nil {
		_ = t.panicked("tcp", p)
	}
}

// caught makes a panic the error of a call, which others wait for.
func (t *Transport) caught(op string, err *error) {
	if p := recover(); p != nil {
		*err = t.panicked(op, p)
	}
}

// panicked logs a panic and returns it as an error.
func (t *Transport) panicked(op string, p any) *errs.Error {
	t.host.Log().Error("tcp: internal error", "panic", p, "stack", string(debug.Stack()))
	return errs.New(errs.Internal, op, "panic: %v", p).WithScope(errs.ScopeRail, errs.SideLocal)
}

// guard ends a lane of which a reader or writer panicked, and neither the goroutine nor the lock by which it has its
// turn. So the lane's slices have an end, with the panic as its cause.
func (c *conn) guard(op string) {
	if p := recover(); p != nil {
		c.broke(c.attribute(c.t.panicked(op, p)))
	}
}

func epollModify(epfd, fd int, event *unix.EpollEvent) {
	_, _, _ = unix.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(epfd), unix.EPOLL_CTL_MOD, uintptr(fd),
		uintptr(unsafe.Pointer(event)), 0, 0)
}

// spinBytes is the longest burst after which looking for the next one pays. Its sender goes on when it has heard of the
// end. Between the pieces of much payload a sleep costs less than looks: the sender is busy filling the socket, and
// wants the core (docs/design/decisions 0204).
const spinBytes = 512 << 10

// serve handles an event of a connection. A goroutine that reads it meanwhile arms it afterwards.
func (t *Transport) serve(w *worker, c *conn, events uint32, alone bool) {
	c.eventTaken()
	if events&unix.EPOLLOUT != 0 || c.wantOut.Load() {
		c.dirty.Store(true)
		c.pump(c.turn())
	}
	_, initiates := c.lane.(*initiatorLane)
	if initiates && events == unix.EPOLLOUT { // no answer has come, and a waiter may be about to look for it
		c.arm()
		return
	}
	if !c.takeReading() {
		if c.wantOut.Load() {
			c.arm()
		}
		return
	}
	open := t.read(w, c, alone)
	w.closeDropped()
	if open {
		c.arm()
	}
}

// read is a worker's turn at the read side of a connection. It reports false when the lane cannot go on.
func (t *Transport) read(w *worker, c *conn, alone bool) (open bool) {
	defer c.guard("tcp.work")
	c.holdReading(true)
	defer c.letGo()
	defer c.holdReading(false)
	_, initiates := c.lane.(*initiatorLane)
	open, burst := true, 0
	for turns := 0; open && turns < 64; turns++ {
		var n int
		n, open = c.drain(w, c.turn())
		burst += n
		if n == 0 && open && alone && !initiates && c.rx.stage != wantPayload && burst <= spinBytes {
			n, open = t.spin(w, c)
			burst = n
		}
		w.flush()
		if n == 0 {
			break
		}
		if c.group > 0 {
			t.urgent(w)
		}
	}
	return open
}

// spin waits a little for more bytes on a connection that is dry (adaptive spinning). Sleeping and being woken takes 40
// to 100 µs where the processor has to leave its idle state, and many answers come sooner. It returns like drain.
// At most every other processor spins, and after failures in a row most turns do without. With Settings.BusyPoll each
// turn spins, for longer (busy polling, as SO_BUSY_POLL of socket(7)), until its time, its lane or the transport ends.
//
// It does not yield to Go's scheduler: runtime.Gosched wakes another thread, which takes the lane over or finds nothing
// to do. Half of the processors are free for other goroutines, and Go preempts one that spins for long.
func (t *Transport) spin(w *worker, c *conn) (n int, open bool) {
	busy := t.settings.BusyPoll > 0
	if t.spinTime <= 0 || !c.life.state().receives() || c.wantOut.Load() ||
		!busy && (c.rx.spins.skip() || w.company.Sleeps()) {
		return 0, true
	}
	if t.spinning.Add(1) > t.spinners {
		t.spinning.Add(-1)
		return 0, true
	}
	defer t.spinning.Add(-1)
	end := clock.Now().Add(t.spinTime)
	looks := spin.Looks{Company: &w.company}
	last := false
	for i := 1; ; i++ {
		if n, open = c.drain(w, workerBudget); n > 0 || !open {
			c.rx.spins.hit()
			looks.Found()
			return n, open
		}
		if last {
			c.rx.spins.miss()
			return 0, true
		}
		last = !looks.Vain() && !busy
		if i%8 == 0 {
			if clock.Now() >= end {
				c.rx.spins.miss()
				return 0, true
			}
			// the goroutine that closes the lane or the transport waits for this reader
			if !c.life.state().receives() || t.quit.Err() != nil {
				return 0, true
			}
		}
	}
}

// spinRecord is the memory of adaptive spinning: whether it has paid on this connection.
type spinRecord struct{ misses, skips uint32 }

func (k *spinRecord) hit() { k.misses, k.skips = 0, 0 }

func (k *spinRecord) miss() {
	k.misses++
	if k.misses > 2 {
		k.skips = 1 << min(k.misses-2, 8)
	}
}

func (k *spinRecord) skip() bool {
	if k.skips > 0 {
		k.skips--
		return true
	}
	return false
}
