package file

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/transports/kit"
)

// doing is the opening or the closing of a file. Both wait for the file system, which may hang: FUSE, or NFS behind its
// server's end. So each is done apart, by a goroutine that ends with it, and no caller waits longer than it wants to.
// At most doingMost are in the kernel at once; the others wait for their turn, and an opening gives up with its caller.
// Close waits for all of them, and names them.
type doing struct{ what, path string }

const (
	doingMost  = 256
	importMost = 5 * time.Second // the engine has opened the file a moment ago, so its file system has just answered
	// closeSoon is how long Detach and Forget wait for their closings: the file system may be unmounted right behind
	closeSoon = 100 * time.Millisecond
)

// apart carries out an opening and returns its error, or Timeout if ctx ends before; undo comes behind it then.
func (t *base) apart(ctx context.Context, d *doing, open func() error, undo func()) error {
	select {
	case t.room <- struct{}{}:
	case <-ctx.Done():
		return t.hangs(ctx, d)
	}
	if !t.begins(d) {
		<-t.room
		return kit.Closed(t.name + "." + d.what)
	}
	var settled atomic.Bool
	done := make(chan error, 1)
	go func() {
		defer t.ends(d)
		defer func() { <-t.room }()
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
		return t.hangs(ctx, d)
	}
	return <-done
}

func (t *base) hangs(ctx context.Context, d *doing) error {
	code := errs.Timeout
	if ctx.Err() == context.Canceled {
		code = errs.Canceled
	}
	return errs.New(code, t.name+"."+d.what, "%s: the file system has not answered (%v)", d.path, ctx.Err()).
		WithScope(errs.ScopeSlice, errs.SideRemote).WithHint("look at the disk, its server, and the kernel's log")
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

// closeAll ends the handle, and then the descriptors that it stands for; done is closed behind that. The caller holds
// no lock.
func (t *base) closeAll(e openEnds) (done chan struct{}) {
	done = make(chan struct{})
	if e.plain < 0 && e.straight < 0 && e.handle == 0 {
		close(done)
		return done
	}
	d := &doing{"close", e.path}
	t.mu.Lock()
	t.doing[d] = struct{}{}
	t.mu.Unlock()
	go func() {
		defer close(done)
		defer t.ends(d)
		t.room <- struct{}{}
		defer func() { <-t.room }()
		if e.handle != 0 {
			t.mover.drop(e.handle)
		}
		for _, fd := range [...]int32{e.straight, e.plain} {
			if fd >= 0 {
				_ = unix.Close(int(fd))
			}
		}
	}()
	return done
}

// closeSoonAll is closeAll of several, and waits for them for a moment.
func (t *base) closeSoonAll(list ...openEnds) {
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
