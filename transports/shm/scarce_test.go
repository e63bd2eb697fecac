package shm

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/host/vm"
)

// leave gives this process room for some descriptors more, until restore.
func leave(t *testing.T, room int) (restore func()) {
	var before unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	limit := 0 // the numbers below it that are free are as many
	for range room {
		fd, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, limit)
		require.NoError(t, err)
		require.NoError(t, unix.Close(fd))
		limit = fd + 1
	}
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(limit), Max: before.Max}))
	return func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &before)) }
}

// short is an engine with few descriptors left for the first greeting: its owner's side, or its initiator's.
type short struct {
	alone
	t       *testing.T
	owner   bool
	room    int
	calls   int
	restore func()
}

func (s *short) Call(ctx context.Context, to transport.Peer, message []byte) (answer []byte, err error) {
	if s.calls++; s.calls > 1 {
		s.enough()
		return s.alone.Call(ctx, to, message)
	}
	if s.owner {
		s.restore = leave(s.t, s.room)
		defer s.enough()
	}
	if answer, err = s.alone.Call(ctx, to, message); !s.owner {
		s.restore = leave(s.t, s.room)
	}
	return answer, err
}

func (s *short) enough() {
	if s.restore != nil {
		s.restore()
		s.restore = nil
	}
}

// A moment without descriptors, at any step of a greeting and on either side, passes: the link comes up afterwards.
func TestAMomentWithoutDescriptorsEndsNoLink(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for _, side := range []string{"owner", "initiator"} {
		t.Run(side, func(t *testing.T) {
			s := &short{alone: alone{up: make(chan transport.RailInfo, 8)}, t: t, owner: side == "owner",
				room: random.IntN(5)}
			t.Logf("room for %d", s.room)
			tr, err := Factory{}.Open(context.Background(), Settings{reach: reachMapped}, s, s)
			require.NoError(t, err)
			s.tr = tr.(*Transport)
			t.Cleanup(func() {
				require.NoError(t, tr.Close(context.Background()))
				s.enough()
			})
			number, err := tr.Attach(s.Self())
			require.NoError(t, err)
			l := s.tr.links.Lookup(number)
			select {
			case <-s.up:
			case <-time.NewTimer(10 * time.Second).C:
				require.Fail(t, "the link does not come up", "%v", l.Gone())
			}
		})
	}
}

// Memory that cannot be mapped at the moment, where Yama keeps us from any other, says so.
func TestAnImportWithoutDescriptorsSaysSo(t *testing.T) {
	scope := vm.ScopeAdmin
	a, link, _ := newAlone(t, Settings{reach: reachMapped, yama: &scope})
	far, err := a.tr.Allocate(transport.Allocation{Size: 4096, Location: "cpu:0"})
	require.NoError(t, err)
	defer func() { require.NoError(t, a.tr.Free(far)) }()
	far.Permission = mem.GlobalReadWrite
	_, descriptor, err := a.tr.Register(context.Background(), far)
	require.NoError(t, err)
	restore := leave(t, 0)
	_, err = a.tr.Import(link, descriptor)
	restore()
	require.ErrorContains(t, err, "too many open files")
	require.ErrorContains(t, err, "ulimit -n")
	require.False(t, errs.From("", err).Permanent())
	_, err = a.tr.Import(link, descriptor)
	require.NoError(t, err)
}

// A process without descriptors does not say that another one is not there.
func TestALackOfDescriptorsIsNotTheEndOfAProcess(t *testing.T) {
	me, err := vm.Self()
	require.NoError(t, err)
	for room := range 2 {
		restore := leave(t, room)
		_, err = vm.Open(me.PID, me.Started)
		restore()
		require.ErrorIs(t, err, unix.EMFILE)
		require.NotContains(t, err.Error(), "there is no process")
	}
}
