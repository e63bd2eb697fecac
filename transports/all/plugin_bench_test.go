package all

import (
	"context"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/loop"
)

// bare is the sink and the host of a transport that is opened without an engine. It counts.
type bare struct {
	peer  transport.Peer
	rails chan transport.Rail
	ends  atomic.Int64
	errs  atomic.Int64
}

func newBare(address string, n uint64) *bare {
	return &bare{peer: transport.Peer{Address: address, ID: transport.NumberedID(n)},
		rails: make(chan transport.Rail, 1)}
}

func (b *bare) Complete(list []transport.Completion) {
	for i := range list {
		if list[i].Err != nil {
			b.errs.Add(1)
		}
	}
	b.ends.Add(int64(len(list)))
}
func (b *bare) Ready(transport.Rail)                                         {}
func (b *bare) Progress(transport.Rail)                                      {}
func (b *bare) RailUp(info transport.RailInfo)                               { b.rails <- info.Rail }
func (b *bare) RailDown(transport.Rail, *errs.Error)                         {}
func (b *bare) LinkDown(transport.Link, *errs.Error)                         {}
func (b *bare) Fenced(transport.Link, transport.RemoteKey, transport.Epoch)  {}
func (b *bare) Notified(transport.Peer, []byte) bool                         { return true }
func (b *bare) Call(context.Context, transport.Peer, []byte) ([]byte, error) { return nil, nil }
func (b *bare) Self() transport.Peer                                         { return b.peer }
func (b *bare) Refused(transport.Refusal, string, error)                     {}
func (b *bare) Addresses() []netip.Addr                                      { return nil }
func (b *bare) Describe(transport.LocalKey, transport.Descriptor)            {}
func (b *bare) Log() *slog.Logger                                            { return slog.New(slog.DiscardHandler) }

// opened opens a transport that ends with the test.
func (b *bare) opened(t testing.TB, f transport.Factory, s any) transport.Transport {
	tr, err := f.Open(context.Background(), s, b, b)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tr.Close(context.Background())) })
	return tr
}

// BenchmarkPlugIn submits 64 slices of 64 bytes and polls for them, over loop in Go and over its likeness as a plug-in.
// ns/slice of the two may differ by 60, and neither allocates.
func BenchmarkPlugIn(b *testing.B) {
	plugIns := PlugIns([]string{compiled(b, "../plugin/example/inside.c", "inside.so")})
	c, err := config.Load(config.Options{Transports: Transports(plugIns...)},
		map[string]any{"transports/inside/trusting": true})
	require.NoError(b, err)
	for _, f := range []transport.Factory{loop.Factory{}, plugIns[0]} {
		for _, n := range []int{1, 64} {
			b.Run(f.Name()+"/"+map[int]string{1: "one", 64: "batch"}[n], func(b *testing.B) {
				benchmarkSlices(b, f, c.SettingsOf(f.Name()), n)
			})
		}
	}
}

// lane is a rail between two transports, with the slices of a batch: 64 bytes each.
type lane struct {
	near, far *bare
	from      transport.Transport
	list      []*transport.Slice
	memory    []byte
}

func newLane(b *testing.B, f transport.Factory, settings any, n int) *lane {
	const size = 64
	l := &lane{near: newBare("near:1", 1), far: newBare("far:1", 2), memory: make([]byte, 2*size*n)}
	a, z := l.near.opened(b, f, settings), l.far.opened(b, f, settings)
	at := uintptr(unsafe.Pointer(&l.memory[0]))
	local, _, err := a.Register(b.Context(), mem.Region{ID: 1, Addr: at, Size: uint64(size * n), Fd: -1})
	require.NoError(b, err)
	_, d, err := z.Register(b.Context(), mem.Region{ID: 1, Addr: at + uintptr(size*n), Size: uint64(size * n), Fd: -1,
		Permission: mem.GlobalReadWrite})
	require.NoError(b, err)
	link, err := a.Attach(l.far.peer)
	require.NoError(b, err)
	remote, err := a.Import(link, d)
	require.NoError(b, err)
	rail := <-l.near.rails
	l.from, l.list = a, make([]*transport.Slice, n)
	for i := range l.list {
		l.list[i] = &transport.Slice{Op: transport.Write, Rail: rail, LocalKey: local, RemoteKey: remote,
			Id: uint64(i + 1), Local: at + uintptr(i*size), Remote: uint64(i * size), Length: size}
	}
	return l
}

func benchmarkSlices(b *testing.B, f transport.Factory, settings any, n int) {
	l := newLane(b, f, settings, n)
	poller, _ := transport.Find[transport.Poller](l.from)
	poller.Poll(1, transport.AllClasses)
	b.ReportAllocs()
	for b.Loop() {
		want := l.near.ends.Load() + int64(n)
		for _, s := range l.list {
			s.Id += uint64(n)
		}
		if l.from.Submit(l.list) != n {
			b.Fatal("an idle rail does not take all slices")
		}
		for l.near.ends.Load() < want {
			poller.Poll(64, transport.AllClasses)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/slice")
	poller.Arm()
	require.Zero(b, l.near.errs.Load())
}

// BenchmarkPlugInInline carries out slices of 64 bytes on the caller's thread, as small calls of an engine are.
func BenchmarkPlugInInline(b *testing.B) {
	plugIns := PlugIns([]string{compiled(b, "../plugin/example/inside.c", "inside.so")})
	c, err := config.Load(config.Options{Transports: Transports(plugIns...)},
		map[string]any{"transports/inside/trusting": true})
	require.NoError(b, err)
	for _, n := range []int{1, 64} {
		b.Run(map[int]string{1: "one", 64: "batch"}[n], func(b *testing.B) {
			l := newLane(b, plugIns[0], c.SettingsOf("inside"), n)
			inliner, _ := transport.Find[transport.Inliner](l.from)
			b.ReportAllocs()
			for b.Loop() {
				if !inliner.Inline(l.list) {
					b.Fatal("an idle rail carries nothing out")
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/slice")
		})
	}
}
