package rdma

import (
	"errors"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/rdma/verbs"
)

// Completions are found by one goroutine a device, which sleeps on the device's bell, or by waiters.
//
//	goroutine   bell rings ── take all, arm, take again ── sleep
//	waiter      Poll: take        Arm: arm, take again, so that the bell rings for the goroutine
//	sleeper     Watch: arm, take again ── sleep with the bell ── Woken: quiet a bell that rang, take
//
// A queue that is armed rings once, and is armed again only after that: to arm is a system call or a write to the NIC.
// After arming comes another look, for a completion that came before.
//
// A device with nothing out is not armed. Each posting looks at once, and arms for the requests that are still out
// (expect). It leaves both to a waiter that polls, which has yet to call Arm. Each side writes before it reads: a
// posting the number of requests before it reads polling, Arm the other way round.
//
// The bell hangs in the epolls of sleepers and in one of the goroutine, which is the last (transport.Exclusive). The
// kernel wakes the first of them in which somebody sleeps. The goroutine is woken beside a sleeper that sleeps on the
// bell in another way, and each takes the completions that the other has left.

// batch is the news that a rail hands over once its mutex is free.
type batch struct {
	list   []transport.Completion
	landed []landed
	probes []probeEnd
}

// landed is a READ of the list that the device of its memory may not see yet.
type landed struct {
	at int
	in *mem.Landing
}

type probeEnd struct {
	done func(*errs.Error)
	err  *errs.Error
}

func (b *batch) deliver(sink transport.Sink) {
	b.flush()
	if len(b.list) > 0 {
		sink.Complete(b.list)
	}
	for _, p := range b.probes {
		p.done(p.err)
	}
}

// flush makes the bytes of READs visible to the devices of their memory, once for each memory. A flush that fails ends
// them with its error.
func (b *batch) flush() {
	for i, l := range b.landed {
		if slices.ContainsFunc(b.landed[:i], func(before landed) bool { return before.in == l.in }) {
			continue
		}
		err := l.in.Flush()
		if err == nil {
			continue
		}
		for _, same := range b.landed[i:] {
			if c := &b.list[same.at]; same.in == l.in && c.Err == nil {
				c.Bytes, c.Err = 0, errs.Wrap(errs.CodeOf(err), Name, err).WithScope(errs.ScopeSlice, errs.SideLocal)
			}
		}
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
	clear(b.landed)
	clear(b.probes)
	b.list, b.landed, b.probes = b.list[:0], b.landed[:0], b.probes[:0]
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
	if d.t.polling.Load() {
		return
	}
	if d.take(); d.flying.Load() > 0 {
		d.arm()
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
		d.answer(b)
		if !d.t.polling.Load() {
			d.arm()
		}
		return d.t.life.Closed()
	})
}

// Poll implements transport.Poller. Completion queues have the answers of all classes.
func (t *Transport) Poll(budget int, _ transport.Classes) (done int) {
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
	for _, d := range t.nics() {
		d.arm()
	}
}

// Watch implements transport.Parker. Completion queues have the answers of all classes. Bells beyond WatchesMost are
// left to the goroutines of their devices, as are those of a device that is lost: they may ring for good.
func (t *Transport) Watch(list []transport.Watch, _ transport.Classes) []transport.Watch {
	most := len(list) + transport.WatchesMost
	for i, d := range t.nics() {
		d.arm()
		for k := 0; k < len(d.bells) && len(list) < most && !d.lost.Load(); k++ {
			tag := d.born<<16 | uint64(i)<<8 | uint64(k)
			list = append(list, transport.Watch{Fd: d.bells[k].fd, Events: unix.POLLIN, Tag: tag})
		}
	}
	return list
}

// Hang implements transport.Exclusive. A bell that rang before is reported to both.
func (t *Transport) Hang(epoll int, bell transport.Watch) error {
	d, b := t.bellOf(bell.Tag)
	if d == nil {
		return unix.ENOENT
	}
	d.pollMu.Lock()
	defer d.pollMu.Unlock()
	if d.closed || d.lost.Load() {
		return unix.ENOENT
	}
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLEXCLUSIVE, Fd: b.fd}
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, int(b.fd), &event); err != nil {
		return err
	}
	err := b.enter(&event)
	if err != nil { // the user has no room for another entry: that of the waiter goes to the goroutine
		_ = unix.EpollCtl(epoll, unix.EPOLL_CTL_DEL, int(b.fd), nil)
		err = errors.Join(err, b.enter(&event))
	}
	return err
}

// enter makes the goroutine's entry the last one of the bell.
func (b *bell) enter(event *unix.EpollEvent) error {
	_ = unix.EpollCtl(b.epoll, unix.EPOLL_CTL_DEL, int(b.fd), nil)
	return unix.EpollCtl(b.epoll, unix.EPOLL_CTL_ADD, int(b.fd), event)
}

// bellOf finds the bell of a tag, nil if its device is another one by now.
func (t *Transport) bellOf(tag uint64) (*device, *bell) {
	d := t.nics()[tag>>8&0xff]
	if d.born != tag>>16 {
		return nil, nil
	}
	return d, &d.bells[tag&0xff]
}

// Woken implements transport.Parker.
func (t *Transport) Woken(list []transport.Watch) {
	t.polling.Store(true)
	for i := range list {
		if list[i].Ready == 0 {
			continue
		}
		if d, b := t.bellOf(list[i].Tag); d != nil {
			d.answer(b)
		}
	}
}
