package file

import (
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// codeOf is the meaning of an errno of the file system to a user. One that is not listed is the device's or the file
// system's own trouble.
func codeOf(errno syscall.Errno) errs.Code {
	switch errno {
	case unix.ENOENT, unix.ENOTDIR:
		return errs.NotFound
	case unix.EACCES, unix.EPERM, unix.EROFS, unix.EXDEV, unix.ELOOP, unix.ETXTBSY:
		return errs.PermissionDenied
	case unix.ENOSPC, unix.EDQUOT, unix.EFBIG:
		return errs.NoSpace
	case unix.EINVAL, unix.EISDIR, unix.ENAMETOOLONG, unix.ENXIO:
		return errs.InvalidArgument
	case unix.EFAULT:
		return errs.AddressNotRegistered
	case unix.ESTALE, unix.EBADF:
		return errs.Stale
	case unix.EMFILE, unix.ENFILE:
		return errs.TooManyRequests
	case unix.ENOMEM:
		return errs.OutOfMemory
	}
	return errs.StorageError
}

// hints are the cures that an errno suggests.
var hints = map[syscall.Errno]string{
	unix.EROFS:  "the file system is mounted read-only: open the file with readonly=True, or remount it",
	unix.EACCES: "look at the permissions of the file and of the folders above it",
	unix.EXDEV:  "it leads out of transports/file/roots",
	unix.ELOOP:  "there are too many symbolic links, or one leads out of transports/file/roots",
	unix.ENOSPC: "free some space on the file system",
	unix.EDQUOT: "the user's quota is used up",
	unix.EFBIG:  "see ulimit -f and the largest file that the file system takes",
	unix.EMFILE: "raise ulimit -n, or lower transports/file/descriptors",
	unix.EIO:    "look at the kernel's log",
}

// trouble makes the error of a system call on a file.
func trouble(op, path string, err error) *errs.Error {
	errno, known := err.(syscall.Errno)
	if !known {
		return errs.From(op, err)
	}
	e := errs.Wrap(codeOf(errno), op, errno).WithScope(errs.ScopeSlice, errs.SideRemote)
	e.Cause = path + ": " + errno.Error()
	e.Hint = hints[errno]
	if e.Code == errs.StorageError {
		// The page cache and O_DIRECT take different ways through the kernel, so the other transport is worth a try;
		// the failover budget ends it when that fails as well.
		e.Scope = errs.ScopeLink
	}
	return e
}

// failed makes the error of a slice after errno at a byte of the file.
func (t *base) failed(it *item, errno syscall.Errno, offset uint64) *errs.Error {
	if errno == unix.EFAULT {
		return t.memoryGone(it)
	}
	e := trouble(t.name+"."+verb(it.slice.Op), it.file.Path, errno)
	e.Cause = it.span(offset) + ": " + errno.Error()
	e.Transport = t.name
	return e
}

// memoryGone makes the error of a slice that lost its memory.
func (t *base) memoryGone(it *item) *errs.Error {
	e := errs.MemoryGone(t.name+"."+verb(it.slice.Op), errs.SideLocal)
	e.Transport = t.name
	return e
}

// shrunk is the error of a READ that met the end of the file. Slices of one READ meet it in any order: the end may lie
// before this one.
func (t *base) shrunk(it *item, offset uint64) *errs.Error {
	e := errs.New(errs.AddressNotRegistered, t.name+".read",
		"%s: the file ends at or before offset %d, it had %d bytes when it was opened",
		it.span(offset), offset, it.file.Size)
	e.Transport = t.name
	return e.WithScope(errs.ScopeSlice, errs.SideRemote)
}

func verb(op transport.Op) string { return [...]string{"read", "write"}[op&1] }

// Errors without a story of their own are made once: they end many slices at a time.
var (
	errWithdrawn = errs.New(errs.Withdrawn, "file", "withdrawn").WithScope(errs.ScopeSlice, errs.SideLocal)
	errFence     = errs.New(errs.Withdrawn, "file", "its rail was fenced").WithScope(errs.ScopeRail, errs.SideLocal)
	errDetached  = errs.New(errs.Withdrawn, "file", "the file was closed").WithScope(errs.ScopeLink, errs.SideLocal)
	errLength    = errs.New(errs.InvalidArgument, "file.submit",
		"a slice of no bytes, or of more than transports/*/slice_bytes").
		WithScope(errs.ScopeSlice, errs.SideLocal)
	errLocal = errs.New(errs.AddressNotRegistered, "file.submit", "the local range is not inside a registered region").
			WithScope(errs.ScopeSlice, errs.SideLocal)
	errUnknown = errs.New(errs.Stale, "file.submit", "no open file has this key").
			WithScope(errs.ScopeSlice, errs.SideRemote)
)
