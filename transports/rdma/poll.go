package rdma

import (
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/rdma/verbs"
)

// Completions are found by one goroutine a device, which sleeps on the device's bell, or by waiters.
//
//	goroutine   bell rings ── take all, arm, take again ── sleep
//	            also beside sleepers, for a device that came after they had begun to sleep
//	waiter      Poll: take        Arm: arm, take again, so that the bell rings for the goroutine
//	sleeper     Watch: arm, take again ── ppoll on the bell ── Woken: quiet a bell that rang, take
//
// A queue that is armed rings once, and is armed again only after that: to arm is a system call or a write to the NIC.
// After arming comes another look, for a completion that came before.
//
// A device with nothing out is not armed. Each posting looks at once, and arms for the requests that are still out
// (expect). It leaves both to a waiter that polls, which has yet to call Arm. Each side writes before it reads: a
// posting the number of requests before it reads polling, Arm the other way round.
//
// While somebody sleeps the goroutine is deaf, for it would be woken only to leave the ring to the sleeper, by switches
// of threads that cost more than the completion. A sleeper makes it deaf, and the last one to leave makes it hear
// again, as a part of Arm: the kernel then reports a ring that nobody answered. Both are system calls, so a device with
// nothing out is left to its goroutine while another has something. It may hear beside a sleeper for a moment. Then it
// notes the ring (bell.missed) for one that something else has woken. Each side writes before it reads (Dekker's
// algorithm): the goroutine its note before the number of sleepers, a sleeper that number before the note.

// batch is the news that a rail hands over once its mutex is free.
type batch struct {
	list   []transport.Completion
	probes []probeEnd
}

type probeEnd struct {
	done func(*errs.Error)
	err  *errs.Error
}

func (b *batch) deliver(sink transport.Sink) {
	if len(b.list) > 0 {
		sink.Complete(b.list)
	}
	for _, p := range b.probes {
		p.done(p.err)
	}
}

// batches keeps batches for further use, so that completions allocate nothing.
type batches struct {
	mu   sync.Mutex
	free []*batch
}

func (t *Transport) batch() *batch {
	t.batches.mu.Lock()
	defer t.batches.mu.Unlock()
	if n := len(t.batches.free); n > 0 {
		b := t.batches.free[n-1]
		t.batches.free = t.batches.free[:n-1]
		return b
	}
	return &batch{list: make([]transport.Completion, 0, slicesMax)}
}

func (t *Transport) recycle(b *batch) {
	clear(b.list)
	clear(b.probes)
	b.list, b.probes = b.list[:0], b.probes[:0]
	t.batches.mu.Lock()
	t.batches.free = append(t.batches.free, b)
	t.batches.mu.Unlock()
}

// take takes all completions of a device that are there, and returns their number.
func (d *device) take() (n int) {
	for _, w := range d.queues() {
		for {
			found := d.takeSome(w)
			n += found
			if found < verbs.Batch {
				break
			}
		}
	}
	return n
}

// takeSome takes one crossing's worth of completions of a queue. They are handed over once pollMu is free, since a step
// of the core inside Complete polls and arms. So a rail's news may wait in it for a moment, and the next
// unlock of the rail hands them over.
func (d *device) takeSome(w *waiting) int {
	var touched [verbs.Batch]*rail
	var ends [verbs.Batch]ruin
	d.pollMu.Lock()
	n, rails, ruins := d.takeLocked(w, &touched, &ends)
	d.pollMu.Unlock()
	for _, r := range touched[:rails] {
		r.mu.Lock()
		r.pumpLocked()
		r.posted = false // the caller of take looks again, or arms
		r.unlock()
	}
	for _, e := range ends[:ruins] {
		e.link.lack(e.rail, e.cause)
	}
	return n
}

// takeLocked applies completions to their rails. It returns the numbers of completions, of rails and of ruins.
func (d *device) takeLocked(w *waiting, touched *[verbs.Batch]*rail, ends *[verbs.Batch]ruin) (n, rails, ruins int) {
	if d.closed {
		return 0, 0, 0
	}
	n, err := w.queue.Poll(d.found[:])
	if err != nil {
		return 0, 0, 0
	}
	var r *rail
	for i := range d.found[:n] {
		wc := &d.found[i]
		l := d.lane(int(wc.ID >> 48))
		if l == nil {
			continue
		}
		if l.rail != r {
			if r != nil {
				r.mu.Unlock()
			}
			r = l.rail
			r.mu.Lock()
			touched[rails] = r
			rails++
		}
		if was, cause := l.doneLocked(wc); was.Generation != 0 {
			ends[ruins] = ruin{l.rail.link, was, cause}
			ruins++
		}
	}
	if r != nil {
		r.mu.Unlock()
	}
	return n, rails, ruins
}

// ruin is a rail that went down while completions were taken.
type ruin struct {
	link  *link
	rail  transport.Rail
	cause *errs.Error
}

