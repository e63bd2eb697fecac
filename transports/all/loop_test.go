package all

import (
	"context"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/loop"
)

// patience is far beyond the time that an engine needs to take everything back; a longer one hangs.
const patience = 20 * time.Second

// TestOneLineAddsATransport adds loop to the table and moves bytes over it: nothing else knows that it exists.
func TestOneLineAddsATransport(t *testing.T) {
	before := table
	t.Cleanup(func() { table = before })
	table = append(table[:len(table):len(table)],
		entry{loop.Name, 99, "", "", nil, loop.Factory{}, false},
	)
	open := func() *engine.Engine {
		c, err := config.Load(config.Options{Transports: Transports()}, map[string]any{
			"transports/shm/enable": false, "transports/tcp/enable": false, "transports/loop/enable": true})
		require.NoError(t, err)
		e, err := engine.Open(t.Context(), engine.Options{Config: c, Transports: engine.Plugs(Factories()...)})
		require.NoError(t, err)
		t.Cleanup(func() { require.Empty(t, e.Close(patience, true)); require.NoError(t, e.Forget()) })
		return e
	}
	a, b := open(), open()
	for i := range from {
		from[i] = byte(i * 7)
	}
	_, err := a.Register(memoryOf(from, "", mem.LocalReadWrite))
	require.NoError(t, err)
	_, err = b.Register(memoryOf(to, "to", mem.GlobalReadWrite))
	require.NoError(t, err)
	peer, err := a.OpenSegment(context.Background(), b.Address()+"/to")
	require.NoError(t, err)
	id, err := a.Move(&engine.Request{Terms: engine.Terms{Op: transport.Write}, Source: uintptr(unsafe.Pointer(from)),
		Length: uint64(len(from)), Remote: engine.Remote{Segment: peer}})
	require.NoError(t, err)
	require.True(t, a.Wait(id, 20*time.Second).Terminal())
	sum, err := a.Summary(id)
	require.NoError(t, err)
	require.Equal(t, dispatch.Completed, sum.State, "%+v", sum)
	require.NoError(t, a.FreeBatch(id))
	require.Equal(t, *from, *to)
}

// from and to do not move, as memory that a user registers does not. They are none of Go's: the race detector knows no
// order between bytes that came through a socket and the look at them.
var from, to = mapped(), mapped()

func mapped() *[3 << 20]byte {
	b, err := unix.Mmap(-1, 0, 3<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		panic(err)
	}
	return (*[3 << 20]byte)(b)
}

func memoryOf(b *[3 << 20]byte, name string, permission mem.Permission) engine.Memory {
	return engine.Memory{Addr: uintptr(unsafe.Pointer(b)), Size: uint64(len(b)), Name: name, Location: mem.Wildcard,
		Permission: permission}
}

// kept is loop's factory; it keeps the transport that it opened.
type kept struct {
	loop.Factory
	opened transport.Transport
}

func (k *kept) Open(ctx context.Context, settings any, host transport.Host,
	sink transport.Sink) (_ transport.Transport, err error) {
	k.opened, err = k.Factory.Open(ctx, settings, host, sink)
	return k.opened, err
}

func TestStaleCallsAreAFigureOfTheirTransport(t *testing.T) {
	c, err := config.Load(config.Options{Transports: config.WithRails(loop.Name)}, nil)
	require.NoError(t, err)
	f := &kept{}
	e, err := engine.Open(t.Context(), engine.Options{Config: c, Transports: engine.Plugs(f)})
	require.NoError(t, err)
	t.Cleanup(func() { require.Empty(t, e.Close(patience, true)); require.NoError(t, e.Forget()) })
	require.Zero(t, e.Metrics()["tent_stale_calls_total"])
	f.opened.Detach(1<<32 | 1)
	require.EqualValues(t, 1, e.Metrics()["tent_stale_calls_total"])
}
