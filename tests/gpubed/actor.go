//go:build cgo

// Package gpubed has two processes with engines, and memory of GPUs of an emulated driver. One process owns a region.
// The other one reads and writes it, or writes into it without pause.
package gpubed

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync/atomic"
	"testing"

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
	Size   = chunks * fake.ChunkBytes // of a memory
	Band   = 4096                     // at both ends of a memory, around its region: it stays as it was
	Inside = Size - 2*Band            // of a region
	mark   = 0xaa                     // the byte of writers
	canary = 0x55                     // the owner's byte, when no other process may write any more
)

// cache is the name of regions.
const cache = "cache"

// Kind is how memory was allocated.
type Kind int

// Kinds of memory: of cudaMalloc; chunks of a framework that asked for descriptors, for fabric handles or for no
// handle; and of Engine.Allocate's transport.
const (
	Legacy Kind = iota
	Passed
	Fabric
	Private
	Allocated
)

// Allocate returns memory of a device.
func Allocate(kind Kind, ordinal int) (uintptr, error) {
	gpu, err := fake.Load()
	if err != nil {
		return 0, err
	}
	switch kind {
	case Passed:
		return gpu.Chunks(ordinal, chunks, fake.PosixFd), nil
	case Fabric:
		return gpu.Chunks(ordinal, chunks, fake.Fabric), nil
	case Private:
		return gpu.Chunks(ordinal, chunks, fake.None), nil
	case Allocated:
		return driver.AllocateChunk(ordinal, Size, driver.Descriptors|driver.FabricToo)
	}
	return driver.Platform{}.Allocate(ordinal, Size)
}

// Free gives memory back.
func Free(kind Kind, at uintptr) error {
	if kind == Legacy || kind == Allocated {
		return driver.Platform{}.Free(at, Size)
	}
	gpu, err := fake.Load()
	if err != nil {
		return err
	}
	return gpu.FreeChunks(at, chunks)
}

// Pattern returns bytes that depend on the position and a seed.
func Pattern(seed uint64, n int) []byte {
	b := make([]byte, n)
	transporttest.Pattern(b, seed, 0)
	return b
}

// Move carries out one transfer; it is an error that it did not complete.
func Move(e *engine.Engine, op transport.Op, local uintptr, n uint64, at engine.SegmentID, offset uint64) error {
	s, err := netbed.Move(e, &engine.Request{Terms: engine.Terms{Op: op}, Source: local,
		Remote: engine.Remote{Segment: at, Offset: offset}, Length: n})
	if err == nil && s.State != dispatch.Completed {
		err = fmt.Errorf("%v: %w", s.State, s.Err)
	}
	return err
}

// span returns a random part of a region.
func span() (n, offset uint64) {
	n = 1 + rand.Uint64N(Inside)
	return n, rand.Uint64N(Inside - n + 1)
}

// Main is the TestMain of a package with Actors.
func Main(m *testing.M) {
	if forked.RunChild(new(Actor)) {
		return
	}
	os.Exit(m.Run())
}

// Actor is the other process: an engine that owns a region, or one that writes into its parent's without pause.
type Actor struct {
	engine *engine.Engine
	at     uintptr // the memory around the region
	moved  atomic.Uint64
}

// Open starts the engine.
func (a *Actor) Open(settings map[string]any, address *string) (err error) {
	if a.engine, err = netbed.OpenEngine(settings); err == nil {
		*address = a.engine.Address()
	}
	return err
}

// Own registers the inside of memory of a kind on the last device, all of it filled with Pattern(1, Size).
func (a *Actor) Own(kind Kind, _ *forked.Nothing) (err error) {
	if a.at, err = Allocate(kind, fake.Last()); err != nil {
		return err
	}
	gpu, err := fake.Load()
	if err == nil {
		err = gpu.Poke(a.at, Pattern(1, Size))
	}
	if err == nil {
		_, err = a.engine.Register(inside(a.at))
	}
	return err
}

// inside is the region of a memory.
func inside(at uintptr) engine.Memory {
	return engine.Memory{Addr: at + Band, Size: Inside, Name: cache, Location: mem.Wildcard,
		Permission: mem.GlobalReadWrite}
}

// Peek returns all bytes of the memory.
func (a *Actor) Peek(_ forked.Nothing, b *[]byte) error {
	*b = make([]byte, Size)
	gpu, err := fake.Load()
	if err != nil {
		return err
	}
	return gpu.Peek(*b, a.at)
}

// Close closes the engine.
func (a *Actor) Close(_ forked.Nothing, _ *forked.Nothing) error {
	if left := a.engine.Close(netbed.Patience, true); len(left) > 0 {
		return fmt.Errorf("left open: %v", left)
	}
	return a.engine.Forget()
}

// Write begins to write the mark into regions of an engine, and returns at once.
func (a *Actor) Write(address string, _ *forked.Nothing) error {
	at, err := Allocate(Legacy, 0)
	if err != nil {
		return err
	}
	gpu, err := fake.Load()
	if err == nil {
		err = gpu.Poke(at, bytes.Repeat([]byte{mark}, Size))
	}
	if err == nil {
		_, err = a.engine.Register(engine.Memory{Addr: at, Size: Size, Location: mem.Wildcard})
	}
	if err == nil {
		go a.writeForever(address, at)
	}
	return err
}

func (a *Actor) writeForever(address string, local uintptr) {
	for {
		to, err := a.engine.OpenSegment(context.Background(), address+"/"+cache)
		for err == nil {
			n, offset := span()
			if err = Move(a.engine, transport.Write, local, n, to, offset); err == nil {
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
func (a *Actor) Moved(_ forked.Nothing, n *uint64) error { *n = a.moved.Load(); return nil }
