package share

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
)

const (
	folder = "/dev/shm" // where POSIX shared memory lives on Linux
	op     = "shared slots"
	tries  = 8 // to open a file that is removed and made again meanwhile
)

// naming holds the name of the file, and the settings about it.
type naming struct {
	path     string
	branch   string // of the settings, for errors: "transports/tcp"
	interval time.Duration
}

func (n *naming) key() string { return n.branch + "/shared_quota_shm_path" }

// unusable is the error of a file that is none of ours, with the QoS seed's advice.
func (n *naming) unusable(format string, args ...any) *errs.Error {
	return errs.New(errs.InvalidEntry, op, "%s %s", n.path, fmt.Sprintf(format, args...)).
		WithHint("remove it when nobody uses it (rm -f %s), or set %s to another name", n.path, n.key())
}

// file is an open file with its mapping. It is used by one goroutine at a time; others touch only the mapping.
type file struct {
	*naming
	fd       int
	dev, ino uint64
	base     uintptr // of the mapping
	row      int     // ours, -1 before join
}

// openFile opens the file, or makes it: complete before it has a name, so nobody ever sees half of one.
func openFile(n *naming) (*file, *errs.Error) {
	for range tries {
		// A lease of the file (F_SETLEASE) would hold the call up for /proc/sys/fs/lease-break-time.
		fd, err := unix.Open(n.path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err == nil {
			return checked(n, fd)
		}
		if !errors.Is(err, unix.ENOENT) {
			return nil, n.refused(err)
		}
		fd, err = create(n)
		switch {
		case err == nil:
			return checked(n, fd)
		case !errors.Is(err, unix.EEXIST):
			return nil, n.impossible(err)
		}
	}
	return nil, errs.New(errs.InvalidEntry, op, "%s is removed as soon as it is made", n.path)
}

// create makes a complete file and gives it its name; EEXIST says that somebody was quicker.
func create(n *naming) (fd int, err error) {
	if fd, err = unnamed(n.interval); err != nil {
		return -1, err
	}
	err = unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd), unix.AT_FDCWD, n.path, unix.AT_SYMLINK_FOLLOW)
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// unnamed makes a complete file that goes with its last descriptor.
func unnamed(interval time.Duration) (fd int, err error) {
	fd, err = unix.Open(folder, unix.O_RDWR|unix.O_CLOEXEC|unix.O_TMPFILE, 0o600)
	if err != nil {
		return -1, err
	}
	header := make([]byte, atTaken)
	binary.NativeEndian.PutUint64(header[atMagic:], magic)
	binary.NativeEndian.PutUint64(header[atVersion:], versionWord(0))
	binary.NativeEndian.PutUint64(header[atInterval:], uint64(interval))
	binary.NativeEndian.PutUint64(header[atClock:], clockID())
	for _, step := range [...]func() error{
		func() error { return unix.Fchmod(fd, 0o600) }, // the umask may differ
		func() error { return unix.Ftruncate(fd, fileBytes) },
		func() error { return unix.Fallocate(fd, 0, 0, rowsAt) }, // a full file system says so now, not by a fault
		func() error { _, err := unix.Pwrite(fd, header, 0); return err },
	} {
		if err = step(); err != nil {
			_ = unix.Close(fd)
			return -1, err
		}
	}
	return fd, nil
}

// checked looks whether an open file is ours to use, and maps it.
func checked(n *naming, fd int) (_ *file, problem *errs.Error) {
	f := &file{naming: n, fd: fd, row: -1}
	defer func() {
		if problem != nil {
			_ = unix.Close(fd)
		}
	}()
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return nil, errs.Wrap(errs.Internal, op, err)
	}
	f.dev, f.ino = stat.Dev, stat.Ino
	if int(stat.Uid) != unix.Geteuid() {
		return nil, n.foreignUser(int(stat.Uid))
	}
	if err := f.valid(&stat); err != nil {
		return nil, err
	}
	addr, _, code := unix.Syscall6(unix.SYS_MMAP, 0, fileBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED,
		uintptr(fd), 0)
	if code != 0 {
		return nil, errs.Wrap(codeOf(code), op, code)
	}
	f.base = addr
	_, _, _ = unix.Syscall(unix.SYS_MADVISE, addr, fileBytes, unix.MADV_DONTFORK) // a child has no engine
	return f, nil
}

