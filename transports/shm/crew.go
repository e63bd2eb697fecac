package shm

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/host/hazard"
	"github.com/tent-engine/tent/transports/host/vm"
)

// copier is the state with which a goroutine copies: workers have one each, callers borrow one.
type copier struct {
	hint   uint32 // where to look for a hazard slot first
	bite   bite
	failed [biteSlices]*errs.Error // of the bite's slices
	ends   ends
	vector *vm.Vector
	next   *copier
}

func newCopier(hint uint32) *copier {
	return &copier{hint: hint, vector: vm.New(pieceBytes)}
}

// crew is the copy workers, asleep unless there is something that no caller copies, and spare copiers for callers.
type crew struct {
	workers int32
	awake   atomic.Int32 // workers that are, or that were sent for
	wake    chan struct{}
	quit    chan struct{}
	running sync.WaitGroup

	mu    sync.Mutex
	spare *copier
}

func (c *crew) start(t *Transport, workers int) {
	c.workers, c.wake, c.quit = int32(workers), make(chan struct{}, workers), make(chan struct{})
	for i := range workers {
		c.running.Go(func() { t.work(newCopier(uint32(i))) })
	}
}

// stop ends the workers and reports whether all have ended in time: the kernel may hold one up in a copy.
func (c *crew) stop(limit time.Duration) bool {
	close(c.quit)
	ended := make(chan struct{})
	go func() {
		c.running.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return true
	case <-time.After(limit):
		return false
	}
}

// stuck is the error of copies that have not ended. They end by themselves later, if the kernel lets them go on.
func (q *queue) stuck() *errs.Error {
	q.mu.Lock()
	defer q.mu.Unlock()
	var copies []string
	for i := range q.entries {
		if e := &q.entries[i]; e.copiers > 0 {
			copies = append(copies, fmt.Sprintf("%s of %d bytes at %#x", e.slice.Op, e.slice.Length, e.slice.Local))
		}
	}
	return errs.New(errs.Timeout, "shm.close", "copies have not ended: %s", strings.Join(copies, "; ")).
		WithScope(errs.ScopeTransport, errs.SideLocal).
		WithHint("their memory must stay; look at the file system or the driver that has its pages")
}

// borrow gives a caller a copier; there are as many as have been needed at once.
func (t *Transport) borrow() *copier {
	t.crew.mu.Lock()
	c := t.crew.spare
	if c != nil {
		t.crew.spare = c.next
	}
	t.crew.mu.Unlock()
	if c == nil {
		c = newCopier(hazard.Hint())
	}
	return c
}

func (t *Transport) give(c *copier) {
	t.crew.mu.Lock()
	c.next, t.crew.spare = t.crew.spare, c
	t.crew.mu.Unlock()
}

// work is a worker's life. It sleeps when nothing is queued; a goroutine that queues something looks at awake
// afterwards, the worker at the queue after it has left awake, so one of the two sees the other.
func (t *Transport) work(c *copier) {
	for {
		select {
		case <-t.crew.quit:
			return
		case <-t.crew.wake:
		}
		for {
			t.serve(c, biteParts, 1<<62)
			if t.queue.classes.Waiting() != 0 {
				continue
			}
			if n := t.crew.awake.Add(-1); t.queue.classes.Waiting() == 0 || !t.crew.awake.CompareAndSwap(n, n+1) {
				break // nothing to do, or somebody else was sent for
			}
		}
	}
}

// rouse wakes workers for the queued slices: one, and one more for each bytesEach that wait; one less while a waiter
// copies.
func (t *Transport) rouse() {
	if t.queue.classes.Waiting() == 0 {
		return
	}
	want := min(t.crew.workers, 1+int32(t.queue.queued.Load()/bytesEach))
	if t.polling.Load() {
		want--
	}
	for n := t.crew.awake.Load(); n < want; n = t.crew.awake.Load() {
		if t.crew.awake.CompareAndSwap(n, n+1) {
			t.crew.wake <- struct{}{} // has room: it holds one for each worker
		}
	}
}

// Poll copies up to budget pieces of queued slices, the most urgent first, and returns how many it did. Workers that
// are asleep stay so until Arm, unless much is queued.
func (t *Transport) Poll(budget int, _ transport.Classes) int {
	if !t.polling.Load() {
		t.polling.Store(true)
	}
	if t.queue.classes.Waiting() == 0 {
		return 0
	}
	c := t.borrow()
	n := t.serve(c, budget, 1<<62)
	t.give(c)
	return n
}

// Arm leaves the rest of the queue to the workers.
func (t *Transport) Arm() {
	t.polling.Store(false)
	t.rouse()
}

// serve copies queued slices until the queue is empty, or that number of pieces or bytes was copied. It returns the
// pieces. Completions are handed over before the next piece is copied: an answer does not wait for others' bytes.
func (t *Transport) serve(c *copier, pieces int, bytes uint64) (done int) {
	q := &t.queue
	c.bite.n = 0
	for {
		q.mu.Lock()
		if c.bite.n > 0 {
			q.finishLocked(&c.bite, c.failed[:], &c.ends)
			c.bite.n = 0
		}
		more := done < pieces && bytes > 0 && c.ends.n == 0 && q.takeLocked(&c.bite)
		q.mu.Unlock()
		if c.ends.n > 0 || len(c.ends.ready) > 0 {
			c.ends.deliver(t.sink)
			if !more {
				continue // nothing is held while the core steps
			}
		}
		if !more {
			return done
		}
		t.carryOut(c)
		done++
		bytes -= min(bytes, c.bite.bytes)
	}
}
