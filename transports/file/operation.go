package file

import (
	"runtime/debug"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/file/ring"
)

// operation is one READ or WRITE in the ring: a range of the file, for a part of a slice.
//
// A range that covers whole units goes past the page cache, the rest at its edges goes through it. So a unit is
// never written both ways by ranges that do not overlap, by any writer: the kernel merges the edges of neighbours
// in the page cache. A direct READ or WRITE flushes them first, and takes turns with them, see turns.
type operation struct {
	item    *item
	at      uint64 // where it begins in the slice
	length  uint64
	done    uint64
	offset  uint64 // in the file, of the rest
	direct  bool
	way     way  // as it began
	bounce  int  // number of its bounce buffer, -1 for none
	cached  bool // the page cache is asked first
	filled  bool // the bounce buffer holds the bytes to write
	lost    bool // the memory that a READ was for is gone
	tries   int
	err     *errs.Error
	count   int
	vectors [16]ring.Iovec
}

// begin cuts the next operation from an item, if a bounce buffer is there where one is needed.
func (o *operation) begin(it *item, b *bounces) bool {
	f := it.file
	offset, n, direct := it.next()
	bounce := -1
	count, covered := it.gather(it.at, n, o.vectors[:])
	switch whole := covered - covered%max(f.unit, 1); {
	case !direct:
		n = covered
	case whole > 0 && o.aligned(f, count):
		n = whole
	default:
		if bounce = b.take(); bounce < 0 {
			return false
		}
		n = min(n, bounceBytes)
	}
	o.item, o.at, o.length, o.done, o.offset = it, it.at, n, 0, offset
	o.direct, o.bounce, o.filled, o.lost, o.tries, o.err = direct, bounce, false, false, 0, nil
	o.way = wayOf(it.slice.Op, direct)
	return true
}

// next is the range of the file that the next operation of the ring may cover, and whether it goes past the page cache.
func (it *item) next() (offset, n uint64, direct bool) {
	unit := it.file.unit
	offset, n = it.run()
	if direct = it.file.direct.Load(); !direct {
		return offset, n, false
	}
	switch into := offset % unit; {
	case into != 0:
		return offset, min(n, unit-into), false
	case n < unit:
		return offset, n, false
	}
	return offset, n - n%unit, true
}

// aligned reports whether O_DIRECT takes the vectors as they are.
func (o *operation) aligned(f *file, count int) bool {
	for _, v := range o.vectors[:count] {
		if uint64(v.Addr)%f.memory != 0 || v.Length%f.unit != 0 {
			return false
		}
	}
	return true
}

// prepare sets the vectors to the rest of the operation.
func (o *operation) prepare(b *bounces) {
	left := o.length - o.done
	if o.bounce >= 0 && o.item.slice.Op == transport.Write && !o.filled {
		o.filled = true
		into := b.bytes(o.bounce)[:o.length]
		if fault := o.each(o.at, o.length, func(part []byte) { into = into[copy(into, part):] }); fault != nil {
			b.give(o.bounce) // the kernel meets the same fault, through the page cache, and says so
			o.bounce, o.direct = -1, false
		}
	}
	if o.bounce < 0 {
		o.count, _ = o.item.gather(o.at+o.done, left, o.vectors[:])
		return
	}
	o.vectors[0] = ring.Iovec{Addr: b.addr(o.bounce) + uintptr(o.done), Length: left}
	o.count = 1
}

// copyBack brings n more bytes of a bounced READ to where they belong.
func (o *operation) copyBack(b *bounces, n uint64) {
	if o.bounce < 0 || o.item.slice.Op == transport.Write {
		return
	}
	from := b.bytes(o.bounce)[o.done : o.done+n]
	o.lost = o.each(o.at+o.done, n, func(part []byte) { from = from[copy(part, from):] }) != nil
}

// each calls f for the memory of [at, at+n) of the slice, part by part. The memory may be gone.
func (o *operation) each(at, n uint64, f func(part []byte)) (fault *mem.Fault) {
	defer mem.Guard(&fault, debug.SetPanicOnFault(true))
	for end := at + n; at < end; {
		_, addr, length := o.item.locate(at)
		length = min(length, end-at)
		f(mem.Bytes(addr, int(length)))
		at += length
	}
	return nil
}

