//go:build !amd64

package copying

// stream copies what will not stay in the caches. Here memmove is what there is.
func stream(dst, src uintptr, bytes uint64) { chunks(dst, src, bytes) }
