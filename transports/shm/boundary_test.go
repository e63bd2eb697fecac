package shm

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/tests/forked"
)

const nobody = 65534

func requireRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can start processes of other users and in other namespaces")
	}
}

func TestOtherUsersAreRefused(t *testing.T) {
	requireRoot(t)
	p := startOwner(t, Settings{}, Opening{}, forked.As(nobody, nobody))
	_, down := p.attach()
	requireRefused(t, down, oneText)
	require.Contains(t, p.look().Refusals, "the peer runs as user 0, we as user 65534")
}

func TestContainersAreABoundary(t *testing.T) {
	requireRoot(t)
	for _, c := range []struct {
		flags uintptr
		proc  bool
		says  string
	}{
		{unix.CLONE_NEWPID | unix.CLONE_NEWNS, true, "another pid namespace"},
		{unix.CLONE_NEWUSER, false, "user namespace"},
	} {
		p := startOwner(t, Settings{}, Opening{Proc: c.proc}, func(e *exec.Cmd) {
			e.SysProcAttr = &syscall.SysProcAttr{Cloneflags: c.flags, Unshareflags: c.flags & unix.CLONE_NEWNS}
		})
		_, down := p.attach()
		requireRefused(t, down, oneText)
		require.Contains(t, p.look().Refusals, c.says)
	}
}

// TestAsNobody runs tests of this file as a user without privileges, for whom the kernel's rules hold.
func TestAsNobody(t *testing.T) {
	requireRoot(t)
	c := exec.Command("/proc/self/exe", "-test.run", "^TestNobody", "-test.v")
	c.Env = append(os.Environ(), nobodyEnv+"=1")
	c.Dir = "/"
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: TestNobody")
}

const nobodyEnv = "TENT_SHM_TEST_NOBODY"

func requireNobody(t *testing.T) {
	t.Helper()
	if os.Getenv(nobodyEnv) == "" && os.Geteuid() == 0 {
		t.Skip("TestAsNobody runs it")
	}
}

func TestNobodySharesMemoryWithNobody(t *testing.T) {
	requireNobody(t)
	p := startOwner(t, Settings{}, Opening{})
	rail, down := p.attach()
	require.Nil(t, down)
	for _, allocated := range []bool{true, false} {
		remote, err := p.tr.Import(p.link, p.offer(allocated, mem.GlobalReadWrite))
		require.NoError(t, err)
		write, read := p.exchange(rail, remote)
		require.Nil(t, write)
		require.Nil(t, read)
	}
}

// A process that hides its memory from others of its user can share nothing, and the reason names the cure.
func TestNobodyReachesAProcessThatIsNotDumpable(t *testing.T) {
	requireNobody(t)
	p := startOwner(t, Settings{}, Opening{Hidden: true})
	_, down := p.attach()
	requireRefused(t, down, "dumpable")
}

// flagsOf returns the kernel's flags of the mapping at an address.
func flagsOf(t *testing.T, addr uintptr) string {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/smaps")
	require.NoError(t, err)
	inside := false
	for line := range bytes.Lines(maps) {
		var from, to uintptr
		if n, _ := fmt.Sscanf(string(line), "%x-%x ", &from, &to); n == 2 {
			inside = from <= addr && addr < to
		}
		if flags, is := bytes.CutPrefix(line, []byte("VmFlags:")); is && inside {
			return string(flags)
		}
	}
	require.FailNow(t, "no mapping", "%#x", addr)
	return ""
}
