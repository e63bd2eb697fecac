//go:build cgo

package gds

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/fakes/cuda"
	fake "github.com/tent-engine/tent/tests/fakes/cufile"
	"github.com/tent-engine/tent/transports/cuda/driver"
	"github.com/tent-engine/tent/transports/file"
	"github.com/tent-engine/tent/transports/transporttest"
)

// Behind a Remap the library has pinned the chunk that is there now, or none where it refuses. It gives no memory back
// under a run of it, while runs of other memory may take for ever: slices that wait meanwhile arrive.
func TestARemapPinsThePagesOfNow(t *testing.T) {
	for name, absent := range map[string][]string{"batches": nil, "threads": fake.BatchCalls} {
		t.Run(name, func(t *testing.T) {
			fake.Run(t, nil, nil, absent, func(t *testing.T, io *fake.Loaded, gpu *cuda.Loaded) {
				var chunk uintptr
				harness := harness(file.Settings{Threads: 2})
				onChunk := *harness.Local
				onChunk.Allocate = func(*testing.T, int) uintptr {
					chunk = gpu.Chunks(0, 1, cuda.PosixFd)
					return chunk
				}
				onChunk.Free = func(at uintptr, _ int) { require.NoError(t, gpu.FreeChunks(at, 1)) }
				harness.Local = &onChunk
				w := transporttest.NewWorld(t, harness)
				near, far := w.Open("near"), w.Open("far")
				conn := near.Connect(t, far)
				local := near.Register(t, size, mem.LocalReadWrite)
				remote := conn.Import(t, far.Register(t, size, mem.GlobalReadWrite))
				at := func(i uint64) *transport.Slice {
					return conn.Slice(transport.Write, conn.Rail(t), local, i<<16, remote, i<<16, 1<<16)
				}
				remap := func(ctx context.Context, key transport.LocalKey) error {
					r, is := transport.Find[transport.Remapper](near.Transport)
					require.True(t, is, "nobody says to the library that its pages are gone")
					return r.Remap(ctx, key, transport.Remapped{Length: size})
				}
				beside, err := driver.Platform{}.Allocate(0, size)
				require.NoError(t, err)
				idle, _, err := near.Transport.Register(t.Context(), mem.Region{Addr: beside, Size: size,
					Kind: mem.Cuda, Location: "cuda:0"})
				require.NoError(t, err)
				local.Fill(tag, 0, size)
				conn.Must(t, at(0))

				io.Hold(true)
				first, second := at(1), at(2)
				conn.Send(first)
				require.Eventually(t, func() bool { return io.Stats().UnderWay == 1 }, patience, time.Millisecond)
				over, cancel := context.WithCancel(t.Context())
				cancel()
				require.Equal(t, errs.Timeout, errs.CodeOf(remap(over, local.Key)))
				require.NoError(t, remap(over, idle), "no run has its memory")
				conn.Send(second)
				io.Hold(false)
				for _, end := range conn.Wait(t, first, second) {
					require.Nil(t, end.Err)
				}
				require.NoError(t, near.Transport.Deregister(t.Context(), idle))
				require.NoError(t, driver.Platform{}.Free(beside, size))

				for _, refused := range []bool{false, true, false} {
					bytes := make([]byte, cuda.ChunkBytes)
					require.NoError(t, gpu.Peek(bytes, chunk))
					require.NoError(t, gpu.FreeChunks(chunk, 1))
					require.Equal(t, chunk, gpu.Chunks(0, 1, cuda.PosixFd), "another chunk at the same address")
					require.NoError(t, gpu.Poke(chunk, bytes))
					if refused {
						io.Inject("cuFileBufRegister", 1, 5036)
					}
					require.NoError(t, remap(t.Context(), local.Key))
					require.Equal(t, map[bool]int64{false: 1}[refused], io.Stats().Buffers)
					conn.Must(t, at(3))
				}
			})
		})
	}
}

// The library keeps a range once for a process. A Remap by one engine waits for the runs of the others: each
// of them has one, at a time of its own.
func TestARemapWaitsForTheRunsOfOtherEngines(t *testing.T) {
	for name, absent := range map[string][]string{"batches": nil, "threads": fake.BatchCalls} {
		t.Run(name, func(t *testing.T) {
			fake.Run(t, nil, nil, absent, func(t *testing.T, io *fake.Loaded, gpu *cuda.Loaded) {
				r := open(t, file.Settings{})
				second := r.world.Open("second")
				key, _, err := second.Transport.Register(t.Context(), mem.Region{Addr: r.local.Addr, Size: size,
					Kind: mem.Cuda, Location: "cuda:0"})
				require.NoError(t, err)
				require.EqualValues(t, 1, io.Stats().Buffers)
				remap, is := transport.Find[transport.Remapper](second.Transport)
				require.True(t, is)
				io.Hold(true)
				s := r.slice(transport.Write, 0, 1<<16)
				r.conn.Send(s)
				require.Eventually(t, func() bool { return io.Stats().UnderWay == 1 }, patience, time.Millisecond)
				over, cancel := context.WithCancel(t.Context())
				cancel()
				err = remap.Remap(over, key, transport.Remapped{Length: size})
				require.Equal(t, errs.Timeout, errs.CodeOf(err))
				io.Hold(false)
				require.Nil(t, r.conn.Wait(t, s)[0].Err)
				require.NoError(t, remap.Remap(t.Context(), key, transport.Remapped{Length: size}))
				require.NoError(t, second.Transport.Deregister(t.Context(), key))
				r.conn.Must(t, r.slice(transport.Write, 0, size))
			})
		})
	}
}
