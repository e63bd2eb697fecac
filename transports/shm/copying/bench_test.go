package copying

import (
	"fmt"
	"testing"

	"github.com/tent-engine/tent/gocore/mem"
)

// BenchmarkCopy compares, per size, one memmove with the two ways of a copier. It does so on the same buffers each time
// (hot) and walking over 256 MiB (cold). The buffers are not zero and not a power of two apart: both would flatter.
func BenchmarkCopy(b *testing.B) {
	const walk = 256 << 20
	src, dst := area(b, walk), area(b, walk+3*page)[3*page:]
	fill(src, 1)
	fill(dst, 2)
	for _, size := range []uint64{4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20} {
		for name, move := range map[string]func(dst, src uintptr, bytes uint64){
			"memmove": func(dst, src uintptr, bytes uint64) {
				copy(mem.Bytes(dst, int(bytes)),
					mem.Bytes(src, int(bytes)))
			},
			"chunks": chunks, "stream": stream,
		} {
			for _, cold := range []bool{false, true} {
				b.Run(fmt.Sprintf("%dKiB/%s/cold=%v", size>>10, name, cold), func(b *testing.B) {
					b.SetBytes(int64(size))
					at := uint64(0)
					for b.Loop() {
						move(mem.AddressOf(dst)+uintptr(at), mem.AddressOf(src)+uintptr(at), size)
						if at += size; !cold || at+size > walk {
							at = 0
						}
					}
				})
			}
		}
	}
}

// BenchmarkGuard is 64 bytes by Copy; BenchmarkUnguarded by memmove alone. The difference is the guard.
func BenchmarkGuard(b *testing.B) {
	buf, c := area(b, page), never()
	for b.Loop() {
		c.Copy(mem.AddressOf(buf), mem.AddressOf(buf)+2048, 64, 64)
	}
}

func BenchmarkUnguarded(b *testing.B) {
	buf := area(b, page)
	for b.Loop() {
		chunks(mem.AddressOf(buf), mem.AddressOf(buf)+2048, 64)
	}
}
