package file

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/file/ring"
)

// BenchmarkCachedRead reads 64 KiB of cached bytes on two threads, by Inline and by the system call alone. Their
// difference is the cost of the transport, some 200 ns of the 5 to 10 us that the copy takes.
func BenchmarkCachedRead(b *testing.B) {
	const size, threads, each = 64 << 10, 2, 512
	for _, way := range []string{"inline", "call"} {
		b.Run(way, func(b *testing.B) {
			r := newRig(b, BufferedFactory{}, Settings{})
			o := r.open(transport.FileSpec{Path: onDisk(b), Create: true, Size: threads * each * size})
			m := r.memory(threads*(size+4096), true)
			m.fill(1, 0, m.size)
			for at := uint64(0); at < threads*each*size; at += size {
				r.must(o.slice(transport.Write, m, 0, at, size))
			}
			fd := int(r.tr.(*Buffered).fileOf(o.key).plain.Load())
			b.SetBytes(threads * each * size)
			for b.Loop() {
				var wait sync.WaitGroup
				for thread := range uint64(threads) {
					wait.Go(func() {
						s := o.slice(transport.Read, m, thread*(size+4096), 0, size)
						list := []*transport.Slice{s}
						vector := []ring.Iovec{{Addr: s.Local, Length: size}}
						for i := range uint64(each) {
							s.Remote = (thread*each + i) * size
							if way == "inline" {
								assert.True(b, r.tr.(*Buffered).Inline(list))
							} else if n, errno := call(transport.Read, fd, vector, s.Remote, noWait); n != size {
								b.Error(n, errno)
							}
						}
					})
				}
				wait.Wait()
			}
		})
	}
}

func (t *base) fileOf(key transport.RemoteKey) *file { return t.files.Lookup(key) }
