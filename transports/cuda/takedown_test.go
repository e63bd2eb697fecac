//go:build cgo

package cuda

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/cuda"
	"github.com/tent-engine/tent/transports/cuda/driver"
	"github.com/tent-engine/tent/transports/transporttest"
)

// heldStream makes a stream of the program wait: the driver frees nothing meanwhile.
func heldStream(t *testing.T) (release func()) {
	latch, err := driver.Platform{}.Hold(1<<2 | 1) // the default stream of the first device
	require.NoError(t, err)
	return func() { latch.Release(1); latch.Close() }
}

// within is a call that must return while a stream of the program waits.
func within(t *testing.T, what string, call func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		call()
	}()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		t.Errorf("%s waits for a stream of the program", what)
	}
}

// A stream of the program may wait for a transfer that is to come, and the driver unmaps chunks behind all streams.
// Neither a plan nor an import waits for that, or the transfer would never come.
func TestPlansWaitForNoMappingThatIsTakenDown(t *testing.T) {
	fake.Run(t, fake.Driver{}, nil, func(t *testing.T, gpu *fake.Loaded) {
		w := transporttest.NewWorld(t, suite(onDevice(0), inChunks(1), true))
		near, far := w.Open("near"), w.Open("far")
		link, guest := near.Connect(t, far), near.Transport.(*nvlink)
		local := near.Register(t, 4096, mem.LocalReadWrite)
		write := func(to *transporttest.Remote) {
			link.Must(t, link.Slice(transport.Write, link.Rail(t), local, 0, to, 0, 4096))
		}
		offer := func() *transporttest.Operand { return far.Register(t, 4096, mem.GlobalReadWrite) }
		closed, forgotten, other := offer(), offer(), offer()
		first, second := link.Import(t, closed), link.Import(t, forgotten)
		write(first)
		write(second)
		mapped := gpu.Stats().Mappings
		closed.Revoke(t, nil)
		closed.Deregister(t)

		release := heldStream(t)
		l := guest.links.Lookup(link.Link)
		l.Kick() // as the time does
		await(t, "a mapping is being taken down", func() bool {
			l.imports.down.mu.Lock()
			defer l.imports.down.mu.Unlock()
			return l.imports.down.over != nil
		})
		within(t, "Forget", func() { guest.Forget(link.Link, second.Key) })
		within(t, "Match", func() { _, _ = guest.Match(link.Link, local.Key, first.Key) })
		within(t, "Import", func() { write(link.Import(t, other)) })
		require.EqualValues(t, mapped+1, gpu.Stats().Mappings)
		release()
		await(t, "two mappings end", func() bool { return gpu.Stats().Mappings == mapped-1 })
	})
}

// The driver lets pinned memory go behind the work of all streams. Close does not wait for that longer than it may, and
// says so; the memory goes when the stream goes on, and a further Close waits for it.
func TestCloseLeavesADriverBehindThatLetsNoPinnedMemoryGo(t *testing.T) {
	fake.Run(t, fake.Driver{}, nil, func(t *testing.T, gpu *fake.Loaded) {
		settings := Settings{Copying: Copying{HostRegister: true}}
		w := transporttest.NewWorld(t, suiteOf(onHost(), onDevice(0), settings))
		near := w.Open("near")
		near.Register(t, 4096, mem.LocalReadWrite)
		release := heldStream(t)
		pinned := gpu.Stats().Pinned
		within(t, "Close", func() {
			for range 2 {
				limited, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				err := near.Transport.Close(limited)
				cancel()
				require.Equal(t, errs.Timeout, errs.CodeOf(err), "%v", err)
			}
		})
		require.Equal(t, pinned, gpu.Stats().Pinned)
		release()
		require.NoError(t, near.Transport.Close(t.Context()))
		require.Equal(t, pinned-1, gpu.Stats().Pinned)
	})
}
