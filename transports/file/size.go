package file

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// resize empties the file and makes it as large as the spec wants, or says that it may not. A file that cannot become
// that large keeps its bytes.
func (c *card) resize(ctx context.Context, fd int, spec transport.FileSpec) error {
	kept := c.Size
	if spec.Truncate {
		kept = 0
	}
	switch {
	case spec.Size <= kept && !spec.Truncate:
		return nil
	case spec.Size > kept && !spec.Create:
		return errs.New(errs.InvalidArgument, "file.open", "%s has %d bytes, not %d", c.Path, kept, spec.Size).
			WithScope(errs.ScopeSlice, errs.SideRemote).WithHint("create=True grows it")
	}
	unlock, err := lockSize(ctx, fd)
	if err != nil {
		return trouble("file.open", c.Path, err)
	}
	defer unlock()
	if err := c.identify(fd); err != nil { // somebody else may have grown it while we waited
		return err
	}
	from := c.Size
	if spec.Truncate {
		if err = empty(fd, from, spec.Size); err == nil {
			c.Size = 0
		}
	}
	if err == nil && spec.Size > c.Size {
		if err = extend(fd, c.Size, spec.Size); err == nil {
			c.Size = spec.Size
		}
	}
	if err != nil {
		e := trouble("file.open", c.Path, err)
		e.Cause = fmt.Sprintf("%s cannot grow from %d to %d bytes: %v", c.Path, from, spec.Size, err)
		if spec.Size == 0 {
			e.Cause = fmt.Sprintf("%s cannot be emptied: %v", c.Path, err)
		}
		return e
	}
	return nil
}

// empty ends the bytes of a file of a size, if it can have another size behind that.
func empty(fd int, size, next uint64) error {
	if next > 0 {
		err := reserve(fd, 0, next)
		if cannotReserve(err) && next > size {
			err = retry(func() error { return unix.Ftruncate(fd, int64(next)) })
		}
		if err != nil && !cannotReserve(err) {
			giveBack(fd, size)
			return err
		}
	}
	return retry(func() error { return unix.Ftruncate(fd, 0) })
}

// extend makes a file larger, and never smaller: other programs may append to it meanwhile. Only where the file system
// cannot reserve, bytes that are appended between two system calls are cut off.
func extend(fd int, from, to uint64) error {
	err := reserve(fd, from, to-from)
	switch {
	case err == nil:
		return retry(func() error { return unix.Fallocate(fd, 0, int64(to)-1, 1) })
	case !cannotReserve(err):
		giveBack(fd, from)
		return err
	case sizeOf(fd) >= int64(to):
		return nil
	}
	return retry(func() error { return unix.Ftruncate(fd, int64(to)) })
}

// reserve takes space for a range, and leaves the size as it is.
func reserve(fd int, at, n uint64) error {
	return retry(func() error { return unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, int64(at), int64(n)) })
}

func cannotReserve(err error) bool { return err == unix.EOPNOTSUPP || err == unix.ENOSYS }

// giveBack ends the reservation behind the end of a file that still has a size: setting that size does it. A full disk
// lets another program append hardly anything between the two system calls.
func giveBack(fd int, size uint64) {
	if sizeOf(fd) == int64(size) {
		_ = unix.Ftruncate(fd, int64(size))
	}
}

// sizeOf returns the size of a file, -1 if the file system does not say it.
func sizeOf(fd int) int64 {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return -1
	}
	return st.Size
}

const lockPause = time.Millisecond

// lockSize keeps other engines from changing the size between our look at it and our setting it. The lock belongs to
// the descriptor (OFD), so threads and processes are alike, and its end is the descriptor's.
func lockSize(ctx context.Context, fd int) (unlock func(), err error) {
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if !takeLock(ctx, func() error { return unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &lock) }) {
		return nil, errs.New(errs.Timeout, "file.open", "somebody else has the file locked and is growing it").
			WithScope(errs.ScopeSlice, errs.SideRemote)
	}
	return func() {
		lock.Type = unix.F_UNLCK
		_ = unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &lock)
	}, nil
}

// takeLock tries to lock until nobody else has it, for a while. File systems without locks get none.
func takeLock(ctx context.Context, try func() error) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for {
		switch try() {
		case unix.EAGAIN, unix.EACCES, unix.EINTR:
		default:
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(lockPause):
		}
	}
}