// fromCache reads the whole operation from the page cache, without waiting for a disk, or returns false. Then the ring
// does all of it.
func (o *operation) fromCache(b *bounces) bool {
	f, flags := o.item.file, noWait
	if !f.mayHold(o.offset, o.length) {
		f.cache.learn(false)
		return false
	}
	if f.resident {
		flags = 0 // tmpfs knows no RWF_NOWAIT, and needs none
	}
	count, _ := o.item.gather(o.at, o.length, o.vectors[:])
	got, errno := call(transport.Read, int(f.plain.Load()), o.vectors[:count], o.offset, flags)
	if errno == unix.EOPNOTSUPP {
		f.slow[transport.Read&1].Store(true)
	}
	hit := errno == 0 && got == o.length
	if f.cache.learn(hit); hit && o.bounce >= 0 {
		b.give(o.bounce)
		o.bounce = -1
	}
	return hit
}

// fd is the descriptor for the rest: a transfer that stopped inside a unit goes on through the page cache.
func (o *operation) fd() int {
	f := o.item.file
	if o.direct && o.offset%f.unit == 0 && (o.length-o.done)%f.unit == 0 {
		return int(f.straight.Load())
	}
	return int(f.plain.Load())
}

// outcome is the fate of an operation that the kernel has given back.
type outcome uint8

const (
	opDone outcome = iota
	opAgain
	opFailed
)

// land books the kernel's result: bytes, or a negated errno.
func (o *operation) land(t *base, result int32) outcome {
	errno := errnoOf(result)
	switch {
	case o.lost:
		o.err = t.memoryGone(o.item)
	case result > 0:
		o.done += uint64(result)
		o.offset += uint64(result)
		if o.done < o.length {
			return opAgain
		}
		o.item.done += o.length
		return opDone
	case result == 0 && o.item.slice.Op == transport.Read:
		o.err = t.shrunk(o.item, o.offset)
	case result == 0:
		o.err = t.failed(o.item, unix.EIO, o.offset)
	case (errno == unix.EINTR || errno == unix.EAGAIN || errno == unix.ECANCELED) && o.tries < retryMost:
		o.tries++
		return opAgain
	case errno == unix.EINVAL && o.direct:
		o.item.file.refuse("its file system refuses what O_DIRECT was promised to take")
		o.direct = false
		return opAgain
	default:
		o.err = t.failed(o.item, errno, o.offset)
	}
	return opFailed
}

// end gives back the operation's resources.
func (o *operation) end(b *bounces) {
	if o.bounce >= 0 {
		b.give(o.bounce)
	}
	o.item, o.err, o.bounce = nil, nil, -1
}

// bounces are buffers that O_DIRECT takes, for memory that it does not: NumPy aligns to 16 bytes, disks want 512.
type bounces struct {
	memory []byte
	free   []int
}

const (
	bounceBytes = 1 << 20
	bounceCount = 8
)

func newBounces() (*bounces, error) {
	memory, err := unix.Mmap(-1, 0, bounceBytes*bounceCount, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	// a child has no use for them, and copying pages under a transfer is not wanted
	_ = unix.Madvise(memory, unix.MADV_DONTFORK)
	b := &bounces{memory: memory}
	for i := range bounceCount {
		b.free = append(b.free, i)
	}
	return b, nil
}

func (b *bounces) close() { _ = unix.Munmap(b.memory) }

// take returns the number of a free buffer, -1 if there is none.
func (b *bounces) take() int {
	n := len(b.free) - 1
	if n < 0 {
		return -1
	}
	i := b.free[n]
	b.free = b.free[:n]
	return i
}

func (b *bounces) give(i int) { b.free = append(b.free, i) }

func (b *bounces) bytes(i int) []byte { return b.memory[i*bounceBytes : (i+1)*bounceBytes] }

func (b *bounces) addr(i int) uintptr { return uintptr(unsafe.Pointer(&b.memory[i*bounceBytes])) }
