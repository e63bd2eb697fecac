package engines

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/forked"
	"github.com/tent-engine/tent/tests/netbed"
	"github.com/tent-engine/tent/tests/roce"
)

// mortal opens an engine at B, and connects Near with it. The test ends its process itself.
func (w *world) mortal(t *testing.T) {
	t.Helper()
	c, err := forked.Start()
	require.NoError(t, err)
	t.Cleanup(c.Kill)
	var address string
	args := netbed.OpenArgs{Settings: w.settings(roce.B, onlyRDMA), Bytes: regionBytes}
	require.NoError(t, c.Call("Actor.Open", args, &address))
	require.NoError(t, w.Near.Call("Actor.Connect", address, &forked.Nothing{}))
	w.Far = c
}

// TestAPeerThatIsKilledEndsItsMoves kills the owner in the middle of a transfer, and starts another one. No byte of
// before is written here afterwards, and the next owner's bytes pass.
func TestAPeerThatIsKilledEndsItsMoves(t *testing.T) {
	w := newWorld(t, 2, onlyRDMA)
	someWay(t, func(t *testing.T, op transport.Op) {
		w.mortal(t)
		call := w.Half(t, op)
		w.Far.Kill()
		out := w.End(t, call)
		t.Logf("%+v", out)
		require.Equal(t, "FAILED", out.State)
		require.NotEmpty(t, out.Error)
		const own = 77
		require.NoError(t, w.Near.Call("Actor.Fill", uint64(own), &forked.Nothing{}))
		w.mortal(t)
		require.NoError(t, w.Near.Call("Actor.Check", uint64(own), &forked.Nothing{}), "written after the end")
		w.Move(t, transport.Write)
		w.Move(t, transport.Read)
	})
}

// TestAStoppedPeerIsServedByItsNIC stops the owner's process in the middle of a transfer. One-sided transfers need none
// of its processors, so they end while it stands.
func TestAStoppedPeerIsServedByItsNIC(t *testing.T) {
	w := newWorld(t, 2, onlyRDMA)
	someWay(t, func(t *testing.T, op transport.Op) {
		call := w.Half(t, op)
		require.NoError(t, w.Far.Stop())
		resumed := false
		resume := func() error {
			if resumed {
				return nil
			}
			resumed = true
			return w.Far.Signal(unix.SIGCONT)
		}
		t.Cleanup(func() { require.NoError(t, resume()) })
		out := w.End(t, call)
		t.Logf("moved in %v", out.Took.Round(time.Millisecond))
		require.Equal(t, "COMPLETED", out.State, out.Error)
		require.NoError(t, resume())
		w.Check(t)
	})
}

// TestMemoryThatMayNotBeLockedGoesByTCP opens an engine of an ordinary user, with a limit of locked memory below
// its region's size. RDMA is refused for that memory alone, with the cause and the limit's name.
func TestMemoryThatMayNotBeLockedGoesByTCP(t *testing.T) {
	const nobody, bytes, limit = 65534, 4 << 20, 2 << 20
	w := newWorld(t, 1, nil) // skips outside the guest; its engines are root's
	user := &world{Pair: netbed.NewPair(t, "tcp", bytes), rails: w.rails}
	start := func(limit uint64) func() (*forked.Child, error) {
		return func() (*forked.Child, error) {
			c, err := forked.Start(forked.As(nobody, nobody))
			if err == nil {
				err = unix.Prlimit(c.Pid(), unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: limit, Max: limit}, nil)
			}
			return c, err
		}
	}
	var address string
	user.Far, address = user.Open(t, start(4*bytes), user.settings(roce.B, nil))
	user.Near, _ = user.Open(t, start(limit), user.settings(roce.A, nil))
	require.NoError(t, user.Near.Call("Actor.Connect", address, &forked.Nothing{}))
	user.Move(t, transport.Write)
	user.Move(t, transport.Read)
	var how string
	require.NoError(t, user.Near.Call("Actor.Explain", forked.Nothing{}, &how))
	require.Contains(t, how, "memlock")
}
