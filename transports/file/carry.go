package file

import (
	"math/bits"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/file/ring"
)

const (
	vectorsMost = 64      // of one system call; pages that are neighbours in the file and not in memory
	opMost      = 1 << 20 // bytes of one system call: a withdrawal waits for it, a signal may interrupt it
)

// noWait is RWF_NOWAIT: the call ends with EAGAIN where it would wait for a disk or a lock.
const noWait = unix.RWF_NOWAIT

// carrier carries out one slice after the other on its caller's thread.
type carrier struct {
	vectors [vectorsMost]ring.Iovec
}

// carry moves the rest of an item and returns false if it would have to wait, which only happens with noWait. The item
// is then as if it had not begun. Otherwise it.done or it.err says how it went.
func (c *carrier) carry(t *base, it *item, flags int) bool {
	disturbed := 0
	if it.file.resident {
		flags = 0 // tmpfs knows no RWF_NOWAIT, and needs none
	}
	for it.at < it.slice.Length {
		if it.withdrawn.Load() {
			return true
		}
		offset, n := it.run()
		if flags&noWait != 0 && !it.file.mayHold(offset, n) {
			it.done = 0
			return false
		}
		count, _ := it.gather(it.at, n, c.vectors[:])
		got, errno := call(it.slice.Op, int(it.file.plain.Load()), c.vectors[:count], offset, flags)
		switch {
		case errno == unix.EAGAIN && flags&noWait != 0:
			it.done = 0
			return false
		case errno == unix.EOPNOTSUPP && flags&noWait != 0:
			it.file.slow[it.slice.Op&1].Store(true)
			it.done = 0
			return false
		case (errno == unix.EINTR || errno == unix.EAGAIN) && disturbed < retryMost:
			disturbed++
		case errno != 0:
			it.err = t.failed(it, errno, offset)
			return true
		case got == 0 && it.slice.Op == transport.Read:
			it.err = t.shrunk(it, offset)
			return true
		case got == 0:
			it.err = t.failed(it, unix.EIO, offset)
			return true
		default:
			it.at += got
			it.done += got
		}
	}
	return true
}

// call is preadv2 or pwritev2. With noWait it cannot block, so the scheduler need not know of it: that makes a READ of
// cached bytes by two threads a fifth faster.
func call(op transport.Op, fd int, vectors []ring.Iovec, offset uint64, flags int) (uint64, syscall.Errno) {
	trap := uintptr(unix.SYS_PREADV2)
	if op == transport.Write {
		trap = unix.SYS_PWRITEV2
	}
	low, high := uintptr(offset), uintptr(0)
	if bits.UintSize == 32 {
		high = uintptr(offset >> 32)
	}
	var got uintptr
	var errno syscall.Errno
	if flags&noWait != 0 {
		got, _, errno = syscall.RawSyscall6(trap, uintptr(fd), uintptr(unsafe.Pointer(&vectors[0])),
			uintptr(len(vectors)), low, high, uintptr(flags))
	} else {
		got, _, errno = syscall.Syscall6(trap, uintptr(fd), uintptr(unsafe.Pointer(&vectors[0])), uintptr(len(vectors)),
			low, high, uintptr(flags))
	}
	if errno != 0 {
		return 0, errno
	}
	return uint64(got), 0
}
