//go:build cgo

package cuda

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/cuda"
	"github.com/tent-engine/tent/transports/cuda/driver"
)

// alone is the engine of a transport that has only itself for a peer: its calls come back to it.
type alone struct {
	tr   transport.Transport
	up   chan transport.Rail
	ends int // one goroutine polls, so one completes
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
func (a *alone) Complete(list []transport.Completion) {
	for i := range list {
		if list[i].Err != nil {
			panic(list[i].Err)
		}
	}
	a.ends += len(list)
}
func (a *alone) Ready(transport.Rail)                                        {}
func (a *alone) Progress(transport.Rail)                                     {}
func (a *alone) RailUp(i transport.RailInfo)                                 { a.up <- i.Rail }
func (a *alone) RailDown(transport.Rail, *errs.Error)                        {}
func (a *alone) LinkDown(transport.Link, *errs.Error)                        {}
func (a *alone) Fenced(transport.Link, transport.RemoteKey, transport.Epoch) {}
func (a *alone) Notified(transport.Peer, []byte) bool                        { return true }

// BenchmarkSlice is one slice from Submit to its completion, by a waiter that polls, over an emulated driver with free
// copies. Beside it, in turns, stand loops in C: a copy, an event, a question; plain, and with the context made current
// around the calls. It runs by itself:
//
//	go test -run '^$' -bench Slice ./transports/cuda
func BenchmarkSlice(b *testing.B) {
	gpu := emulated(b)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const size, batch = 64 << 10, 16
	platform := driver.Platform{}
	var at [2]uintptr
	for i := range at {
		var err error
		at[i], err = platform.Allocate(i, size)
		require.NoError(b, err)
		defer func() { _ = platform.Free(at[i], size) }()
	}
	a := &alone{up: make(chan transport.Rail, 1)}
	tr, err := Factory{}.Open(b.Context(), nil, a, a)
	require.NoError(b, err)
	a.tr = tr
	defer func() { require.NoError(b, tr.Close(context.Background())) }()
	var keys [2]transport.LocalKey
	var there transport.Descriptor
	for i := range at {
		keys[i], there, err = tr.Register(b.Context(), mem.Region{Addr: at[i], Size: size, Kind: mem.Cuda,
			Location: mem.Location([]string{"cuda:0", "cuda:1"}[i]), Permission: mem.GlobalReadWrite})
		require.NoError(b, err)
	}
	link, err := tr.Attach(a.Self())
	require.NoError(b, err)
	rail := <-a.up
	remote, err := tr.Import(link, there)
	require.NoError(b, err)
	list := make([]*transport.Slice, batch)
	for i := range list {
		list[i] = &transport.Slice{Op: transport.Write, Rail: rail, LocalKey: keys[0], RemoteKey: remote, Local: at[0],
			Length: size, Id: uint64(i + 1)}
	}
	poller := tr.(transport.Poller)
	poller.Poll(1, transport.AllClasses) // the worker sleeps from here on
	defer poller.Arm()
	var plain, foreign, moving time.Duration
	for b.Loop() {
		plain += gpu.Loop(at[1], at[0], size, batch, false)
		foreign += gpu.Loop(at[1], at[0], size, batch, true)
		begin := time.Now()
		for sent, end := 0, a.ends+batch; a.ends < end; poller.Poll(batch, transport.AllClasses) {
			sent += tr.Submit(list[sent:])
		}
		moving += time.Since(begin)
	}
	slice := float64(b.N * batch)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(moving)/slice, "ns/slice")
	b.ReportMetric(float64(plain)/slice, "ns/plain")
	b.ReportMetric(float64(moving-plain)/slice, "above-plain")
	b.ReportMetric(float64(foreign)/slice, "ns/foreign")
	b.ReportMetric(float64(moving-foreign)/slice, "above-foreign")
}

// emulated makes the driver of this process the emulated one, if none was loaded yet.
func emulated(b *testing.B) *fake.Loaded {
	if os.Getenv("TENT_LIBCUDA") == "" {
		for _, s := range (fake.Settings{"FREE": "1"}).Environment(fake.Library(b, fake.Driver{})) {
			name, value, _ := strings.Cut(s, "=")
			b.Setenv(name, value)
		}
	}
	if err := (Factory{}).Check(); err != nil {
		b.Skipf("another driver was asked for before: %v", err)
	}
	gpu, err := fake.Load()
	require.NoError(b, err)
	return gpu
}
