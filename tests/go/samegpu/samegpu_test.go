//go:build cgo

// Package samegpu tests whole engines in two processes of one host that have memory of GPUs, of an emulated driver.
// Only nvlink takes part, so no other transport hides its failures.
package samegpu

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/cuda"
	"github.com/tent-engine/tent/tests/forked"
	"github.com/tent-engine/tent/tests/netbed"
	"github.com/tent-engine/tent/transports/cuda/driver"
	"github.com/tent-engine/tent/transports/transporttest"
)

const (
	chunks = 3
	size   = chunks * fake.ChunkBytes
	band   = 4096 // around a region: it stays as it was
	mark   = 0xaa // the byte of copiers
	canary = 0x55 // the owner's byte, when no other process may write any more
)

func TestMain(m *testing.M) {
	if forked.RunChild(new(Actor)) {
		return
	}
	os.Exit(m.Run())
}

func openEngine() (*engine.Engine, error) {
	return netbed.OpenEngine(map[string]any{"transports/nvlink/enable": true, "transports/tcp/enable": false,
		"transports/shm/enable": false, "staging/enable": false})
}

// pattern returns bytes that depend on the position and a seed.
func pattern(seed uint64, n int) []byte {
	b := make([]byte, n)
	transporttest.Pattern(b, seed, 0)
	return b
}

// Kind is how memory was allocated.
type Kind int

// Kinds of memory: that of cudaMalloc, chunks that can be shared by descriptors or by fabric handles, and chunks that
// cannot.
const (
	Legacy Kind = iota
	Chunks
	Fabric
	Private
)

// allocate returns memory of a device.
func allocate(kind Kind, ordinal int) (uintptr, error) {
	gpu, err := fake.Load()
	if err != nil {
		return 0, err
	}
	switch kind {
	case Chunks:
		return gpu.Chunks(ordinal, chunks, fake.PosixFd), nil
	case Fabric:
		return gpu.Chunks(ordinal, chunks, fake.Fabric), nil
	case Private:
		return gpu.Chunks(ordinal, chunks, fake.None), nil
	}
	return driver.Platform{}.Allocate(ordinal, size)
}

func free(kind Kind, at uintptr) error {
	if kind == Legacy {
		return driver.Platform{}.Free(at, size)
	}
	gpu, err := fake.Load()
	if err != nil {
		return err
	}
	return gpu.FreeChunks(at, chunks)
}

// move carries out one transfer; it is an error that it did not complete.
func move(e *engine.Engine, op transport.Op, local uintptr, n uint64, at engine.SegmentID, offset uint64) error {
	s, err := netbed.Move(e, &engine.Request{Terms: engine.Terms{Op: op}, Source: local,
		Remote: engine.Remote{Segment: at, Offset: offset}, Length: n})
	if err == nil && s.State != dispatch.Completed {
		err = fmt.Errorf("%v: %w", s.State, s.Err)
	}
	return err
}

// Actor is the child: an engine that owns a region, or one that writes into its parent's without pause.
type Actor struct {
	engine *engine.Engine
	at     uintptr // the memory around the region
	moved  atomic.Uint64
}

// Open starts the engine.
func (a *Actor) Open(_ netbed.Nothing, address *string) (err error) {
	if a.engine, err = openEngine(); err == nil {
		*address = a.engine.Address()
	}
	return err
}

// Own registers the inside of memory of a kind on cuda:1, all of it filled with a pattern.
func (a *Actor) Own(kind Kind, _ *netbed.Nothing) (err error) {
	if a.at, err = allocate(kind, 1); err != nil {
		return err
	}
	gpu, err := fake.Load()
	if err == nil {
		err = gpu.Poke(a.at, pattern(1, size))
	}
	if err == nil {
		_, err = a.engine.Register(engine.Memory{Addr: a.at + band, Size: size - 2*band, Name: "cache",
			Location: mem.Wildcard, Permission: mem.GlobalReadWrite})
	}
	return err
}

// Peek returns all bytes of the memory.
func (a *Actor) Peek(_ netbed.Nothing, b *[]byte) error {
	*b = make([]byte, size)
	gpu, err := fake.Load()
	if err != nil {
		return err
	}
	return gpu.Peek(*b, a.at)
}

