//go:build cgo

package cuda

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// childName holds the test that a child carries out.
const childName = "TENT_FAKECUDA_TEST"

// childLimit bounds a child; a longer one hangs.
const childLimit = 4 * time.Minute

// eventsKept is the bound of the events that package driver keeps for the next gate.
const eventsKept = 64

// Run carries a test out in a child process with the emulated libcuda. The end of the test checks that nothing
// of the library is left open but contexts. With TENT_REAL_LIBCUDA the driver is a real one, see OverReal, and a
// test that asks for more than it has is skipped.
func Run(t *testing.T, d Driver, s Settings, test func(t *testing.T, gpu *Loaded)) {
	RunWith(t, d, s, nil, test)
}

// RunWith is Run with more of an environment.
func RunWith(t *testing.T, d Driver, s Settings, more []string, test func(t *testing.T, gpu *Loaded)) {
	library := ""
	if real := OverReal(); real != "" {
		skipUnreal(t, d, s)
		library = real
	} else if !isChild(t) {
		library = Library(t, d)
	}
	In(t, append(s.Environment(library), more...), func(t *testing.T) {
		gpu, err := Load()
		require.NoError(t, err)
		if OverReal() != "" {
			gpu.Lacking = func(name string) { t.Skipf("a real driver has no %s", name) }
		} else {
			t.Cleanup(func() { leavesNothing(t, gpu) })
		}
		test(t, gpu)
	})
}

// leavesNothing looks at the counters of the emulated library behind a test.
func leavesNothing(t *testing.T, gpu *Loaded) {
	left := gpu.Stats()
	left.Retained, left.Copies, left.Batches, left.Calls, left.Files, left.Launches = 0, 0, 0, 0, 0, 0
	left.Peers = 0   // access stays as long as the contexts
	left.Streams = 0 // one of each device stays
	require.LessOrEqual(t, left.Events, int64(eventsKept), "the driver's package keeps no more events")
	require.LessOrEqual(t, left.Pinned, int64(1), "one page has the words that streams wait for")
	left.Events, left.Pinned = 0, 0
	require.Zero(t, left, "left open")
}

func isChild(t *testing.T) bool { return os.Getenv(childName) == t.Name() }

// skipped finds the reason of a test that was skipped, behind the place.
var skipped = regexp.MustCompile(`(?m)^ +\S+\.go:\d+: (.*)$`)

// In carries a test out in a child process with more of an environment. One that skips itself there is skipped.
func In(t *testing.T, environment []string, test func(t *testing.T)) {
	if isChild(t) {
		test(t)
		return
	}
	self, err := os.Executable()
	require.NoError(t, err)
	parts := strings.Split(t.Name(), "/")
	for i := range parts {
		parts[i] = "^" + regexp.QuoteMeta(parts[i]) + "$"
	}
	ctx, cancel := context.WithTimeout(t.Context(), childLimit)
	defer cancel()
	c := exec.CommandContext(ctx, self, "-test.run="+strings.Join(parts, "/"), "-test.v", "-test.count=1",
		fmt.Sprintf("-test.short=%t", testing.Short()))
	c.Env = append(append(os.Environ(), environment...), childName+"="+t.Name())
	out, err := c.CombinedOutput()
	require.NoError(t, err, "the child: %s", out)
	if reason := skipped.FindSubmatch(out); strings.Contains(string(out), "--- SKIP: "+t.Name()+" ") && reason != nil {
		t.Skip(string(reason[1]))
	}
	require.Contains(t, string(out), "--- PASS: "+t.Name(), "the child ran no test: %s", out)
	t.Logf("%s", out)
}
