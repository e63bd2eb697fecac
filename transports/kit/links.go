package kit

import (
	"iter"
	"sync/atomic"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// Links is a transport's table of attached peers. The zero value is empty. All methods may be called from any
// goroutine.
type Links[T any] struct {
	slots Slots[transport.Link, T]
	stale atomic.Uint64
}

// Attach calls build with the number of a new link and enters its result. The error is the transport's op.
func (l *Links[T]) Attach(op string, build func(transport.Link) *T) (transport.Link, error) {
	link := l.slots.Insert(build)
	if link == 0 {
		return 0, errs.New(errs.TooManyRequests, op, "%d links are attached, which is the limit", SlotsMax).
			WithScope(errs.ScopeTransport, errs.SideLocal)
	}
	return link, nil
}

// Lookup returns the state of a link. It returns nil for a link that has ended, and counts that: each method of the
// contract that takes a Link or a Rail calls it once.
func (l *Links[T]) Lookup(link transport.Link) *T {
	if state := l.slots.Lookup(link); state != nil {
		return state
	}
	l.stale.Add(1)
	return nil
}

// Peek is Lookup without counting, for reports about a link: one that comes after its end is no mistake.
func (l *Links[T]) Peek(link transport.Link) *T { return l.slots.Lookup(link) }

// Detach ends a link and returns its state. It returns nil, and counts that, when the link has ended before.
func (l *Links[T]) Detach(link transport.Link) *T {
	if state := l.slots.Delete(link); state != nil {
		return state
	}
	l.stale.Add(1)
	return nil
}

// Stale implements transport.Transport.
func (l *Links[T]) Stale() uint64 { return l.stale.Load() }

// Len returns the number of links.
func (l *Links[T]) Len() int { return l.slots.Len() }

// All yields the links that are attached.
func (l *Links[T]) All() iter.Seq2[transport.Link, *T] { return l.slots.All() }
