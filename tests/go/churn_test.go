package tests

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/transport"
)

// churnEnv sets how many peers and files the tests open and close one after the other; `make test-all` asks for
// 100,000.
const churnEnv = "TENT_CHURN"

func churns(t *testing.T, usual int) int {
	text := os.Getenv(churnEnv)
	if text == "" {
		return usual
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, "%s=%q is not a number", churnEnv, text)
	return n
}

// churnHeap is the growth of the heap that a test tolerates. The noise is some 20 KiB; two bytes left behind by each of
// 100,000 peers would exceed it.
const churnHeap = 128 << 10

// churnWarm fills the rings that keep the latest events.
const churnWarm = 1200

// churnSettings keep the log empty: a busy machine gives it a record now and then, so it fills long after the warm-up.
var churnSettings = map[string]any{"log_level": "error"}

// leavesNothing runs round many times and compares the process with itself after the first ones.
func leavesNothing(t *testing.T, rounds int, round func()) {
	for range churnWarm {
		round()
	}
	before := count(t)
	for range rounds {
		round()
	}
	after := count(t)
	t.Logf("%d rounds: before %+v, after %+v", rounds, before, after)
	require.LessOrEqual(t, after.heap, before.heap+churnHeap)
	require.LessOrEqual(t, after.goroutines, before.goroutines+8)
	require.LessOrEqual(t, after.files, before.files+2)
}

// A program that opens a file for each chunk of its KV cache opens a hundred thousand of them. None of them may stay in
// a table.
func TestFilesOpenedOneAfterTheOtherLeaveNothingBehind(t *testing.T) {
	e := openAll(t, churnSettings)
	source := memory(t, 4096)
	offer(t, e, source, "")
	path := filepath.Join(t.TempDir(), "chunk")
	leavesNothing(t, churns(t, 1500), func() {
		file := openFile(t, e, path, engine.FileOptions{Create: true, Size: 4096})
		exchange(t, e, file, source, transport.Write)
		require.NoError(t, e.CloseSegment(file))
	})
}

// The same for peers, over each kind of transport: a decode server meets a prefill server, loses it and meets the next.
func TestPeersOpenedOneAfterTheOtherLeaveNothingBehind(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		here, there := w.open(t, churnSettings), w.open(t, churnSettings)
		source, destination := memory(t, 4096), memory(t, 4096)
		offer(t, here, source, "source")
		offer(t, there, destination, "kv")
		meet := func(from *engine.Engine, own []byte, path string) {
			s, err := from.OpenSegment(context.Background(), path)
			require.NoError(t, err)
			exchange(t, from, s, own, transport.Write)
			require.NoError(t, from.CloseSegment(s))
		}
		for range churnWarm { // the ring of the other side has few events of its own, and would fill all the time
			meet(there, destination, here.Address()+"/source")
		}
		leavesNothing(t, churns(t, 500), func() { meet(here, source, there.Address()+"/kv") })
	})
}
