package file

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/transports/kit"
)

// doing is the opening or the closing of a file. Both wait for the file system, which may hang: FUSE, or NFS behind its
// server's end. So each is done apart, by a goroutine that ends with it, and no caller waits longer than it wants to.
// At most doingMost of a file system are in the kernel at once; the others wait for their turn, and an opening gives up
// with its caller. Close waits for all of them, and names them.
type doing struct {
	what, path string
	at         fileSystem
}

const (
	// importMost bounds the opening of a file that was imported, also again: its file system has answered OpenFile
	importMost = 5 * time.Second
	// closeSoon is how long Detach and Forget wait for their closings: the file system may be unmounted right behind
	closeSoon = 100 * time.Millisecond
)

// apart carries out an opening and returns its error, or Timeout if ctx ends before; undo comes behind it then.
func (t *base) apart(ctx context.Context, d *doing, open func() error, undo func()) error {
	if !t.enterRoom(ctx, d.at) {
		return t.late(ctx, d, errs.SideLocal, fmt.Sprintf("%d others wait for its file system", doingMost))
	}
	if !t.begins(d) {
		t.leaveRoom(d.at)
		return kit.Closed(t.name + "." + d.what)
	}
	var settled atomic.Bool
	done := make(chan error, 1)
	go func() {
		defer t.ends(d)
		defer t.leaveRoom(d.at)
		err := open()
		if settled.CompareAndSwap(false, true) {
			done <- err
		} else if err == nil {
			undo()
		}
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	if settled.CompareAndSwap(false, true) {
		return t.late(ctx, d, errs.SideRemote, "the file system has not answered")
	}
	return <-done
}

// late makes the error of an opening that has not ended with its ctx.
func (t *base) late(ctx context.Context, d *doing, side errs.Side, why string) error {
	code := errs.Timeout
	if ctx.Err() == context.Canceled {
		code = errs.Canceled
	}
	return errs.New(code, t.name+"."+d.what, "%s: %s (%v)", d.path, why, ctx.Err()).
		WithScope(errs.ScopeSlice, side).WithHint("look at the disk, its server, and the kernel's log")
}

// begins notes an opening. False: the transport closes.
func (t *base) begins(d *doing) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.life.Closed() {
		return false
	}
	t.doing[d] = struct{}{}
	return true
}

func (t *base) ends(d *doing) {
	t.mu.Lock()
	delete(t.doing, d)
	t.changed.Broadcast()
	t.mu.Unlock()
}

// closedAlready is the end of closing nothing.
var closedAlready = func() chan struct{} {
	done := make(chan struct{})
	close(done)
	return done
}()

// closeAll ends the handle, and then the descriptors that it stands for; done is closed behind that. The caller holds
// no lock.
func (t *base) closeAll(e openEnds) (done chan struct{}) {
	if e.plain < 0 && e.straight < 0 && e.handle == 0 {
		return closedAlready
	}
	done = make(chan struct{})
	d := &doing{"close", e.path, e.at}
	t.mu.Lock()
	t.doing[d] = struct{}{}
	t.mu.Unlock()
	go func() {
		defer close(done)
		defer t.ends(d)
		t.enterRoom(context.Background(), d.at) // without a limit: only Close waits for all closings
		defer t.leaveRoom(d.at)
		if e.handle != 0 {
			t.mover.drop(e.handle)
		}
		e.closeFiles()
	}()
	return done
}

// closeSoonAll is closeAll of several, and waits for them for a moment.
func (t *base) closeSoonAll(list ...openEnds) {
	if len(list) == 0 {
		return
	}
	late := time.NewTimer(closeSoon)
	defer late.Stop()
	for i, e := range list {
		select {
		case <-t.closeAll(e):
		case <-late.C:
			for _, e := range list[i+1:] {
				t.closeAll(e)
			}
			return
		}
	}
}
