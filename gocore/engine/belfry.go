package engine

import (
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/transport"
)

// belfry is a waiter's epoll, with its signal and the bells of transports (transport.Ringer). A bell that rings wakes
// the waiter if it sleeps here, and nobody else.
type belfry struct {
	epoll  int
	hung   map[int32]bell
	events []unix.EpollEvent // room for all of them: one that is left behind would be heard by nobody
}

// bell is one that hangs in a belfry.
type bell struct {
	ringer transport.Ringer
	tag    uint64
}

// belfriesMost bounds the waiters with a belfry: each makes a ring some 50 ns longer. Others sleep in ppoll on the
// bells, and are woken beside the transport's goroutine.
const belfriesMost = 32

// newBelfry returns a belfry with nothing but the waiter's signal, or nil without a descriptor for it.
func newBelfry(s *signal) *belfry {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil
	}
	event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(s.fd)}
	if unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, s.fd, &event) != nil {
		_ = unix.Close(epoll)
		return nil
	}
	return &belfry{epoll: epoll, hung: map[int32]bell{}, events: make([]unix.EpollEvent, 1)}
}

func (b *belfry) close() { _ = unix.Close(b.epoll) }

// hang hangs the bells of a ringer up, marks those that hang, and takes down all others of that ringer.
func (e *Engine) hang(w *waiter, r transport.Ringer, bells []transport.Watch) {
	if w.bells == nil {
		if len(bells) == 0 || e.belfries.Load() >= belfriesMost {
			return
		}
		if w.bells = newBelfry(w.signal); w.bells == nil {
			return
		}
		e.belfries.Add(1)
	}
	w.bells.hang(r, bells)
}

func (b *belfry) hang(r transport.Ringer, bells []transport.Watch) {
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

// takeDown removes a ringer's bells that are not among these.
func (b *belfry) takeDown(r transport.Ringer, bells []transport.Watch) {
	for fd, hung := range b.hung {
		kept := hung.ringer != r
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
func (b *belfry) sleep(w *waiter, milliseconds int) {
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
