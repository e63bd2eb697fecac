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
//	waiter      Poll: take        Arm: arm, take again, so that the bell rings for the goroutine
//	sleeper     Watch: arm, take again ── ppoll on the bell ── Woken: quiet the bell, take
//
// A queue that is armed rings once. After arming comes another look, for a completion that came before.

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
	d.pollMu.Lock()
	defer d.pollMu.Unlock()
	return d.takeAllLocked()
}

func (d *device) takeAllLocked() (n int) {
	if d.closed {
		return 0
	}
	for _, w := range d.queues() {
		for {
			found := d.takeLocked(w)
			n += found
			if found < verbs.Batch {
				break
			}
		}
	}
	return n
}

// takeLocked takes one crossing's worth of completions of a queue.
func (d *device) takeLocked(w *waiting) int {
	n, err := w.queue.Poll(d.found[:])
	if err != nil || n == 0 {
		return 0
	}
	var r *rail
	var ends []ruin
	for i := range d.found[:n] {
		wc := &d.found[i]
		l := d.lane(int(wc.ID >> 48))
		if l == nil {
			continue
		}
		if l.rail != r {
			if r != nil {
				r.pumpLocked()
				r.unlock()
			}
			r = l.rail
			r.mu.Lock()
		}
		if was, cause := l.doneLocked(wc); was.Generation != 0 {
			ends = append(ends, ruin{was, cause})
		}
	}
	if r != nil {
		r.pumpLocked()
		r.unlock()
	}
	for _, e := range ends {
		d.t.sink.RailDown(e.rail, e.cause)
	}
	return n
}

// ruin is a rail that went down while completions were taken.
type ruin struct {
	rail  transport.Rail
	cause *errs.Error
}

// arm makes the bell ring at the next completion.
func (d *device) arm() {
	d.pollMu.Lock()
	defer d.pollMu.Unlock()
	if d.closed {
		return
	}
	for _, w := range d.queues() {
		_ = w.queue.Arm() // of a lost device: its rails are down
	}
	d.takeAllLocked()
}

// answer quiets the bell and takes all completions that made it ring.
func (d *device) answer() {
	d.pollMu.Lock()
	defer d.pollMu.Unlock()
	if !d.closed {
		d.bell.Drain()
		d.takeAllLocked()
	}
}

// listen takes completions whenever the bell rings, until the device is closed.
func (d *device) listen() {
	raw, err := d.rings.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Read(func(uintptr) bool {
		if d.t.watchers.Load() == 0 {
			d.answer()
			if !d.t.polling.Load() {
				d.arm()
			}
		}
		return d.t.life.Closed()
	})
}

// Poll implements transport.Poller.
func (t *Transport) Poll(budget int) (done int) {
	t.polling.Store(true)
	for _, d := range t.devices {
		if done < budget {
			done += d.take()
		}
	}
	return done
}

// Arm implements transport.Poller.
func (t *Transport) Arm() {
	t.polling.Store(false)
	for _, d := range t.devices {
		d.arm()
	}
}

// Watch implements transport.Parker.
func (t *Transport) Watch(list []transport.Watch) []transport.Watch {
	t.watchers.Add(1)
	before := len(list)
	for i, d := range t.devices {
		d.arm()
		if len(list)-before < transport.WatchesMost {
			list = append(list, transport.Watch{Fd: int32(d.bell.Fd()), Events: unix.POLLIN, Tag: uint64(i)})
		}
	}
	return list
}

// Woken implements transport.Parker.
func (t *Transport) Woken(list []transport.Watch) {
	t.watchers.Add(-1)
	t.polling.Store(true)
	for i := range list {
		t.devices[list[i].Tag].answer()
	}
}

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
