package file

import (
	"context"
	"fmt"
	"sync"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// Buffered is the transport buf-io: preadv2 and pwritev2 through the page cache, by threads of its own and by
// waiters. All methods may be called from any goroutine.
type Buffered struct{ cached }

var (
	_ transport.Factory   = BufferedFactory{}
	_ transport.Transport = (*Buffered)(nil)
	_ transport.Filer     = (*Buffered)(nil)
	_ transport.Poller    = (*Buffered)(nil)
	_ transport.Inliner   = (*Buffered)(nil)
	_ transport.Explainer = (*Buffered)(nil)
)

// BufferedName is the transport's name in settings, metrics and errors.
const BufferedName = "buf-io"

// BufferedFactory makes buf-io transports; see transport.Factory.
type BufferedFactory struct{}

// Name returns "buf-io".
func (BufferedFactory) Name() string { return BufferedName }

// Settings returns the struct with the keys as tags; see transport.Configured.
func (BufferedFactory) Settings() any { return Settings{} }

// Check returns nil: every Linux has a page cache.
func (BufferedFactory) Check() error { return nil }

// Open starts the threads. config is Settings, *Settings or nil.
func (BufferedFactory) Open(_ context.Context, config any, host transport.Host,
	sink transport.Sink) (transport.Transport, error) {
	s, err := settled(config, BufferedName)
	if err != nil {
		return nil, err
	}
	t := newBase(BufferedName, s, host, sink)
	p := newPool(t, s.Workers)
	t.mover = p
	p.start()
	return &Buffered{cached{t}}, nil
}

// pool is the mover of buf-io: workers take slices from the queues, HIGH first.
type pool struct {
	t        *base
	workers  int
	work     *sync.Cond // of t.mu: there is something to do
	sleeping int        // workers in work.Wait; guarded by t.mu
	running  sync.WaitGroup
}

func newPool(t *base, workers int) *pool {
	return &pool{t: t, workers: workers, work: sync.NewCond(&t.mu)}
}

func (p *pool) start() {
	for range p.workers {
		p.running.Go((&worker{pool: p, hand: newHand()}).run)
	}
}

func (p *pool) kick() {
	if p.t.stop {
		p.work.Broadcast()
		return
	}
	for range min(p.t.queue.Len(), p.sleeping) {
		p.work.Signal()
	}
}

func (p *pool) recall(*item)            {} // a worker looks at item.withdrawn before each of its system calls
func (p *pool) straight() bool          { return false }
func (p *pool) suits(*file) *errs.Error { return nil }
func (p *pool) drop(uintptr)            {}

// quick implements mover: nobody knows before whether the page cache has the bytes.
func (p *pool) quick(f *file, op transport.Op) bool { return f.mayBeQuick(op) }

func (p *pool) adopt(int, string) (uintptr, *errs.Error) { return 0, nil }

func (p *pool) describe() string      { return fmt.Sprintf("%d threads through the page cache", p.workers) }
func (p *pool) wait()                 { p.running.Wait() }
func (p *pool) bunch(waiting int) int { return min(handful, max(1, waiting/p.workers)) }

// bunchBytes bounds the slices that a worker takes at once. Completions of one bunch go to the core together, which
// costs less, but a small slice must not wait for many others.
const bunchBytes = 128 << 10

// worker is one thread of the pool.
type worker struct {
	*pool
	hand  *hand
	items [handful]*item
	carrier
}

func (w *worker) run() {
	t := w.t
	t.mu.Lock()
	for {
		n := w.take()
		if n == 0 {
			if t.stop {
				t.mu.Unlock()
				return
			}
			w.sleeping++
			w.work.Wait()
			w.sleeping--
			continue
		}
		t.mu.Unlock()
		for _, it := range w.items[:n] {
			w.carry(t, it, 0)
		}
		t.finish(w.items[:n], w.hand)
		t.mu.Lock()
	}
}

// take takes the head of the highest class that has one, and its neighbours while they are small. The caller holds
// t.mu.
func (w *worker) take() (n int) {
	t := w.t
	for c := range kit.Classes {
		list := t.queue.List(c)
		most, bytes := w.bunch(list.Len()), uint64(0)
		for n < most && bytes < bunchBytes {
			it := list.First()
			if it == nil {
				break
			}
			if !t.openable(it) {
				continue
			}
			t.unqueue(it)
			it.state = running
			w.items[n] = it
			bytes += it.slice.Length
			n++
		}
		if n > 0 {
			return n
		}
	}
	return 0
}
