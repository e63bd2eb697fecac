package shm

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// alone is the engine of a transport that has only itself for a peer: its calls come back to it.
type alone struct {
	tr *Transport
	up chan transport.RailInfo
}

func (a *alone) Self() transport.Peer {
	return transport.Peer{Address: "self:1", ID: transport.NumberedID(7), Self: true}
}
func (a *alone) Describe(transport.LocalKey, transport.Descriptor) {}
func (a *alone) Refused(transport.Refusal, string, error)          {}
func (a *alone) Log() *slog.Logger                                 { return slog.New(slog.DiscardHandler) }
func (a *alone) Addresses() []netip.Addr                           { return nil }
func (a *alone) Call(ctx context.Context, _ transport.Peer, message []byte) ([]byte, error) {
	return a.tr.Serve(ctx, a.Self(), message)
}
func (a *alone) Complete([]transport.Completion)                             {}
func (a *alone) Ready(transport.Rail)                                        {}
func (a *alone) Progress(transport.Rail)                                     {}
func (a *alone) RailUp(i transport.RailInfo)                                 { a.up <- i }
func (a *alone) RailDown(transport.Rail, *errs.Error)                        {}
func (a *alone) LinkDown(transport.Link, *errs.Error)                        {}
func (a *alone) Fenced(transport.Link, transport.RemoteKey, transport.Epoch) {}
func (a *alone) Notified(transport.Peer, []byte) bool                        { return true }

// area is memory outside of Go's heap, not zero and not a power of two from the next: both would flatter a copy.
func area(t testing.TB, size int) []byte {
	b, err := unix.Mmap(-1, 0, size+5*4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Munmap(b) })
	for i := range b {
		b[i] = byte(i*31 + i>>12)
	}
	return b[:size]
}

// BenchmarkInline is one WRITE by Inline over each way, beside the bare copy or the bare system call.
func BenchmarkInline(b *testing.B) {
	for name, reach := range map[string]reach{"own": reachAll, "mapped": reachMapped, "kernel": reachForeign} {
		for _, size := range []int{64, 4096, 65536} {
			b.Run(fmt.Sprintf("%s/%d", name, size), func(b *testing.B) { benchInline(b, reach, size) })
		}
	}
	for _, size := range []int{64, 4096, 65536} {
		b.Run(fmt.Sprintf("bare/%d", size), func(b *testing.B) {
			from, to := area(b, size), area(b, size)
			for b.Loop() {
				copy(to, from)
			}
		})
	}
}

func benchInline(b *testing.B, reach reach, size int) {
	a := &alone{up: make(chan transport.RailInfo, 1)}
	tr, err := Factory{}.Open(context.Background(), Settings{reach: reach}, a, a)
	require.NoError(b, err)
	a.tr = tr.(*Transport)
	defer func() { require.NoError(b, tr.Close(context.Background())) }()
	link, err := tr.Attach(a.Self())
	require.NoError(b, err)
	rail := (<-a.up).Rail
	far, err := a.tr.Allocate(transport.Allocation{Size: uint64(size), Location: "cpu:0"})
	require.NoError(b, err)
	defer func() { require.NoError(b, a.tr.Free(far)) }()
	far.Permission = mem.GlobalReadWrite
	_, descriptor, err := tr.Register(context.Background(), far)
	require.NoError(b, err)
	remote, err := tr.Import(link, descriptor)
	require.NoError(b, err)
	from := area(b, size)
	local, _, err := tr.Register(context.Background(), mem.Region{Addr: mem.AddressOf(from), Size: uint64(size),
		Fd: -1})
	require.NoError(b, err)
	list := []*transport.Slice{{Op: transport.Write, Rail: rail, LocalKey: local, RemoteKey: remote,
		Local: mem.AddressOf(from), Length: uint64(size)}}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		if !a.tr.Inline(list) {
			b.Fatal("not carried out")
		}
	}
}
