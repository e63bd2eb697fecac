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
	require.Equal(t, goHandler, actionOf(unix.SIGSEGV).handler, "Go's handler stands alone again")
	keep(false)
	nobody := func(i int) uintptr { return 4096 * uintptr(i+1) } // a fault that reached it would end the process
	for i := range slots {
		replace(nobody(i))
		keep(true)
		require.Equal(t, entries()[i], actionOf(unix.SIGSEGV).handler)
		keep(false)
	}
	for i := range 100 { // handlers that go and come back, as those of a library that is switched off and on
		replace(goHandler)
		keep(false)
		replace(nobody(i % slots))
		keep(true)
		require.Equal(t, entries()[i%slots], actionOf(unix.SIGBUS).handler)
	}
	replace(entries()[0]) // as a library does that takes its handler back
	keep(false)
	replace(nobody(slots))
	_, err = Keep()
	require.ErrorIs(t, err, ErrUsedUp)
}

func BenchmarkKeep(b *testing.B) {
	for b.Loop() {
		_, _ = Keep()
	}
}
