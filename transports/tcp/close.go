package tcp

import (
	"context"
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// Close ends the transport; see the package doc for its order. It returns early only when ctx ends, with its error; the
// rest then goes on in the background.
func (t *Transport) Close(ctx context.Context) error {
	t.closeOnce.Do(func() {
		t.linkMu.Lock()
		t.closed.Store(true)
		t.linkMu.Unlock()
		for number := range t.links.All() {
			t.Detach(number)
		}
		t.ended = make(chan struct{})
		go t.end()
	})
	select {
	case <-t.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// end waits for the links, then stops the workers, then closes what is left. Listeners come last: peers take a refused
// dial for the proof that nobody reads their lanes any more.
func (t *Transport) end() {
	defer close(t.ended)
	t.cancel() // questions of responders
	t.running.Wait()
	t.spareMu.Lock()
	t.ending = true
	t.spareMu.Unlock()
	t.tasks.Wait()
	_, _ = unix.Write(t.stopFd, binary.NativeEndian.AppendUint64(nil, 1))
	t.workers.Wait()
	t.watch.close()
	t.sayGoodbye()
	for _, c := range t.conns.All() {
		if l, is := c.lane.(*responderLane); is {
			l.broke(closedError("tcp.close"))
			l.close()
		}
	}
	t.closeSockets()
}

func (t *Transport) closeSockets() {
	for _, l := range t.listeners {
		_ = unix.Close(l.fd)
		if l.reserve >= 0 {
			_ = unix.Close(l.reserve)
		}
	}
	for _, fd := range [...]int{t.epfd, t.bulkFd, t.stopFd} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}
