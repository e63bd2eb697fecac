package copying

import "github.com/tent-engine/tent/gocore/mem"

const lineBytes = 64 // non-temporal stores are fast only where they fill whole lines

// stream copies without leaving the destination in the caches, a chunk at a time. Assembly is not interrupted by Go's
// scheduler, so it must be short.
func stream(dst, src uintptr, bytes uint64) {
	if head := uint64(-dst % lineBytes); head > 0 && head <= bytes {
		copy(mem.Bytes(dst, int(head)), mem.Bytes(src, int(head)))
		dst, src, bytes = dst+uintptr(head), src+uintptr(head), bytes-head
	}
	for bytes >= lineBytes {
		lines := min(bytes, chunkBytes) / lineBytes
		streamLines(dst, src, lines)
		n := lines * lineBytes
		dst, src, bytes = dst+uintptr(n), src+uintptr(n), bytes-n
	}
	copy(mem.Bytes(dst, int(bytes)), mem.Bytes(src, int(bytes)))
}

// streamLines copies at least one line to a destination that is aligned to lines. It ends with SFENCE: non-temporal
// stores are not ordered with those that follow them, such as the one that says that the bytes are there.
//
// One line follows the other, and the source is prefetched. Four pages side by side are as fast on some machines, and
// a fifth as fast on a Zen 3 where both ends begin at a page, as buffers do: a load waits for a store to an address
// with the same lowest twelve bits.
//
// SSE2 is part of every amd64; its stores of 16 bytes are gathered to a line before they go out.
//
//go:noescape
func streamLines(dst, src uintptr, lines uint64)