// valid checks that the file is one that this version writes. It catches a file that was there before, and one that
// another program has changed meanwhile.
func (f *file) valid(stat *unix.Stat_t) *errs.Error {
	head := f.words(0, atTaken/8)
	switch have := head[atVersion/8] & 0xffffffff; {
	case stat.Mode&unix.S_IFMT != unix.S_IFREG:
		return f.unusable("is no regular file")
	case head[atMagic/8] != magic:
		return f.unusable("does not hold shared slots: it begins with %#x instead of %#x", head[atMagic/8],
			uint64(magic))
	case have != version:
		return f.unusable("has version %d of shared slots, this is version %d", have, version)
	case stat.Size != fileBytes:
		return f.unusable("has %d bytes instead of %d: somebody cut it or wrote to it", stat.Size, fileBytes)
	case head[atClock/8] != clockID():
		return errs.New(errs.InvalidEntry, op, "%s belongs to processes with another monotonic clock (time namespace)",
			f.path).WithHint("set %s to another name", f.key())
	}
	return nil
}

// words reads through the descriptor: absent words are zero, and nothing faults.
func (f *file) words(at, n int) []uint64 {
	b := make([]byte, n*8)
	_, _ = unix.Pread(f.fd, b, int64(at)) // unread words stay zero, and zero is refused or means nothing
	return wordsOf(b)
}

func wordsOf(b []byte) []uint64 {
	list := make([]uint64, len(b)/8)
	for i := range list {
		list[i] = binary.NativeEndian.Uint64(b[i*8:])
	}
	return list
}

// put writes through the descriptor. The next look at the file finds a failed write.
func (f *file) put(at int, words ...uint64) {
	b := make([]byte, 0, len(words)*8)
	for _, w := range words {
		b = binary.NativeEndian.AppendUint64(b, w)
	}
	_, _ = unix.Pwrite(f.fd, b, int64(at))
}

// replaced reports whether the name belongs to another file by now, or to none; wrong says why the file is unusable.
func (f *file) replaced() (yes bool, wrong *errs.Error) {
	var stat unix.Stat_t
	if err := unix.Lstat(f.path, &stat); err != nil || stat.Dev != f.dev || stat.Ino != f.ino {
		return true, nil
	}
	return false, f.valid(&stat)
}

// release unmaps and closes; the kernel lets go of the locks. The addresses stay reserved, since somebody may still be
// about to touch them: he gets a fault, which he is guarded against, never somebody else's memory.
func (f *file) release() {
	_, _, code := unix.Syscall6(unix.SYS_MMAP, f.base, fileBytes, unix.PROT_NONE,
		unix.MAP_FIXED|unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE, ^uintptr(0), 0)
	if code != 0 { // out of mappings: the file stays as it is until the addresses are given back
		_, _, _ = unix.Syscall(unix.SYS_MPROTECT, f.base, fileBytes, unix.PROT_NONE)
	}
	_ = unix.Close(f.fd)
}

// unreserve gives the addresses back. Nobody touches them any more.
func unreserve(base uintptr) { _, _, _ = unix.Syscall(unix.SYS_MUNMAP, base, fileBytes, 0) }

// refused explains why an existing file could not be opened.
func (n *naming) refused(err error) *errs.Error {
	var stat unix.Stat_t
	if unix.Lstat(n.path, &stat) == nil && int(stat.Uid) != unix.Geteuid() {
		return n.foreignUser(int(stat.Uid))
	}
	switch {
	case errors.Is(err, unix.ELOOP):
		return n.unusable("is a symbolic link")
	case errors.Is(err, unix.EAGAIN):
		return n.unusable("has a lease of another program (F_SETLEASE)")
	}
	return errs.Wrap(codeOf(err), op, err).WithHint("%s names %s", n.key(), n.path)
}

func (n *naming) foreignUser(owner int) *errs.Error {
	return errs.New(errs.PermissionDenied, op, "%s belongs to the user with uid %d, and this process has uid %d",
		n.path, owner, unix.Geteuid()).
		WithHint("processes of one user share slots: set %s to another name", n.key())
}

func (n *naming) impossible(err error) *errs.Error {
	return errs.Wrap(codeOf(err), op, err).
		WithHint("%s needs a file system in memory at %s that this user may write to; leave it empty to go without",
			n.key(), folder)
}

func codeOf(err error) errs.Code {
	switch {
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.EROFS):
		return errs.PermissionDenied
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.ENOMEM), errors.Is(err, unix.EDQUOT):
		return errs.OutOfMemory
	}
	return errs.NotImplemented
}

// clockID names the clock that times in the file are of: containers may have a time namespace of their own.
func clockID() uint64 { return namespace("time") }

// namespace is the number of one of our namespaces, 0 where the kernel has none of that kind.
func namespace(kind string) uint64 {
	var stat unix.Stat_t
	if unix.Stat(filepath.Join("/proc/self/ns", kind), &stat) != nil {
		return 0
	}
	return stat.Ino
}
