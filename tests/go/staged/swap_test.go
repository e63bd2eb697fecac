//go:build cgo

package staged

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/cuda"
	verbs "github.com/tent-engine/tent/tests/fakes/verbs"
	"github.com/tent-engine/tent/tests/forked"
)

// OwnChunk registers a chunk of cuda:1 as "cache", all of it filled with a pattern. Types are its handles: other
// processes map it by those.
func (a *Actor) OwnChunk(types int, _ *forked.Nothing) error {
	gpu, err := fake.Load()
	if err != nil {
		return err
	}
	a.memory.by.bare, a.memory.at = gpu, gpu.Chunks(1, 1, types)
	if err = gpu.Poke(a.memory.at, pattern(1, fake.ChunkBytes)); err == nil {
		a.region, err = a.engine.Register(engine.Memory{Addr: a.memory.at, Size: fake.ChunkBytes, Name: "cache",
			Location: mem.Wildcard, Permission: mem.GlobalReadWrite})
	}
	return err
}

// Swap exchanges the chunk for another one at the same address, which nobody maps yet.
func (a *Actor) Swap(types int, _ *forked.Nothing) error {
	gpu, err := fake.Load()
	if err == nil {
		err = gpu.FreeChunks(a.memory.at, 1)
	}
	if err == nil && gpu.Chunks(1, 1, types) != a.memory.at {
		err = errors.New("it came to another place")
	}
	if err == nil {
		err = gpu.Poke(a.memory.at, pattern(3, fake.ChunkBytes))
	}
	if err == nil {
		err = a.engine.RemapRegion(context.Background(), a.region, 0, fake.ChunkBytes)
	}
	return err
}

// PeekChunk returns the bytes of the chunk.
func (a *Actor) PeekChunk(_ forked.Nothing, b *[]byte) error {
	*b = make([]byte, fake.ChunkBytes)
	return a.memory.by.bare.Peek(*b, a.memory.at)
}

// The peer exchanges memory that we map for memory without handles. NVLink has no way there, and NICs have one: by the
// dma-buf of the new pages, never by that of the old ones.
func TestExchangedMemoryIsReachedByItsNewBuffer(t *testing.T) {
	fake.RunWith(t, fake.Driver{}, nil, verbs.Environment(t), func(t *testing.T, _ *fake.Loaded) {
		with := byNICs(true)
		process, err := forked.Start()
		require.NoError(t, err)
		c := &child{Child: process, t: t}
		t.Cleanup(c.Kill)
		c.do("Open", with, &c.address)
		c.do("OwnChunk", fake.PosixFd, &forked.Nothing{})
		e, m := hereWith(t, 0, with)
		to := open(t, e, c.address)
		write := func(by string, seed uint64) {
			mine := pattern(seed, fake.ChunkBytes)
			require.NoError(t, m.poke(band, mine))
			s := moved(t, e, request(transport.Write, m, to, 0, fake.ChunkBytes))
			require.Equal(t, dispatch.Completed, s.State, "%v", s.Err)
			var there []byte
			c.do("PeekChunk", forked.Nothing{}, &there)
			x, err := e.Explain(request(transport.Write, m, to, 0, 4096))
			require.NoError(t, err)
			require.Equal(t, by, x.Taken, "%+v", x)
			require.True(t, bytes.Equal(mine, there), "COMPLETED, and other bytes are there")
		}
		write("nvlink", 11)
		c.do("Swap", fake.None, &forked.Nothing{})
		write("rdma", 12)
		c.do("Swap", fake.PosixFd, &forked.Nothing{})
		write("nvlink", 13)
	})
}
