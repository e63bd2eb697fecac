package access

import (
	"sync"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/transports/kit"
)

// watcher reports when processes end: one goroutine sleeps on the pidfds of all peers. It starts with the first of
// them.
type watcher struct {
	mu      sync.Mutex
	epfd    int
	stopFd  int
	ended   map[int]watched // by pidfd
	serial  int32
	closed  bool
	running sync.WaitGroup
}

// watched is a process. An event names it by its pidfd and its serial number: when it is handled, the process may be
// forgotten, its pidfd closed, and the descriptor's number that of a process that lives.
type watched struct {
	serial int32
	ended  func()
}

// add calls ended, once, from the watcher's goroutine when the process has ended, unless remove comes before.
func (w *watcher) add(pidfd int, ended func()) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.closed:
		return kit.Closed("access.watch")
	case w.ended == nil:
		if err := w.startLocked(); err != nil {
			return errs.Wrap(errs.Internal, "access.watch", err).WithScope(errs.ScopeTransport, errs.SideLocal)
		}
	}
	w.serial++
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: int32(pidfd), Pad: w.serial}
	if err := unix.EpollCtl(w.epfd, unix.EPOLL_CTL_ADD, pidfd, &event); err != nil {
		return errs.Wrap(errs.Internal, "access.watch", err).WithScope(errs.ScopeTransport, errs.SideLocal)
	}
	w.ended[pidfd] = watched{w.serial, ended}
	return nil
}

func (w *watcher) startLocked() (err error) {
	w.stopFd = -1
	if w.epfd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	if w.stopFd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err == nil {
		err = unix.EpollCtl(w.epfd, unix.EPOLL_CTL_ADD, w.stopFd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: -1})
	}
	if err != nil {
		w.release()
		return err
	}
	w.ended = map[int]watched{}
	w.running.Go(w.run)
	return nil
}

func (w *watcher) run() {
	var events [16]unix.EpollEvent
	for {
		n, err := unix.EpollWait(w.epfd, events[:], -1)
		if err == unix.EINTR {
			continue
		}
		for _, e := range events[:max(n, 0)] {
			if e.Fd < 0 {
				return
			}
			w.tell(e)
		}
	}
}

// tell handles the event of a process that has ended.
func (w *watcher) tell(e unix.EpollEvent) {
	w.mu.Lock()
	p, is := w.ended[int(e.Fd)]
	if is = is && p.serial == e.Pad; is {
		delete(w.ended, int(e.Fd))
	}
	w.mu.Unlock()
	if is {
		p.ended()
	}
}

// remove forgets a process. Its pidfd may be closed afterwards.
func (w *watcher) remove(pidfd int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended == nil || w.closed {
		return
	}
	delete(w.ended, pidfd)
	_ = unix.EpollCtl(w.epfd, unix.EPOLL_CTL_DEL, pidfd, nil) // gone already if it has told
}

// close stops the goroutine. From then on nothing is watched, and remove does nothing.
func (w *watcher) close() {
	w.mu.Lock()
	started := w.ended != nil
	w.closed = true
	w.mu.Unlock()
	if !started {
		return
	}
	one := [8]byte{1}
	_, _ = unix.Write(w.stopFd, one[:])
	w.running.Wait()
	w.release()
}

func (w *watcher) release() {
	_ = unix.Close(w.epfd)
	if w.stopFd >= 0 {
		_ = unix.Close(w.stopFd)
	}
}