// Write begins to write the mark into regions of an engine, and returns at once.
func (a *Actor) Write(address string, _ *netbed.Nothing) error {
	at, err := allocate(Legacy, 0)
	if err != nil {
		return err
	}
	gpu, err := fake.Load()
	if err == nil {
		err = gpu.Poke(at, bytes.Repeat([]byte{mark}, size))
	}
	if err == nil {
		_, err = a.engine.Register(engine.Memory{Addr: at, Size: size, Location: mem.Wildcard})
	}
	if err == nil {
		go a.writeForever(address, at)
	}
	return err
}

func (a *Actor) writeForever(address string, local uintptr) {
	for {
		to, err := a.engine.OpenSegment(context.Background(), address+"/cache")
		for err == nil {
			n := 1 + rand.Uint64N(size-2*band)
			if err = move(a.engine, transport.Write, local, n, to, rand.Uint64N(size-2*band-n+1)); err == nil {
				a.moved.Add(1)
			}
		}
		if to != 0 {
			_ = a.engine.CloseSegment(to)
		}
		runtime.Gosched()
	}
}

// Moved returns how many transfers have completed.
func (a *Actor) Moved(_ netbed.Nothing, n *uint64) error { *n = a.moved.Load(); return nil }

// child is another process with an engine.
type child struct {
	*forked.Child
	t       *testing.T
	address string
}

func start(t *testing.T) *child {
	c, err := forked.Start()
	require.NoError(t, err)
	p := &child{Child: c, t: t}
	t.Cleanup(p.Kill)
	p.do("Open", netbed.Nothing{}, &p.address)
	return p
}

func (c *child) do(method string, arg, result any) {
	require.NoError(c.t, c.Call("Actor."+method, arg, result))
}

// here opens the engine of this process.
func here(t *testing.T) *engine.Engine {
	e, err := openEngine()
	require.NoError(t, err)
	t.Cleanup(func() {
		require.Empty(t, e.Close(5*time.Second, true), "the engine could not take everything back")
		require.NoError(t, e.Forget())
	})
	return e
}

// mine registers memory on cuda:0.
func mine(t *testing.T, e *engine.Engine) uintptr {
	at, err := allocate(Legacy, 0)
	require.NoError(t, err)
	id, err := e.Register(engine.Memory{Addr: at, Size: size, Location: mem.Wildcard})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), netbed.Patience)
		defer cancel()
		require.NoError(t, e.CloseRegion(ctx, id))
		require.NoError(t, free(Legacy, at))
	})
	return at
}

func open(t *testing.T, e *engine.Engine, c *child) engine.SegmentID {
	ctx, cancel := context.WithTimeout(t.Context(), netbed.Patience)
	defer cancel()
	at, err := e.OpenSegment(ctx, c.address+"/cache")
	require.NoError(t, err)
	return at
}

// Bytes go to and from the inside of an allocation of another process, over the borders of its chunks, and nothing
// around them changes.
func TestBytesReachADeviceOfAnotherProcess(t *testing.T) {
	for name, kind := range map[string]Kind{"Legacy": Legacy, "Chunks": Chunks, "Fabric": Fabric} {
		t.Run(name, func(t *testing.T) {
			settings := fake.Settings{"DELAY_US": "20", "SEED": fmt.Sprint(rand.Int32()), "IMEX": "1"}
			t.Logf("settings %v", settings)
			fake.Run(t, fake.Driver{}, settings, func(t *testing.T, gpu *fake.Loaded) {
				c, e := start(t), here(t)
				c.do("Own", kind, &netbed.Nothing{})
				local, to := mine(t, e), open(t, e, c)
				expected, read, empty := pattern(1, size), make([]byte, size), make([]byte, size)
				for i := range uint64(8) {
					n := 1 + rand.Uint64N(size-2*band)
					offset := rand.Uint64N(size - 2*band - n + 1)
					bytes := pattern(2+i, int(n))
					require.NoError(t, gpu.Poke(local, bytes))
					require.NoError(t, move(e, transport.Write, local, n, to, offset))
					copy(expected[band+offset:], bytes)
					c.do("Peek", netbed.Nothing{}, &read)
					require.Equal(t, expected, read, "%d bytes at %d", n, offset)
					require.NoError(t, gpu.Poke(local, empty))
					require.NoError(t, move(e, transport.Read, local, n, to, offset))
					require.NoError(t, gpu.Peek(read, local))
					require.Equal(t, bytes, read[:n])
					require.Equal(t, empty[n:], read[n:])
				}
			})
		})
	}
}

const noAccess = "cuda:0 (PCI face:1a:00.0) has no peer access to cuda:1 (PCI face:1b:00.0): " +
	"cuDeviceCanAccessPeer says 0"

