package file

import (
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// Sync implements transport.Filer. Calls that come while an fdatasync runs share the next one.
func (t *base) Sync(number transport.Link, key transport.RemoteKey, done func(*errs.Error)) {
	t.mu.Lock()
	l, f := t.links.Lookup(number), t.files.Lookup(key)
	switch {
	case t.life.Closed():
		t.mu.Unlock()
		done(kit.Closed(t.name + ".sync"))
		return
	case l == nil || f == nil || f.link != l:
		t.mu.Unlock()
		done(errUnknown)
		return
	}
	f.sync.next = append(f.sync.next, done)
	if !f.sync.busy {
		f.sync.busy = true
		t.hold(f)
		t.tasks.Go(func() { t.synchronise(f) })
	}
	t.mu.Unlock()
}

// synchronise runs fdatasync for a file until nobody asks any more. It is a goroutine of its own a file, so that a slow
// disk holds up nobody else.
func (t *base) synchronise(f *file) {
	for {
		t.mu.Lock()
		f.sync.now, f.sync.next = f.sync.next, f.sync.now[:0]
		if len(f.sync.now) == 0 {
			f.sync.busy = false
			fds := t.release(f)
			t.mu.Unlock()
			t.closeAll(fds)
			return
		}
		t.mu.Unlock()
		err := t.settle(f)
		for i, done := range f.sync.now {
			f.sync.now[i] = nil
			done(err)
		}
	}
}

// settle is fdatasync of a file of which none has failed, and fsync of its folder behind the first. The kernel reports
// a failed write-back once a descriptor, and one that is opened afterwards may not know of it. So a failure stays with
// each file of the inode that is open then.
func (t *base) settle(f *file) *errs.Error {
	f.inode.syncing.Lock() // until the failure is with all of them
	defer f.inode.syncing.Unlock()
	t.mu.Lock()
	failed := f.sync.failed
	t.mu.Unlock()
	if failed != nil {
		return failed
	}
	err, lost := t.fdatasync(f)
	if err == nil && !f.inode.named {
		if err = t.syncFolder(f.Path); err == nil {
			f.inode.named = true
		}
	}
	if !lost {
		return err
	}
	err.Cause += "; bytes that were written before may be lost"
	err.Hint = "close the file, open it anew, and write them again"
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, other := range t.files.All() {
		if other.inode == f.inode {
			other.sync.failed = err
		}
	}
	return err
}

// fdatasync returns why it failed, and whether that was a write-back.
func (t *base) fdatasync(f *file) (err *errs.Error, lost bool) {
	fd := int(f.plain.Load())
	if fd < 0 {
		// Its descriptors were given up meanwhile. A failed write shows on any descriptor of the file
		// that is opened afterwards, until somebody has seen it.
		var err error
		if fd, err = t.settings.open(f.Path, unix.O_RDONLY, 0); err != nil {
			return trouble(t.name+".sync", f.Path, err), false
		}
		defer unix.Close(fd)
		if replaced := f.recognise(fd, t.name+".sync"); replaced != nil {
			return replaced, false
		}
	}
	if err := retry(func() error { return unix.Fdatasync(fd) }); err != nil {
		return trouble(t.name+".sync", f.Path, err), true
	}
	return nil, false
}

// syncFolder makes the name of a file durable: fdatasync is about its bytes.
func (t *base) syncFolder(path string) *errs.Error {
	folder := filepath.Dir(path)
	fd, err := unix.Open(folder, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	switch err {
	case nil:
	case unix.EACCES: // it may be written and not read: the name is durable with the file system's next commit
		return nil
	case unix.ENOENT, unix.ENOTDIR: // the file was moved or removed
		return nil
	default:
		return trouble(t.name+".sync", folder, err)
	}
	defer unix.Close(fd)
	switch err = retry(func() error { return unix.Fsync(fd) }); err {
	case nil, unix.EINVAL, unix.EROFS: // a file system that cannot synchronise folders
		return nil
	}
	return trouble(t.name+".sync", folder, err)
}
