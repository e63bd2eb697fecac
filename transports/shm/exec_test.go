package shm

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/forked"
)

// otherEnv makes this program one that an owner becomes by exec: it says at which address it has memory.
const otherEnv = "TENT_TEST_OTHER_PROGRAM"

// Descriptors that an owner hands down to it.
const (
	otherMemory = 4 // its memory, which the test maps too
	otherReady  = 5 // a pipe, for a byte when the memory is mapped
)

// Become makes the owner's process another program, with memory of its own at the address that was offered last. There
// is no answer.
func (o *Owner) Become(forked.Nothing, *forked.Nothing) error {
	at := strconv.FormatUint(uint64(mem.AddressOf(o.memory)), 10)
	return syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), otherEnv+"="+at))
}

// runOther is that program. It reports false in any other process.
func runOther() bool {
	at, err := strconv.ParseUint(os.Getenv(otherEnv), 10, 64)
	if err != nil {
		return false
	}
	if _, err := unix.MmapPtr(otherMemory, 0, mem.Pointer(uintptr(at)), testBytes, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED|unix.MAP_FIXED_NOREPLACE); err != nil {
		panic(err)
	}
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		panic(err)
	}
	_, _ = unix.Write(otherReady, []byte{1})
	select {} // until the test kills it
}

// An owner that calls exec is another program under the same pid, and its pidfd is silent. Nothing is written there,
// although it has memory where the owner had it, and the link ends as by the end of the process.
func TestAProgramThatAPeerBecomesIsLeftAlone(t *testing.T) {
	fd, err := unix.MemfdCreate("other", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	memory := os.NewFile(uintptr(fd), "other")
	defer memory.Close()
	require.NoError(t, memory.Truncate(testBytes))
	for _, allocated := range []bool{false, true} {
		ready, theirs, err := os.Pipe()
		require.NoError(t, err)
		p := startOwner(t, Settings{}, Opening{},
			func(c *exec.Cmd) { c.ExtraFiles = append(c.ExtraFiles, memory, theirs) })
		require.NoError(t, theirs.Close())
		rail, down := p.attach()
		require.Nil(t, down)
		remote, err := p.tr.Import(p.link, p.offer(allocated, mem.GlobalReadWrite))
		require.NoError(t, err)
		b := area(t, testBytes)
		local, _, err := p.tr.Register(context.Background(), mem.Region{Addr: mem.AddressOf(b), Size: testBytes,
			Fd: -1})
		require.NoError(t, err)
		slice := func() *transport.Slice {
			return &transport.Slice{Op: transport.Write, Rail: rail, LocalKey: local, RemoteKey: remote,
				Local: mem.AddressOf(b), Length: 4096}
		}
		require.True(t, p.tr.Inline([]*transport.Slice{slice()}), "before the exec")

		p.Begin("Owner.Become", forked.Nothing{}, &forked.Nothing{})
		require.NoError(t, ready.SetReadDeadline(time.Now().Add(10*time.Second)))
		_, err = ready.Read(make([]byte, 1))
		require.NoError(t, err)
		require.NoError(t, ready.Close())
		if allocated { // mapped here still, and nobody's: a Tick finds out
			p.tr.links.Lookup(p.link).Kick()
		} else {
			require.False(t, p.tr.Inline([]*transport.Slice{slice()}))
			require.Equal(t, 1, p.tr.Submit([]*transport.Slice{slice()}))
			require.Equal(t, errs.PeerUnreachable, next(t, p.ends).Err.Code)
		}
		cause := next(t, p.downs)
		require.True(t, cause.EndsPeer(), "%v", cause)
		require.ErrorContains(t, cause, "runs another program")
		found := make([]byte, testBytes)
		_, err = memory.ReadAt(found, 0)
		require.NoError(t, err)
		require.Equal(t, make([]byte, testBytes), found, "nothing was written")
	}
}