// Without a way, the plan leaves nvlink out, and the error has the reason of the driver or of the owner.
func TestAReasonIsGivenWhereThereIsNoWay(t *testing.T) {
	for name, c := range map[string]struct {
		kind     Kind
		settings fake.Settings
		says     string
	}{
		"no peer access":           {Legacy, fake.Settings{"APART": "all"}, noAccess},
		"no peer access to chunks": {Chunks, fake.Settings{"APART": "all"}, noAccess},
		"not shareable":            {Private, nil, "its allocator asked for no handle"},
		"another IMEX domain":      {Fabric, fake.Settings{"IMEX": "1"}, "800"},
	} {
		t.Run(name, func(t *testing.T) {
			fake.Run(t, fake.Driver{}, c.settings, func(t *testing.T, _ *fake.Loaded) {
				owner, e := start(t), here(t)
				owner.do("Own", c.kind, &netbed.Nothing{})
				t.Setenv("TENT_FAKECUDA_IMEX", "2") // of this process from here on
				err := move(e, transport.Write, mine(t, e), 4096, open(t, e, owner), 0)
				require.ErrorContains(t, err, c.says)
			})
		})
	}
}

// The end of an owner is heard of while its memory is mapped, which stays until the segment is closed. The engine goes
// on, and another owner can be reached.
func TestAnOwnerThatIsKilledLeavesTheOthers(t *testing.T) {
	for name, kind := range map[string]Kind{"Legacy": Legacy, "Chunks": Chunks, "Fabric": Fabric} {
		t.Run(name, func(t *testing.T) {
			fake.Run(t, fake.Driver{}, fake.Settings{"IMEX": "1"}, func(t *testing.T, _ *fake.Loaded) {
				e := here(t)
				local := mine(t, e)
				for range 2 {
					c := start(t)
					c.do("Own", kind, &netbed.Nothing{})
					to := open(t, e, c)
					require.NoError(t, move(e, transport.Write, local, size-2*band, to, 0))
					c.Kill()
					for end := time.Now().Add(netbed.Patience); move(e, transport.Write, local, 4096, to, 0) == nil; {
						require.Less(t, time.Now(), end, "nobody has heard of the end")
					}
					require.NoError(t, e.CloseSegment(to))
				}
			})
		})
	}
}

// A region stays as its owner leaves it once it was taken back. The peer copies into it all the time, or is killed in a
// copy.
func TestARegionThatWasTakenBackStaysAsItIs(t *testing.T) {
	for name, kind := range map[string]Kind{"Legacy": Legacy, "Chunks": Chunks, "Fabric": Fabric} {
		t.Run(name, func(t *testing.T) {
			settings := fake.Settings{"DELAY_US": "300", "SEED": fmt.Sprint(rand.Int32()), "IMEX": "1"}
			t.Logf("settings %v", settings)
			fake.Run(t, fake.Driver{}, settings, func(t *testing.T, gpu *fake.Loaded) {
				e, untouched := here(t), bytes.Repeat([]byte{canary}, size)
				for _, ends := range []bool{false, true} {
					takenBack(t, e, gpu, kind, ends, untouched)
				}
			})
		})
	}
}

// takenBack offers memory to a process that writes, takes it back, and looks twice.
func takenBack(t *testing.T, e *engine.Engine, gpu *fake.Loaded, kind Kind, kill bool, untouched []byte) {
	at, err := allocate(kind, 1)
	require.NoError(t, err)
	id, err := e.Register(engine.Memory{Addr: at + band, Size: size - 2*band, Name: "cache", Location: mem.Wildcard,
		Permission: mem.GlobalReadWrite})
	require.NoError(t, err)
	c := start(t)
	c.do("Write", e.Address(), &netbed.Nothing{})
	for n := uint64(0); n < 3; {
		c.do("Moved", netbed.Nothing{}, &n)
		runtime.Gosched()
	}
	if kill {
		require.NoError(t, c.Signal(unix.SIGKILL))
	}
	ctx, cancel := context.WithTimeout(t.Context(), netbed.Patience)
	defer cancel()
	require.NoError(t, e.CloseRegion(ctx, id))
	require.NoError(t, gpu.Poke(at, untouched))
	look := func() {
		now := make([]byte, size)
		require.NoError(t, gpu.Peek(now, at))
		require.True(t, bytes.Equal(untouched, now), "written after the region was closed")
	}
	look()
	c.Kill()
	look() // all that was under way has ended
	require.NoError(t, free(kind, at))
}
