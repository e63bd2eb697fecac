package vm

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
)

// PiecesMax is how many pieces one call takes: the kernel's IOV_MAX.
const PiecesMax = 1024

// BytesMax is the most that one call moves when New is told nothing else.
const BytesMax = 1 << 20

// iovec is the kernel's, with an address that the garbage collector must not follow.
type iovec struct {
	base uintptr
	size uint64
}

// list is one side of a call. Pieces that touch each other are one.
type list struct {
	pieces [PiecesMax]iovec
	first  int // behind the vectors that were moved already
	count  int
}

// Vector collects pieces and moves them in one system call. It belongs to one goroutine at a time and is used again and
// again; it takes 32 KiB, so a copier has one.
type Vector struct {
	local, remote list
	bytes         uint64
	bytesMax      uint64
}

// New makes an empty vector. Its calls move at most bytesMax bytes; 0 is BytesMax.
func New(bytesMax uint64) *Vector {
	if bytesMax == 0 {
		bytesMax = BytesMax
	}
	return &Vector{bytesMax: bytesMax}
}

// Add takes a piece, or as much of its beginning as fits into this call, and returns how many bytes it took. It is 0
// when the vector is full, so move first. local and remote are addresses in their processes.
func (v *Vector) Add(local, remote uintptr, bytes uint64) uint64 {
	bytes = min(bytes, v.bytesMax-v.bytes)
	if bytes == 0 || !v.local.fits(local) || !v.remote.fits(remote) {
		return 0
	}
	v.local.add(local, bytes)
	v.remote.add(remote, bytes)
	v.bytes += bytes
	return bytes
}

// fits reports whether a piece that begins at an address has room, as one of its own or as a part of the last one.
func (l *list) fits(at uintptr) bool { return l.count < PiecesMax || l.touches(at) }

func (l *list) touches(at uintptr) bool {
	return l.count > 0 && l.pieces[l.count-1].base+uintptr(l.pieces[l.count-1].size) == at
}

func (l *list) add(at uintptr, bytes uint64) {
	if l.touches(at) {
		l.pieces[l.count-1].size += bytes
		return
	}
	l.pieces[l.count] = iovec{at, bytes}
	l.count++
}

// skip drops the bytes that were moved from the beginning.
func (l *list) skip(bytes uint64) {
	for bytes > 0 {
		p := &l.pieces[l.first]
		if bytes < p.size {
			p.base += uintptr(bytes)
			p.size -= bytes
			return
		}
		bytes -= p.size
		l.first++
	}
}

// Bytes is how much has been added and not moved.
func (v *Vector) Bytes() uint64 { return v.bytes }

// Read moves every piece from the remote to the local address; Write moves it from local to remote. Both return how
// many bytes were moved, in the order in which they were added, and 0 or the reason why not all were: EFAULT when one
// side's memory is not there or may not be used so, for the byte that comes next (Blame says which side); EPERM and
// ESRCH about the process. A call that the kernel ends early is continued. The vector is empty afterwards.
func (v *Vector) Read(pid int) (uint64, unix.Errno) { return v.move(unix.SYS_PROCESS_VM_READV, pid) }

// Write is described at Read.
func (v *Vector) Write(pid int) (uint64, unix.Errno) { return v.move(unix.SYS_PROCESS_VM_WRITEV, pid) }

func (v *Vector) move(trap uintptr, pid int) (done uint64, errno unix.Errno) {
	for done < v.bytes {
		// Not RawSyscall, however little there is: a page may have to be faulted in, at the peer's, by a disk.
		n, _, e := unix.Syscall6(trap, uintptr(pid),
			uintptr(unsafe.Pointer(&v.local.pieces[v.local.first])), uintptr(v.local.count-v.local.first),
			uintptr(unsafe.Pointer(&v.remote.pieces[v.remote.first])), uintptr(v.remote.count-v.remote.first), 0)
		if e == unix.EINTR {
			continue
		}
		if errno = e; e != 0 || n == 0 {
			break
		}
		done += uint64(n)
		if done < v.bytes {
			v.local.skip(uint64(n))
			v.remote.skip(uint64(n))
		}
	}
	if done < v.bytes && errno == 0 {
		errno = unix.EFAULT // the kernel moved nothing and gave no reason: the piece cannot be moved
	}
	v.Reset()
	return done, errno
}

// Reset empties the vector.
func (v *Vector) Reset() {
	v.local.first, v.local.count = 0, 0
	v.remote.first, v.remote.count = 0, 0
	v.bytes = 0
}

// Blame returns the side of the memory that was not there, after EFAULT at a byte with these addresses. It only reads,
// so it disturbs nobody.
func Blame(pid int, write bool, local, remote uintptr) errs.Side {
	var b [1]byte
	switch {
	case write && peek(unix.Getpid(), local, b[:]) != 0:
		return errs.SideLocal
	case write:
		return errs.SideRemote
	case peek(pid, remote, b[:]) != 0:
		return errs.SideRemote
	}
	return errs.SideLocal
}

// peek reads a few bytes of a process.
func peek(pid int, at uintptr, into []byte) unix.Errno {
	near := [1]unix.Iovec{{Base: &into[0]}}
	near[0].SetLen(len(into))
	far := [1]unix.RemoteIovec{{Base: at, Len: len(into)}}
	n, err := unix.ProcessVMReadv(pid, near[:], far[:], 0)
	if err != nil {
		errno, _ := err.(unix.Errno)
		return errno
	}
	if n != len(into) {
		return unix.EFAULT
	}
	return 0
}

// Error makes the error of a failed Read or Write. EFAULT is about this request's memory; the others are about the
// peer.
func Error(op string, errno unix.Errno, side errs.Side) *errs.Error {
	switch errno {
	case unix.EFAULT:
		return errs.MemoryGone(op, side)
	case unix.EPERM, unix.EACCES:
		return errs.New(errs.PermissionDenied, op, "the kernel refuses access to the peer's memory").
			WithScope(errs.ScopeLink, errs.SidePath)
	case unix.ESRCH:
		return errs.New(errs.PeerUnreachable, op, "the peer's process has ended").
			WithScope(errs.ScopeLink, errs.SideRemote)
	case unix.ENOMEM:
		return errs.Wrap(errs.OutOfMemory, op, errno).WithScope(errs.ScopeSlice, errs.SideLocal)
	}
	return errs.Wrap(errs.Internal, op, errno).WithScope(errs.ScopeLink, errs.SidePath)
}