// arm makes the bell ring at the next completion, if one may come. Taking completions posts slices that have waited.
// Meanwhile somebody may have heard the ring while nothing was out: then it arms once more.
func (d *device) arm() {
	for rings := false; !rings; {
		d.pollMu.Lock()
		d.armLocked()
		d.pollMu.Unlock()
		d.take()
		d.pollMu.Lock()
		rings = d.armed || d.closed || d.flying.Load() <= 0
		d.pollMu.Unlock()
	}
}

func (d *device) armLocked() {
	if d.closed || d.armed || d.flying.Load() <= 0 {
		return
	}
	d.armed = true
	for _, w := range d.queues() {
		_ = w.queue.Arm() // of a lost device: its rails are down
	}
}

// expect follows each posting. Where nobody polls, it takes the completions that are there, and arms for the others.
func (d *device) expect() {
	if d.t.polling.Load() && !d.unwatched.Load() {
		return
	}
	if d.take(); d.flying.Load() > 0 {
		d.arm()
	}
}

// hear makes the device's goroutine hear the bells, or not. It hears a bell that rang meanwhile: the kernel reports the
// state of a descriptor that enters an epoll, and may keep silent about one that is only modified.
func (d *device) hear(hears bool) {
	d.pollMu.Lock()
	defer d.pollMu.Unlock()
	if d.closed || d.deaf == !hears || !hears && d.unwatched.Load() { // a sleeper has just left it to the goroutine
		return
	}
	d.deaf = !hears
	event, change := unix.EpollEvent{Events: unix.EPOLLIN}, unix.EPOLL_CTL_DEL
	if hears {
		change = unix.EPOLL_CTL_ADD
	}
	for i := range d.bells {
		b := &d.bells[i]
		_ = unix.EpollCtl(b.epoll, change, int(b.fd), &event) // both are open
	}
}

// answer quiets the bell and takes all completions that made it ring.
func (d *device) answer(b *bell) {
	d.pollMu.Lock()
	if !d.closed && b.Drain(len(d.queues())) > 0 {
		d.armed = false
	}
	d.pollMu.Unlock()
	d.take()
}

// listen takes completions whenever a bell rings, until the device is closed.
func (d *device) listen(b *bell) {
	raw, err := b.rings.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Read(func(uintptr) bool {
		if !d.leaves(b) {
			d.answer(b)
			if !d.t.polling.Load() || d.unwatched.Load() {
				d.arm()
			}
		}
		return d.t.life.Closed()
	})
}

// leaves reports whether a ring is left to sleepers, and notes it for one that does not see it.
func (d *device) leaves(b *bell) bool {
	if d.unwatched.Load() || d.t.watchers.Load() == 0 {
		return false
	}
	b.missed.Store(true)
	return d.t.watchers.Load() > 0
}

// Poll implements transport.Poller.
func (t *Transport) Poll(budget int) (done int) {
	t.polling.Store(true)
	for _, d := range t.nics() {
		if done < budget {
			done += d.take()
		}
	}
	return done
}

// Arm implements transport.Poller.
func (t *Transport) Arm() {
	t.polling.Store(false)
	hears := t.watchers.Load() == 0 // else the last sleeper's Arm does it
	for _, d := range t.nics() {
		if hears {
			d.hear(true)
		}
		d.arm()
	}
}

// Watch implements transport.Parker. Completion queues have the answers of all classes. Where nothing is out on any
// device, the next slice may be on any.
func (t *Transport) Watch(list []transport.Watch, _ transport.Classes) []transport.Watch {
	first := t.watchers.Add(1) == 1
	nics, before, busy := t.nics(), len(list), -1
	for i, d := range nics {
		if first {
			d.unwatched.Store(false)
		}
		if d.arm(); busy < 0 && d.flying.Load() > 0 {
			busy = i
		}
	}
	for i, d := range nics {
		if d.given.Load() || busy >= 0 && i != busy && d.rests() {
			continue
		}
		if len(list)-before+len(d.bells) > transport.WatchesMost {
			d.unwatched.Store(true)
			d.hear(true)
			continue
		}
		d.hear(false) // but not where an earlier sleeper does not know its bells
		for k := range d.bells {
			list = append(list, transport.Watch{Fd: d.bells[k].fd, Events: unix.POLLIN, Tag: uint64(i)<<8 | uint64(k)})
		}
	}
	if len(list) == before {
		t.watchers.Add(-1) // Woken is called for those that got watches
	}
	return list
}

// rests reports whether a device has nothing out, and leaves it to its goroutine then. A posting notes its requests
// before it reads unwatched. No device may rest that some sleeper watches already: nobody would hear it when that one
// leaves.
func (d *device) rests() bool {
	d.pollMu.Lock()
	defer d.pollMu.Unlock()
	if d.deaf {
		return false
	}
	unwatched := d.unwatched.Swap(true)
	flies := d.flying.Load() > 0
	d.unwatched.Store(unwatched || !flies)
	return !flies
}

// Woken implements transport.Parker.
func (t *Transport) Woken(list []transport.Watch) {
	t.watchers.Add(-1)
	t.polling.Store(true)
	for i := range list {
		d := t.nics()[list[i].Tag>>8]
		b := &d.bells[list[i].Tag&0xff]
		if missed := b.missed.Swap(false); missed || list[i].Ready != 0 {
			d.answer(b)
		}
	}
}

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
