// Package samehost tests whole engines in two processes of one host that share memory. Either side is killed or stopped
// at random moments, or loses its memory. Only shm takes part, so no other transport hides its failures.
package samehost

import (
	"context"
	"math/rand/v2"
	"os"
	"runtime"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/forked"
	"github.com/tent-engine/tent/tests/netbed"
	"github.com/tent-engine/tent/transports/transporttest"
)

const (
	regionBytes = 2 << 20
	mark        = 0xaa // the byte of copiers
	canary      = 0x55 // the owner's byte, when no other process may write any more
)

// names of an owner's regions: memory that peers map, and memory that they reach through the kernel.
var names = []string{"pool", "user"}

func TestMain(m *testing.M) {
	if forked.RunChild(new(Actor)) {
		return
	}
	os.Exit(m.Run())
}

func openEngine() (*engine.Engine, error) {
	return netbed.OpenEngine(map[string]any{"transports/shm/enable": true, "transports/tcp/enable": false})
}

// mapped is memory outside of Go's heap that is never given back: a peer's late bytes hit nothing else.
func mapped(size int) ([]byte, error) {
	return unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
}

func fill(b []byte, value byte) {
	for i := range b {
		b[i] = value
	}
}

// owned is a region with its bytes.
type owned struct {
	id    mem.RegionID
	name  string
	bytes []byte
}

// own makes a region: "pool" of tent's memory, "user" of the user's.
func own(e *engine.Engine, name string) (*owned, error) {
	m := engine.Memory{Size: regionBytes, Name: name, Location: mem.Wildcard, Permission: mem.GlobalReadWrite}
	if name == "pool" {
		id, r, err := e.Allocate(m)
		if err != nil {
			return nil, err
		}
		return &owned{id, name, mem.Bytes(r.Addr, regionBytes)}, nil
	}
	b, err := mapped(regionBytes)
	if err != nil {
		return nil, err
	}
	m.Addr = mem.AddressOf(b)
	id, err := e.Register(m)
	return &owned{id, name, b}, err
}

// move carries out one transfer and returns how it ended.
func move(e *engine.Engine, op transport.Op, class uint8, local []byte, at engine.SegmentID,
	offset uint64) (dispatch.Summary, error) {
	return netbed.Move(e, &engine.Request{Terms: engine.Terms{Op: op, Class: class}, Source: mem.AddressOf(local),
		Remote: engine.Remote{Segment: at, Offset: offset}, Length: uint64(len(local))})
}

// Actor is the child: an engine that owns regions, or one that copies into and out of its parent's without pause.
type Actor struct {
	engine  *engine.Engine
	regions []*owned
	moved   [copiers]atomic.Uint64
}

// copiers of a child; each has a class of its own.
const copiers = 3

// Open starts the engine.
func (a *Actor) Open(_ forked.Nothing, address *string) (err error) {
	if a.engine, err = openEngine(); err == nil {
		*address = a.engine.Address()
	}
	return err
}

// Own makes the regions, filled with a pattern of the seed.
func (a *Actor) Own(seed uint64, _ *forked.Nothing) error {
	for _, name := range names {
		r, err := own(a.engine, name)
		if err != nil {
			return err
		}
		transporttest.Pattern(r.bytes, seed, 0)
		a.regions = append(a.regions, r)
	}
	return nil
}

// Lose takes the user's memory away without telling the engine.
func (a *Actor) Lose(forked.Nothing, *forked.Nothing) error { return lose(a.regions[1].bytes) }

// lose makes memory as inaccessible as munmap does, but keeps its address from being used for something else meanwhile.
func lose(b []byte) error { return unix.Mprotect(b, unix.PROT_NONE) }

// Copy begins to copy into and out of the regions of an engine, and returns at once.
func (a *Actor) Copy(address string, _ *forked.Nothing) error {
	for i := range copiers {
		local, err := mapped(regionBytes)
		if err != nil {
			return err
		}
		fill(local, mark)
		if _, err := a.engine.Register(engine.Memory{Addr: mem.AddressOf(local), Size: regionBytes,
			Location: mem.Wildcard}); err != nil {
			return err
		}
		go a.copyForever(i, address, local)
	}
	return nil
}

// copyForever moves pieces of random sizes, most of them small. When a region is taken back, it opens the next one of
// that name. Only WRITEs bring the mark: a READ may return any bytes.
func (a *Actor) copyForever(copier int, address string, local []byte) {
	ctx := context.Background()
	segments := map[string]engine.SegmentID{}
	for i := copier; ; i++ {
		name := names[i%len(names)]
		at, open := segments[name]
		if !open {
			var err error
			if at, err = a.engine.OpenSegment(ctx, address+"/"+name); err != nil {
				runtime.Gosched()
				continue
			}
			segments[name] = at
		}
		size := 1 + rand.IntN(1<<(8+rand.IntN(14)))
		offset := rand.IntN(regionBytes - size + 1)
		op := transport.Op(rand.IntN(2))
		if s, err := move(a.engine, op, uint8(copier), local[:size], at, uint64(offset)); err != nil ||
			s.State != dispatch.Completed {
			_ = a.engine.CloseSegment(at)
			delete(segments, name)
			continue
		}
		if op == transport.Read {
			fill(local[:size], mark)
		}
		a.moved[copier].Add(1)
	}
}

// Moved returns how many transfers each copier has completed.
func (a *Actor) Moved(_ forked.Nothing, counts *[copiers]uint64) error {
	for i := range counts {
		counts[i] = a.moved[i].Load()
	}
	return nil
}
