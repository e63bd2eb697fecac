//go:build cgo

// Package twohosts tests whole engines in two processes that count as those of two hosts, in one domain of multi-node
// NVLink. The driver and NVML are emulated. Where nothing else is said only mnnvl takes part, so no other transport
// hides its failures.
package twohosts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/cuda"
	fakenvml "github.com/tent-engine/tent/tests/fakes/nvml"
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

// address is that of all engines: two machines never meet at one of loopback.
const address = "10.99.0.1"

// keyFile is the variable of the environment with the path of the cluster's key.
const keyFile = "TENT_TEST_KEY"

// settings are those of an engine that reaches GPUs of other hosts by mnnvl alone.
func settings() map[string]any {
	return map[string]any{"staging/enable": false, "rpc_server_hostname": address,
		"security/cluster_key": os.Getenv(keyFile)}
}

// alone are settings with no other transport.
func alone() map[string]any {
	s := settings()
	s["transports/tcp/enable"] = false
	return s
}

// pattern returns bytes that depend on the position and a seed.
func pattern(seed uint64, n int) []byte {
	b := make([]byte, n)
	transporttest.Pattern(b, seed, 0)
	return b
}

// Kind is how memory was allocated.
type Kind int

// Kinds of memory: of Engine.Allocate's transport, chunks of a framework that asked for fabric handles or for
// descriptors alone, and memory of cudaMalloc.
const (
	Allocated Kind = iota
	Fabric
	Passed
	Legacy
)

// allocate returns memory of a device.
func allocate(kind Kind, ordinal int) (uintptr, error) {
	gpu, err := fake.Load()
	if err != nil {
		return 0, err
	}
	switch kind {
	case Fabric:
		return gpu.Chunks(ordinal, chunks, fake.Fabric), nil
	case Passed:
		return gpu.Chunks(ordinal, chunks, fake.PosixFd), nil
	case Legacy:
		return driver.Platform{}.Allocate(ordinal, size)
	}
	return driver.AllocateChunk(ordinal, size, driver.Descriptors|driver.FabricToo)
}

func free(kind Kind, at uintptr) error {
	if kind == Legacy || kind == Allocated {
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
func (a *Actor) Open(settings map[string]any, at *string) (err error) {
	if a.engine, err = netbed.OpenEngine(settings); err == nil {
		*at = a.engine.Address()
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

// Close closes the engine.
func (a *Actor) Close(_ netbed.Nothing, _ *netbed.Nothing) error {
	if left := a.engine.Close(netbed.Patience, true); len(left) > 0 {
		return fmt.Errorf("left open: %v", left)
	}
	return a.engine.Forget()
}

// Write begins to write the mark into regions of an engine, and returns at once.
func (a *Actor) Write(owner string, _ *netbed.Nothing) error {
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
		go a.writeForever(owner, at)
	}
	return err
}

func (a *Actor) writeForever(owner string, local uintptr) {
	for {
		to, err := a.engine.OpenSegment(context.Background(), owner+"/cache")
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

// child is a process on another host, with an engine.
type child struct {
	*forked.Child
	t       *testing.T
	address string
}

// start starts one with more of an environment.
func start(t *testing.T, settings map[string]any, more ...string) *child {
	c, err := netbed.StartOnOtherMachine(func(c *exec.Cmd) { c.Env = append(c.Env, more...) })
	require.NoError(t, err)
	p := &child{Child: c, t: t}
	t.Cleanup(p.Kill)
	p.do("Open", settings, &p.address)
	return p
}

func (c *child) do(method string, arg, result any) {
	require.NoError(c.t, c.Call("Actor."+method, arg, result))
}

// moves waits until the child has moved something since now.
func (c *child) moves(least uint64) {
	var before, now uint64
	end := time.Now().Add(netbed.Patience)
	for c.do("Moved", netbed.Nothing{}, &before); now < before+least; runtime.Gosched() {
		require.Less(c.t, time.Now(), end, "the child moves nothing")
		c.do("Moved", netbed.Nothing{}, &now)
	}
}

// here opens the engine of this process.
func here(t *testing.T, settings map[string]any) *engine.Engine {
	e, err := netbed.OpenEngine(settings)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.Empty(t, e.Close(5*time.Second, true), "the engine could not take everything back")
		require.NoError(t, e.Forget())
	})
	return e
}

// mine registers memory on cuda:0, as a framework has it.
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

// inDomain carries a test out in a process of a host in the domain, with more of an environment.
func inDomain(t *testing.T, s fake.Settings, test func(t *testing.T, gpu *fake.Loaded), environment ...string) {
	if s == nil {
		s = fake.Settings{}
	}
	s["IMEX"] = "1"
	more := append(environment, fakenvml.Env+"="+fakenvml.Library(t))
	if os.Getenv(keyFile) == "" { // we are not the child
		t.Logf("settings %v", s)
		if err := netbed.EnterAlone(address); errors.Is(err, netbed.ErrUnavailable) {
			t.Skip(err)
		} else {
			require.NoError(t, err)
		}
		key, err := netbed.ClusterKey(t.TempDir())
		require.NoError(t, err)
		more = append(more, keyFile+"="+key)
	}
	fake.RunWith(t, fake.Driver{}, s, more, test)
}
