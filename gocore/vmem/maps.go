package vmem

import (
	"bytes"
	"errors"
	"io"
	"os"
	"sort"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Use is the best use of a range.
type Use uint8

// Uses, each with those before it.
const (
	Unmapped Use = iota // nothing is there from some address on
	NoAccess            // mapped, and some of it cannot be read: a guard page, an address range of a device
	ReadOnly
	ReadWrite
)

// Range returns the use that all of [addr, addr+size) has, and the first address that has no more than that. It asks
// for one mapping after the other, touches nothing, and costs some 10 µs however long the range is; before Linux 6.11,
// as long as reading /proc/self/maps takes. Where the kernel does not answer, as without /proc, all is ReadWrite.
func Range(addr uintptr, size uint64) (use Use, at uintptr) {
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return ReadWrite, addr
	}
	defer f.Close()
	ask := func(at uintptr) (mapping, error) { return query(f, at) }
	if use, at, err = walk(ask, addr, size); err == nil {
		return use, at
	}
	use, at, _ = walk(read(f).find, addr, size)
	return use, at
}

// Mapping returns the bounds of the mapping that holds an address.
func Mapping(addr uintptr) (from, end uintptr, found bool) {
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return 0, 0, false
	}
	defer f.Close()
	m, err := query(f, addr)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		m, err = read(f).find(addr)
	}
	return m.start, m.end, err == nil
}

// mapping is one line of /proc/self/maps.
type mapping struct {
	start, end uintptr
	use        Use
}

// walk goes over the mappings of a range. find returns the mapping that holds an address, ENOENT if there is none.
func walk(find func(uintptr) (mapping, error), addr uintptr, size uint64) (use Use, at uintptr, err error) {
	use, at = ReadWrite, addr
	for next, end := addr, addr+uintptr(size); next < end; {
		m, err := find(next)
		switch {
		case errors.Is(err, unix.ENOENT):
			return Unmapped, next, nil
		case err != nil:
			return 0, 0, err
		case m.use < use:
			use, at = m.use, next
		}
		if m.end <= next { // the last page of the address space
			break
		}
		next = m.end
	}
	return use, at, nil
}

// procmapQuery is struct procmap_query of linux/fs.h, for PROCMAP_QUERY of Linux 6.11.
type procmapQuery struct {
	size, flags, addr        uint64
	start, end               uint64
	vmaFlags                 uint64
	pageSize, offset, inode  uint64
	major, minor             uint32
	nameSize, buildIDSize    uint32
	nameAddress, buildIDAddr uint64
}

const (
	procmapRequest  = 0xc0686611 // _IOWR('f', 17, struct procmap_query)
	procmapReadable = 1
	procmapWritable = 2
)

// query asks /proc/self/maps for the mapping at an address.
func query(maps *os.File, addr uintptr) (mapping, error) {
	q := procmapQuery{addr: uint64(addr)}
	q.size = uint64(unsafe.Sizeof(q))
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, maps.Fd(), procmapRequest, uintptr(unsafe.Pointer(&q)))
	if errno != 0 {
		return mapping{}, errno
	}
	use := useOf(q.vmaFlags&procmapReadable != 0, q.vmaFlags&procmapWritable != 0)
	return mapping{uintptr(q.start), uintptr(q.end), use}, nil
}

func useOf(readable, writable bool) Use {
	switch {
	case !readable:
		return NoAccess
	case !writable:
		return ReadOnly
	}
	return ReadWrite
}

// table is all of /proc/self/maps, for kernels before 6.11.
type table []mapping

func read(maps io.Reader) table {
	text, _ := io.ReadAll(maps)
	all := make(table, 0, bytes.Count(text, []byte{'\n'}))
	for line := range strings.Lines(string(text)) {
		bounds, rights, _ := strings.Cut(line, " ")
		first, last, _ := strings.Cut(bounds, "-")
		start, err := strconv.ParseUint(first, 16, 64)
		end, err2 := strconv.ParseUint(last, 16, 64)
		if err == nil && err2 == nil && len(rights) > 1 {
			all = append(all, mapping{uintptr(start), uintptr(end), useOf(rights[0] == 'r', rights[1] == 'w')})
		}
	}
	return all
}

// find looks in a table that is sorted by address, as the kernel's is.
func (t table) find(addr uintptr) (mapping, error) {
	i := sort.Search(len(t), func(i int) bool { return t[i].end > addr })
	if i == len(t) || t[i].start > addr {
		return mapping{}, unix.ENOENT
	}
	return t[i], nil
}
