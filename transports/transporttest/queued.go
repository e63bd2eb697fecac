package transporttest

import (
	"context"
	"encoding/binary"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/transport"
)

// Queued makes transports that keep the completions of an inner one in a queue with a descriptor. A NIC's completion
// queue with its event channel does the same. They are transport.Parkers; of the inner one's optional interfaces they
// have none.
//
//	inner transport --> queue, its descriptor becomes readable --Poll, Woken--> sink
//	                          '--while nobody polls or sleeps on it: the own goroutine--> sink
type Queued struct{ transport.Factory }

// Open opens the inner transport and starts the goroutine.
func (q Queued) Open(ctx context.Context, config any, host transport.Host, sink transport.Sink) (transport.Transport,
	error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	t := &queued{Sink: sink, fd: fd}
	t.changed.L = &t.mu
	if t.Transport, err = q.Factory.Open(ctx, config, host, t); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	t.running.Go(t.work)
	return t, nil
}

// queued is a transport of Queued, and the inner one's sink.
type queued struct {
	transport.Transport
	transport.Sink
	fd      int
	running sync.WaitGroup

	mu       sync.Mutex
	changed  sync.Cond
	queue    []transport.Completion
	spare    []transport.Completion
	expected int  // slices accepted and not completed
	polling  bool // since the last Arm somebody has polled
	sleepers int  // between their Watch and their Woken
	stop     bool
}

var _ transport.Parker = (*queued)(nil)

// Submit counts the slices first: they may complete before it returns.
func (t *queued) Submit(list []*transport.Slice) int {
	t.expect(len(list))
	n := t.Transport.Submit(list)
	t.expect(n - len(list))
	return n
}

func (t *queued) expect(n int) {
	t.mu.Lock()
	t.expected += n
	t.mu.Unlock()
}

// Complete implements transport.Sink for the inner transport.
func (t *queued) Complete(list []transport.Completion) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.queue = append(t.queue, list...)
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	_, _ = unix.Write(t.fd, one[:])
	t.changed.Signal()
}

// drain hands over the queue. Completions that come meanwhile are another look's.
func (t *queued) drain() int {
	t.mu.Lock()
	var count [8]byte
	_, _ = unix.Read(t.fd, count[:]) // EAGAIN: nothing has come
	list := t.queue
	t.queue, t.spare = t.spare[:0], nil
	t.expected -= len(list)
	t.mu.Unlock()
	if len(list) > 0 {
		t.Sink.Complete(list)
	}
	t.mu.Lock()
	t.spare = list
	t.mu.Unlock()
	return len(list)
}

// Poll implements transport.Poller.
func (t *queued) Poll(int, transport.Classes) int {
	t.mu.Lock()
	t.polling = true
	t.mu.Unlock()
	return t.drain()
}

// Arm implements transport.Poller.
func (t *queued) Arm() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.polling = false
	t.changed.Signal()
}

// Watch implements transport.Parker.
func (t *queued) Watch(list []transport.Watch, _ transport.Classes) []transport.Watch {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.expected == 0 {
		return list
	}
	t.sleepers++
	return append(list, transport.Watch{Fd: int32(t.fd), Events: unix.POLLIN})
}

// Woken implements transport.Parker.
func (t *queued) Woken(list []transport.Watch) {
	if list[0].Ready != 0 {
		t.drain()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sleepers--
	t.changed.Signal()
}

// work hands over completions that nobody else looks after.
func (t *queued) work() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for !t.stop {
		if t.polling || t.sleepers > 0 || len(t.queue) == 0 {
			t.changed.Wait()
			continue
		}
		t.mu.Unlock()
		t.drain()
		t.mu.Lock()
	}
}

// Close closes the inner transport and hands over the last completions.
func (t *queued) Close(ctx context.Context) error {
	err := t.Transport.Close(ctx)
	t.mu.Lock()
	ended := t.stop
	t.stop = true
	t.changed.Broadcast()
	t.mu.Unlock()
	t.running.Wait()
	if t.drain(); !ended {
		_ = unix.Close(t.fd)
	}
	return err
}
