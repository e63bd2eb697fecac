package tcp

import (
	"context"
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/transports/kit"
)

// Close ends the transport; see the package doc for its order. It returns early only when ctx ends, with its error; the
// rest then goes on in the background.
func (t *Transport) Close(ctx context.Context) error {
	return t.life.Close(ctx, t.shutDown)
}

// shutDown waits for the links, then stops the workers, then closes the lanes of peers. Listeners come last: peers
// take a refused dial for the proof that nobody reads their lanes any more, as they take the answer of Serve.
func (t *Transport) shutDown() error {
	for number := range t.links.All() {
		t.Detach(number)
	}
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
			l.broke(kit.Closed("tcp.close"))
			l.closeLane()
		}
	}
	t.quiet.Store(true)
	t.closeSockets()
	return nil
}

func (t *Transport) closeSockets() {
	t.sweeper.Stop()
	t.pulse.timer.Stop()
	for _, l := range t.listeners {
		l.close()
	}
	for _, fd := range [...]int{t.epfd, t.bulkFd, t.stopFd} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}
