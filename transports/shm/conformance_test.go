package shm

import (
	"context"
	"os"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/transporttest"
)

// TestConformance runs the suite of the contract over each way to a peer's memory. All engines of a test are in one
// process; process_test.go has two.
func TestConformance(t *testing.T) {
	for name, c := range map[string]struct {
		reach reach
		pool  bool
		run   func(*testing.T, func(*testing.T) transporttest.Harness)
	}{
		"OwnProcess": {reachOwn, false, transporttest.Beside},
		"Mapped":     {reachAll, true, transporttest.Run},
		"Foreign":    {reachForeign, false, transporttest.Beside},
	} {
		t.Run(name, func(t *testing.T) {
			c.run(t, func(t *testing.T) transporttest.Harness { return harness(t, c.reach, c.pool) })
		})
	}
}

// harness opens transports that reach each other's memory by one way.
func harness(t *testing.T, reach reach, pool bool) transporttest.Harness {
	h := transporttest.Harness{Check: Factory{}.Check,
		Open: func(t *testing.T, tc transporttest.Config) transport.Transport {
			tr, err := Factory{}.Open(context.Background(), Settings{reach: reach}, tc.Host, tc.Sink)
			require.NoError(t, err)
			return tr
		}}
	if pool {
		h.Pool = sealedPool(t, 1<<30)
	}
	return h
}

// sealedPool is memory that peers can map, as Allocate's is. It is sparse: untouched pages cost nothing.
func sealedPool(t *testing.T, size int64) transporttest.Pool {
	fd, err := unix.MemfdCreate("tent-test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	require.NoError(t, unix.Ftruncate(fd, size))
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
	require.NoError(t, err)
	all, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, unix.Munmap(all))
		require.NoError(t, unix.Close(fd))
	})
	var used atomic.Int64
	return func(t testing.TB, size int) ([]byte, int, uint64) {
		page := int64(os.Getpagesize())
		room := (int64(size) + page - 1) / page * page
		end := used.Add(room)
		require.LessOrEqual(t, end, int64(len(all)), "the pool is too small for this test")
		return all[end-room : end : end], fd, uint64(end - room)
	}
}
