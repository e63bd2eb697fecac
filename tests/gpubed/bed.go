//go:build cgo

package gpubed

import (
	"bytes"
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/cuda"
	"github.com/tent-engine/tent/tests/forked"
	"github.com/tent-engine/tent/tests/netbed"
)

// Peer is an Actor in a process of its own, as its parent sees it. An error there fails the test.
type Peer struct {
	*forked.Child
	Address string
	t       *testing.T
}

// Start opens the engine of a process that has begun, and ends the process with the test.
func Start(t *testing.T, c *forked.Child, settings map[string]any) *Peer {
	p := &Peer{Child: c, t: t}
	t.Cleanup(p.Kill)
	p.do("Open", settings, &p.Address)
	return p
}

func (p *Peer) do(method string, arg, result any) {
	require.NoError(p.t, p.Call("Actor."+method, arg, result))
}

// Own makes it register memory of a kind, see Actor.Own.
func (p *Peer) Own(kind Kind) { p.do("Own", kind, &forked.Nothing{}) }

// Peek returns all bytes of its memory.
func (p *Peer) Peek() (b []byte) {
	p.do("Peek", forked.Nothing{}, &b)
	return b
}

// Write makes it write into the region of an engine without pause.
func (p *Peer) Write(e *engine.Engine) { p.do("Write", e.Address(), &forked.Nothing{}) }

// Close makes it close its engine.
func (p *Peer) Close() { p.do("Close", forked.Nothing{}, &forked.Nothing{}) }

// Moves waits until it has completed a number of transfers from now on.
func (p *Peer) Moves(least uint64) {
	var before, now uint64
	end := time.Now().Add(netbed.Patience)
	for p.do("Moved", forked.Nothing{}, &before); now < before+least; runtime.Gosched() {
		require.Less(p.t, time.Now(), end, "it moves nothing")
		p.do("Moved", forked.Nothing{}, &now)
	}
}

// OpenEngine opens an engine of this process, which the end of the test closes.
func OpenEngine(t *testing.T, settings map[string]any) *engine.Engine {
	e, err := netbed.OpenEngine(settings)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.Empty(t, e.Close(5*time.Second, true), "the engine could not take everything back")
		require.NoError(t, e.Forget())
	})
	return e
}

// OpenCache opens the region of a peer.
func OpenCache(t *testing.T, e *engine.Engine, p *Peer) engine.SegmentID {
	ctx, cancel := context.WithTimeout(t.Context(), netbed.Patience)
	defer cancel()
	at, err := e.OpenSegment(ctx, p.Address+"/"+cache)
	require.NoError(t, err)
	return at
}

// Mine registers memory of cudaMalloc on cuda:0.
func Mine(t *testing.T, e *engine.Engine) uintptr {
	at, err := Allocate(Legacy, 0)
	require.NoError(t, err)
	id, err := e.Register(engine.Memory{Addr: at, Size: Size, Location: mem.Wildcard})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), netbed.Patience)
		defer cancel()
		require.NoError(t, e.CloseRegion(ctx, id))
		require.NoError(t, Free(Legacy, at))
	})
	return at
}

// Offer registers the inside of memory on the last device.
func Offer(t *testing.T, e *engine.Engine, kind Kind) (at uintptr, id mem.RegionID) {
	at, err := Allocate(kind, fake.Last())
	require.NoError(t, err)
	id, err = e.Register(inside(at))
	require.NoError(t, err)
	return at, id
}

// CloseWithin closes a region.
func CloseWithin(t *testing.T, e *engine.Engine, id mem.RegionID, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	return e.CloseRegion(ctx, id)
}

// RoundTrips moves bytes into the region of a peer, which owns memory, and back. Every byte of the memory is looked at
// each time, and once more at the end.
func RoundTrips(t *testing.T, e *engine.Engine, p *Peer, gpu *fake.Loaded, local uintptr, to engine.SegmentID) {
	expected, read, empty := Pattern(1, Size), make([]byte, Size), make([]byte, Size)
	for i := range uint64(8) {
		n, offset := span()
		sent := Pattern(2+i, int(n))
		require.NoError(t, gpu.Poke(local, sent))
		require.NoError(t, Move(e, transport.Write, local, n, to, offset))
		copy(expected[Band+offset:], sent)
		require.Equal(t, expected, p.Peek(), "%d bytes at %d", n, offset)
		require.NoError(t, gpu.Poke(local, empty))
		require.NoError(t, Move(e, transport.Read, local, n, to, offset))
		require.NoError(t, gpu.Peek(read, local))
		require.Equal(t, sent, read[:n])
		require.Equal(t, empty[n:], read[n:])
	}
	require.Equal(t, expected, p.Peek(), "a second look")
}

// Outlives kills a peer that owns memory and waits until the engine has heard of it.
func Outlives(t *testing.T, e *engine.Engine, p *Peer, local uintptr) {
	to := OpenCache(t, e, p)
	require.NoError(t, Move(e, transport.Write, local, Inside, to, 0))
	p.Kill()
	for end := time.Now().Add(netbed.Patience); Move(e, transport.Write, local, 4096, to, 0) == nil; {
		require.Less(t, time.Now(), end, "nobody has heard of the end")
	}
	require.NoError(t, e.CloseSegment(to))
}

// TakesBack offers memory to a peer that writes, takes it back, and looks twice: nothing is written any more. The peer
// may be killed in a copy.
func TakesBack(t *testing.T, e *engine.Engine, p *Peer, gpu *fake.Loaded, kind Kind, kill bool) {
	at, id := Offer(t, e, kind)
	p.Write(e)
	p.Moves(3)
	if kill {
		require.NoError(t, p.Signal(unix.SIGKILL))
	}
	require.NoError(t, CloseWithin(t, e, id, netbed.Patience))
	untouched := bytes.Repeat([]byte{canary}, Size)
	require.NoError(t, gpu.Poke(at, untouched))
	look := func() {
		now := make([]byte, Size)
		require.NoError(t, gpu.Peek(now, at))
		require.True(t, bytes.Equal(untouched, now), "written after the region was closed")
	}
	look()
	p.Kill()
	look() // all that was under way has ended
	require.NoError(t, Free(kind, at))
}
