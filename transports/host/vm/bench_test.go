package vm

import (
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// BenchmarkWrite and BenchmarkBare move the same pieces; their ratio is the cost of the vector.
func BenchmarkWrite(b *testing.B) {
	each(b, func(b *testing.B, near, far uintptr, pieces int, bytes uint64) {
		v, me := New(uint64(pieces)*bytes), os.Getpid()
		for b.Loop() {
			for i := range uintptr(pieces) {
				v.Add(near+2*i*uintptr(bytes), far+2*i*uintptr(bytes), bytes)
			}
			if _, errno := v.Write(me); errno != 0 {
				b.Fatal(errno)
			}
		}
	})
}

func BenchmarkBare(b *testing.B) {
	each(b, func(b *testing.B, near, far uintptr, pieces int, bytes uint64) {
		var l, r list
		me := os.Getpid()
		for i := range uintptr(pieces) {
			l.add(near+2*i*uintptr(bytes), bytes)
			r.add(far+2*i*uintptr(bytes), bytes)
		}
		lists := &[2]list{l, r}
		for b.Loop() {
			n, _, errno := unix.RawSyscall6(unix.SYS_PROCESS_VM_WRITEV, uintptr(me),
				uintptr(unsafe.Pointer(&lists[0].pieces)), uintptr(pieces),
				uintptr(unsafe.Pointer(&lists[1].pieces)), uintptr(pieces), 0)
			if errno != 0 || uint64(n) != bytes*uint64(pieces) {
				b.Fatal(errno, n)
			}
		}
	})
}

func each(b *testing.B, run func(b *testing.B, near, far uintptr, pieces int, bytes uint64)) {
	for _, c := range []struct {
		name   string
		pieces int
		bytes  uint64
	}{{"4KiB", 1, 4 << 10}, {"64x4KiB", 64, 4 << 10}, {"1MiB", 1, 1 << 20}, {"1024x4KiB", 1024, 4 << 10}} {
		b.Run(c.name, func(b *testing.B) {
			near, far := area(b, 2*c.pieces*int(c.bytes)), area(b, 2*c.pieces*int(c.bytes))
			fill(near, 1)
			fill(far, 2)
			b.SetBytes(int64(c.pieces) * int64(c.bytes))
			b.ReportAllocs()
			run(b, addr(near), addr(far), c.pieces, c.bytes)
		})
	}
}
