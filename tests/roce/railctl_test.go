package roce

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func railctl(args ...string) (string, error) {
	out, err := exec.Command("../../build/guest/railctl", args...).CombinedOutput()
	return string(out), err
}

// TestShellsBreakRailsByTheSameNames makes and mends every fault of a rail, after which bytes arrive again.
func TestShellsBreakRailsByTheSameNames(t *testing.T) {
	needGuest(t, 2)
	names, err := railctl("faults")
	require.NoError(t, err, names)
	list := strings.Fields(names)
	require.Len(t, list, len(Faults()))
	for i, name := range list {
		require.Equal(t, Faults()[i].Name, name)
		for _, verb := range []string{"make", "mend"} {
			out, err := railctl(verb, name, "1")
			require.NoError(t, err, "%s %s: %s", verb, name, out)
		}
	}
	p := start(t, "crdma", Rails()[1:2], wide)
	p.check("write", wide.arena, 1, 1)
	for _, wrong := range [][]string{{"make", "nothing", "0"}, {"make", "silent", "99"}, {"make", "silent"}, {}} {
		out, err := railctl(wrong...)
		require.Error(t, err, "%q: %s", wrong, out)
	}
}
