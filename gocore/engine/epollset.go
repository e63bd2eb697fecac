package engine

import (
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/transport"
)

// epollSet is a waiter's epoll, with its signal and the bells of transports (transport.Exclusive). A bell that rings
// wakes the waiter if it sleeps here, and nobody else.
type epollSet struct {
	epoll  int
	hung   map[int32]bell
	events []unix.EpollEvent // room for all of them: one that is left behind would be heard by nobody
}

// bell is one that hangs in an epoll set.
type bell struct {
	of  transport.Exclusive
	tag uint64
}

// epollSetsMost bounds the waiters with one: each makes a ring some 100 ns longer, also while nobody sleeps in it.
// Others sleep in ppoll on the bells, and are woken beside the transport's goroutine.
const epollSetsMost = 8

// newEpollSet returns one with nothing but the waiter's signal, or nil without a descriptor for it.
func newEpollSet(s *signal) *epollSet {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil
	}
	event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(s.fd)}
	if unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, s.fd, &event) != nil {
		_ = unix.Close(epoll)
		return nil
	}
	return &epollSet{epoll: epoll, hung: map[int32]bell{}, events: make([]unix.EpollEvent, 1)}
}

func (b *epollSet) close() { _ = unix.Close(b.epoll) }

// hang hangs the bells of a transport up, marks those that hang, and takes down all others of that transport.
func (e *Engine) hang(w *waiter, r transport.Exclusive, bells []transport.Watch) {
	if w.bells == nil {
		if len(bells) == 0 || e.waiters.epollSets.Load() >= epollSetsMost {
			return
		}
		if w.bells = newEpollSet(w.signal); w.bells == nil {
			return
		}
		e.waiters.epollSets.Add(1)
	}
	w.bells.hang(r, bells)
}

func (b *epollSet) hang(r transport.Exclusive, bells []transport.Watch) {
	here := 0
	for i := range bells {
		w := &bells[i]
		want := bell{r, w.Tag}
		if w.Hangs = b.hung[w.Fd] == want || r.Hang(b.epoll, *w) == nil; w.Hangs {
			b.hung[w.Fd] = want
			here++
		}
	}
	if here < len(b.hung) {
		b.takeDown(r, bells)
	}
	if len(b.events) <= len(b.hung) {
		b.events = make([]unix.EpollEvent, len(b.hung)+1)
	}
}

// takeDown removes the bells of a transport that are not among these.
func (b *epollSet) takeDown(r transport.Exclusive, bells []transport.Watch) {
	for fd, hung := range b.hung {
		kept := hung.of != r
		for i := range bells {
			kept = kept || bells[i].Hangs && bells[i].Fd == fd
		}
		if !kept {
			_ = unix.EpollCtl(b.epoll, unix.EPOLL_CTL_DEL, int(fd), nil) // it may be closed, which removed it
			delete(b.hung, fd)
		}
	}
}

// sleep sleeps until a bell rings or the signal is raised, or for some milliseconds, and notes the bells that rang.
func (b *epollSet) sleep(w *waiter, milliseconds int) {
	n, err := unix.EpollWait(b.epoll, b.events, milliseconds)
	if err != nil {
		return
	}
	for i := range b.events[:n] {
		fd := b.events[i].Fd
		if fd == int32(w.signal.fd) {
			w.signal.clear()
			continue
		}
		for k := range w.watches {
			if w.watches[k].Hangs && w.watches[k].Fd == fd {
				w.watches[k].Ready = unix.POLLIN
			}
		}
	}
}
