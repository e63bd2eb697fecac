package vmem

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/mem"
)

// whole widens a range to whole pages.
func whole(addr uintptr, size uint64) []byte {
	page := uintptr(os.Getpagesize())
	first := addr &^ (page - 1)
	return mem.Bytes(first, int((addr+uintptr(size)-first+page-1)&^(page-1)))
}

// Populate makes the pages of a range present and writable, as a first write to each does. Linux before 5.14 returns
// EINVAL.
func Populate(addr uintptr, size uint64) error {
	return unix.Madvise(whole(addr, size), unix.MADV_POPULATE_WRITE)
}

// Resident returns how many bytes of a range have pages in memory, whole pages counted. It looks at a gigabyte in some
// milliseconds, and brings none of them in.
func Resident(addr uintptr, size uint64) (n uint64) {
	const most = 1 << 30 // a look
	page := uint64(os.Getpagesize())
	there := make([]byte, min(size, most)/page+2)
	for left := whole(addr, size); len(left) > 0; {
		look := left[:min(len(left), most)]
		left = left[len(look):]
		_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&look[0])), uintptr(len(look)),
			uintptr(unsafe.Pointer(&there[0])))
		if errno != 0 {
			continue
		}
		for _, b := range there[:uint64(len(look))/page] {
			n += uint64(b&1) * page
		}
	}
	return n
}
