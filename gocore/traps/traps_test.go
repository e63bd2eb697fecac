package traps

import (
	"os"
	"os/exec"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/mem"
)

const childEnv = "TENT_TEST_TRAPS"

// TestAGuardHoldsAfterHandlersWereReplaced runs in a child: handlers are of the whole process. Faults of other code,
// with a handler of C, are in tests/py/test_lost_memory.py.
func TestAGuardHoldsAfterHandlersWereReplaced(t *testing.T) {
	if os.Getenv(childEnv) == "" {
		child := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
		child.Env = append(os.Environ(), childEnv+"=1")
		out, err := child.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return
	}
	if entries()[0] == 0 {
		t.Skip("no entries for this processor")
	}
	lost, err := unix.Mmap(-1, 0, unix.Getpagesize(), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	guarded := func() (fault *mem.Fault) {
		defer mem.Guard(&fault, debug.SetPanicOnFault(true))
		lost[0] = 1
		return nil
	}
	keep := func(want bool) {
		t.Helper()
		repaired, err := Keep()
		require.NoError(t, err)
		require.Equal(t, want, repaired)
		require.NotNil(t, guarded())
	}
	replace := func(handler uintptr) {
		t.Helper()
		next := actionOf(unix.SIGURG)
		next.handler = handler
		for _, s := range []unix.Signal{unix.SIGSEGV, unix.SIGBUS} {
			require.Zero(t, sigaction(s, &next, nil))
		}
	}
	keep(false)
	replace(0) // SIG_DFL
	keep(true)
	require.Zero(t, repairs.used, "Go's handler stands alone again")
	keep(false)
	for i := range slots {
		replace(4096) // nobody's code: a fault that reached it would end the process
		keep(true)
		require.Equal(t, i+1, repairs.used)
		require.Equal(t, entries()[i], actionOf(unix.SIGSEGV).handler)
		keep(false)
	}
	replace(goHandler) // as a library does that takes its handler back
	keep(false)
	replace(4096)
	_, err = Keep()
	require.ErrorIs(t, err, ErrUsedUp)
}

func BenchmarkKeep(b *testing.B) {
	for b.Loop() {
		_, _ = Keep()
	}
}
