package rdma

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/verbs"
)

// bench is an end of a benchmark: a host that calls the other end, and a sink that counts.
type bench struct {
	transport.Host // nil: most of both is not called here
	transport.Sink
	self   transport.Peer
	other  *bench
	tr     *Transport
	up     chan transport.Rail
	ended  atomic.Int64
	failed atomic.Int64
}

func (b *bench) Self() transport.Peer { return b.self }
func (b *bench) Log() *slog.Logger    { return slog.New(slog.NewTextHandler(io.Discard, nil)) }
func (b *bench) Call(ctx context.Context, _ transport.Peer, message []byte) ([]byte, error) {
	return b.other.tr.Serve(ctx, b.self, message)
}

func (b *bench) Complete(list []transport.Completion) {
	for i := range list {
		if list[i].Err != nil {
			b.failed.Add(1)
		}
	}
	b.ended.Add(int64(len(list)))
}

func (b *bench) Ready(transport.Rail)           {}
func (b *bench) Progress(transport.Rail)        {}
func (b *bench) RailUp(info transport.RailInfo) { b.up <- info.Rail }

// openEnds opens two transports over one device of the fake.
func openEnds(tb testing.TB, f *fake.Fake) (ends [2]*bench) {
	for i := range ends {
		ends[i] = &bench{self: transport.Peer{Address: fmt.Sprint("bench", i), ID: transport.ID{byte(i + 1)}},
			up: make(chan transport.Rail, 8)}
	}
	for i, e := range ends {
		e.other = ends[1-i]
		tr, err := Factory{}.Open(tb.Context(), Settings{Library: f.Path}, e, e)
		require.NoError(tb, err)
		e.tr = tr.(*Transport)
	}
	tb.Cleanup(func() {
		for _, e := range ends {
			require.NoError(tb, e.tr.Close(context.Background()))
		}
	})
	return ends
}

const benchBytes = 4 << 20

// region registers fresh memory of an end.
func (b *bench) region(tb testing.TB) (mem.Region, transport.LocalKey, transport.Descriptor) {
	const rights, kind = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_PRIVATE | unix.MAP_ANON
	memory, err := unix.Mmap(-1, 0, benchBytes, rights, kind)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, unix.Munmap(memory)) })
	at := mem.AddressOf(memory)
	r := mem.Region{Fd: -1, Addr: at, Size: benchBytes, Location: "cpu:0", Permission: mem.GlobalReadWrite}
	key, descriptor, err := b.tr.Register(tb.Context(), r)
	require.NoError(tb, err)
	return r, key, descriptor
}

// carry submits slices and polls until all have ended.
func (b *bench) carry(tb testing.TB, list []*transport.Slice) {
	until := b.ended.Load() + int64(len(list))
	for len(list) > 0 {
		list = list[b.tr.Submit(list[:min(len(list), 64)]):]
		b.tr.Poll(64, transport.AllClasses)
	}
	for b.ended.Load() < until {
		b.tr.Poll(64, transport.AllClasses)
	}
	if b.failed.Load() > 0 {
		tb.Fatal("a slice has failed")
	}
}

// BenchmarkWorkRequest compares the cost of a work request with that of a plain program in C over the same library.
// That one posts as many requests by as many calls. Requests end at once and move nothing. Both take turns.
func BenchmarkWorkRequest(b *testing.B) {
	const page, block, count = 4 << 10, 64 << 10, 64
	for _, shape := range []struct {
		name  string
		slice func(s *transport.Slice)
	}{
		{"slices of 4 KiB", func(*transport.Slice) {}},
		{"slices of 16 pages", func(s *transport.Slice) {
			s.Length = 16 * page
			s.Pieces = &transport.Pieces{Bytes: page, LocalAt: offsets(16, 2*page), RemoteAt: offsets(16, 2*page)}
		}},
		{"slices of 1 MiB", func(s *transport.Slice) { s.Length = 16 * block }},
	} {
		b.Run(shape.name, func(b *testing.B) {
			f := fake.Open(b)
			f.Control(b, "devices 1")
			ends := openEnds(b, f)
			near := ends[0]
			local, key, _ := near.region(b)
			_, _, descriptor := ends[1].region(b)
			link, err := near.tr.Attach(ends[1].self)
			require.NoError(b, err)
			remote, err := near.tr.Import(link, descriptor)
			require.NoError(b, err)
			rail := <-near.up
			list := make([]*transport.Slice, count)
			for i := range list {
				list[i] = &transport.Slice{Op: transport.Write, Class: 1, Id: uint64(i), Rail: rail, Local: local.Addr,
					LocalKey: key, RemoteKey: remote, Length: page}
				shape.slice(list[i])
			}
			near.carry(b, list[:1]) // connects
			f.Control(b, "prompt 1")
			compare(b, f, func() { near.carry(b, list) })
			near.tr.Detach(link)
		})
	}
}

func offsets(n int, stride uint64) (list []uint64) {
	for i := range n {
		list = append(list, uint64(i)*stride)
	}
	return list
}

// compare reports the medians of ours and of the plain program, in ns a work request, and of their differences.
func compare(b *testing.B, f *fake.Fake, ours func()) {
	const turns = 32 // of ours, to one of the program's that is as long
	var own, plain, more []float64
	for b.Loop() {
		posts, requests := f.Control(b, "posts"), f.Control(b, "requests")
		begin := time.Now()
		for range turns {
			ours()
		}
		took := float64(time.Since(begin).Nanoseconds())
		posts, requests = f.Control(b, "posts")-posts, f.Control(b, "requests")-requests
		theirs := float64(f.Control(b, "loop %d %d", posts, requests))
		own, plain = append(own, took/float64(requests)), append(plain, theirs/float64(requests))
		more = append(more, (took-theirs)/float64(requests))
	}
	middle := func(list []float64) float64 { slices.Sort(list); return list[len(list)/2] }
	b.ReportMetric(middle(own), "ns/request")
	b.ReportMetric(middle(plain), "ns/request-in-C")
	b.ReportMetric(middle(more), "ns/request-more")
}
