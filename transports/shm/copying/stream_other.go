//go:build !amd64

package copying

// stream copies bytes that will not stay in the caches. Here memmove does it.
func stream(dst, src uintptr, bytes uint64) { chunks(dst, src, bytes) }
