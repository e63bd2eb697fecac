package copying

import "github.com/tent-engine/tent/gocore/mem"

const (
	lineBytes  = 64    // non-temporal stores are fast only where they fill whole lines
	blockBytes = 16384 // four pages
)

// stream copies without leaving the destination in the caches, a chunk at a time. Assembly is not interrupted by Go's
// scheduler, so it must be short.
func stream(dst, src uintptr, bytes uint64) {
	if head := uint64(-dst % lineBytes); head > 0 && head <= bytes {
		copy(mem.Bytes(dst, int(head)), mem.Bytes(src, int(head)))
		dst, src, bytes = dst+uintptr(head), src+uintptr(head), bytes-head
	}
	for bytes >= blockBytes {
		blocks := min(bytes, chunkBytes) / blockBytes
		streamBlocks(dst, src, blocks)
		n := blocks * blockBytes
		dst, src, bytes = dst+uintptr(n), src+uintptr(n), bytes-n
	}
	copy(mem.Bytes(dst, int(bytes)), mem.Bytes(src, int(bytes)))
}

// streamBlocks copies blocks to a destination that is aligned to lines, going through the four pages of a block side by
// side. The prefetchers and the open rows of the memory then work on four streams, which is 1.3 times faster than one
// after the other, and than with prefetch instructions. It ends with SFENCE: non-temporal stores are not ordered with
// those that follow them, such as the one that says that the bytes are there.
//
// SSE2 is part of every amd64; its stores of 16 bytes are gathered to a line before they go out.
//
//go:noescape
func streamBlocks(dst, src uintptr, blocks uint64)
