package roce

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
)

// Statuses of completions and types of asynchronous events, as <infiniband/verbs.h> numbers them.
const (
	flushed         = 5  // IBV_WC_WR_FLUSH_ERR
	retriesExceeded = 12 // IBV_WC_RETRY_EXC_ERR

	portError = 10 // IBV_EVENT_PORT_ERR
	gidChange = 18 // IBV_EVENT_GID_CHANGE
)

// Queue pairs give a silent path up after half a second: on a busy machine the guest stands still for some of that.
var (
	wide   = queues{pairs: 2, chain: 4, depth: 2, block: 64 << 10, arena: 8 << 20, timeout: 14, retries: 6}
	flows  = queues{pairs: 2, chain: 4, depth: 2, block: 16 << 10, arena: 2 << 20, timeout: 14, retries: 6}
	narrow = queues{pairs: 1, chain: 4, depth: 2, block: 16 << 10, arena: 8 << 20, timeout: 14, retries: 6}
)

// TestBytesArriveWhereTheyBelong moves random amounts over 1 to 4 rails, with the guard bands around both memories.
func TestBytesArriveWhereTheyBelong(t *testing.T) {
	needGuest(t, 4)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	p := start(t, "crdma", Rails()[:4], wide)
	for _, rails := range []int{1, 2, 4} {
		for _, op := range []string{"write", "read"} {
			p.check(op, wide.arena, 1, rails)
			for range 5 {
				p.check(op, 1+random.IntN(wide.arena), 1, rails)
			}
		}
	}
}

// mark is how a fault shows on the queue pairs of its rail: the first completion that is an error, and events.
type mark struct {
	status int
	events []string // "a 10": the device at A said event 10
}

// marks of the faults that a queue pair does not survive, by name.
func marks() map[string]mark {
	event := func(e End, number int) []string { return []string{fmt.Sprintf("%c %d", e, number)} }
	return map[string]mark{
		"silent":               {retriesExceeded, nil},
		"silent-forth":         {retriesExceeded, nil},
		"silent-back":          {retriesExceeded, nil},
		"own-cable-pulled":     {flushed, event(A, portError)},
		"own-device-down":      {flushed, event(A, portError)},
		"own-address-removed":  {flushed, event(A, gidChange)},
		"own-device-deleted":   {flushed, event(A, gidChange)},
		"peer-cable-pulled":    {retriesExceeded, event(B, portError)},
		"peer-device-down":     {retriesExceeded, event(B, portError)},
		"peer-address-removed": {retriesExceeded, event(B, gidChange)},
		"peer-device-deleted":  {retriesExceeded, event(B, gidChange)},
	}
}

// impairments are faults of the path that a queue pair survives.
var impairments = []string{"loss-1", "loss-5", "delay", "reorder", "duplicates", "slow"}

func fault(t *testing.T, name string) Fault {
	t.Helper()
	all := Faults()
	i := slices.IndexFunc(all, func(f Fault) bool { return f.Name == name })
	require.GreaterOrEqual(t, i, 0, name)
	return all[i]
}

// TestEveryFaultHasItsMark keeps the two tables here complete.
func TestEveryFaultHasItsMark(t *testing.T) {
	for _, f := range Faults() {
		_, deadly := marks()[f.Name]
		require.NotEqual(t, deadly, slices.Contains(impairments, f.Name), f.Name)
	}
}

// breakable has the rails that tests may break side by side: all but the last, which stays well.
var breakable = sync.OnceValue(func() chan Rail {
	rails := Rails()
	free := make(chan Rail, len(rails))
	for _, r := range rails[:len(rails)-1] {
		free <- r
	}
	return free
})

// borrow gives a test a rail to break, until it ends, and the one that stays well.
func borrow(t *testing.T) (broken, well Rail) {
	t.Helper()
	free := breakable()
	broken = <-free
	t.Cleanup(func() { free <- broken })
	rails := Rails()
	return broken, rails[len(rails)-1]
}

// TestAFaultShowsOnItsRailAndOnNoOther breaks a rail under a flow, mends it, and connects it again.
func TestAFaultShowsOnItsRailAndOnNoOther(t *testing.T) {
	needGuest(t, 2)
	t.Parallel()
	for _, f := range Faults() {
		want, deadly := marks()[f.Name]
		if !deadly {
			continue
		}
		for _, op := range []string{"write", "read"} {
			t.Run(f.Name+"/"+op, func(t *testing.T) {
				t.Parallel()
				breakAndMend(t, f, op, want)
			})
		}
	}
}

func breakAndMend(t *testing.T, f Fault, op string, want mark) {
	broken, well := borrow(t)
	p := start(t, "flow", []Rail{broken, well}, flows)
	p.tell("flow", op)
	p.await("first", 0)
	p.await("first", 1)
	begin := clock.Now()
	require.NoError(t, f.Make(broken))
	mended := false
	t.Cleanup(func() {
		if !mended { // the next fault is to find all rails well
			_ = f.Mend(broken)
		}
	})
	failed := p.await("failed", 0)
	t.Logf("status %s %v after the fault", failed[2], time.Duration(number(t, failed[3])-int64(begin)))
	require.Equal(t, fmt.Sprint(want.status), failed[2], "status of the first completion that is an error")
	for _, e := range want.events {
		p.await("event", 0, e)
	}
	p.goesOn(1)
	deleted := strings.HasSuffix(f.Name, "deleted")
	if deleted { // the dead device goes when the last program has closed it
		p.tell("close", 0)
		p.await("done", 0)
	}
	mended = true
	require.NoError(t, f.Mend(broken))
	again := "connect"
	if deleted {
		again = "open"
	}
	p.join(again, 0)
	p.await("first", 0)
	for _, line := range p.seen {
		require.False(t, strings.HasPrefix(line, "failed 1"), line)
		require.False(t, strings.HasPrefix(line, "event 1"), line)
		if want.events == nil {
			require.False(t, strings.HasPrefix(line, "event"), "an event for a fault that no end is told of: %s", line)
		}
	}
	p.tell("stop")
	p.ok()
}

// TestAQueuePairThatIsConnectedAgainUnderLoadSends connects a rail whose queue pairs are full and have not failed.
func TestAQueuePairThatIsConnectedAgainUnderLoadSends(t *testing.T) {
	needGuest(t, 1)
	for _, op := range []string{"write", "read"} {
		p := start(t, "flow", Rails()[:1], wide)
		p.tell("flow", op)
		p.await("first", 0)
		require.NoError(t, Rail(0).Drop(Both))
		p.stands(0)
		require.NoError(t, Rail(0).Heal())
		p.join("connect", 0)
		p.await("first", 0)
		p.tell("stop")
		p.ok()
	}
}

// TestABadPathLosesNoByte moves checked bytes over paths that lose, delay, reorder and repeat packets.
func TestABadPathLosesNoByte(t *testing.T) {
	needGuest(t, 2)
	t.Parallel()
	for _, name := range impairments {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := fault(t, name)
			bad, well := borrow(t)
			p := start(t, "crdma", []Rail{bad, well}, narrow)
			const size = 1 << 20
			small, large := p.took("write", 4<<10, 1), p.took("write", size, 1)
			before := counters(t, bad.Device(B))
			require.NoError(t, f.Make(bad))
			t.Cleanup(func() { require.NoError(t, f.Mend(bad)) })
			for _, op := range []string{"write", "read"} {
				p.check(op, size, 1, 2)
			}
			slowSmall, slowLarge := p.took("write", 4<<10, 1), p.took("write", size, 1)
			after := counters(t, bad.Device(B))
			t.Logf("4 KiB %v, then %v; 1 MiB %v, then %v", small, slowSmall, large, slowLarge)
			for counter, n := range after {
				if n != before[counter] && !strings.HasSuffix(counter, "_pkts") {
					t.Logf("%s: %d more", counter, n-before[counter])
				}
			}
			switch name {
			case "delay":
				require.GreaterOrEqual(t, slowSmall, 2*HeldBack, "the packet and its acknowledgement wait")
			case "slow":
				require.GreaterOrEqual(t, slowLarge, time.Duration(size)*time.Second/SlowRate/2)
			case "duplicates":
				require.Greater(t, after["duplicate_request"], before["duplicate_request"])
			default:
				require.Greater(t, after["out_of_seq_request"], before["out_of_seq_request"])
			}
		})
	}
}

// counters of a device, as the kernel has them.
func counters(t *testing.T, device string) map[string]int64 {
	t.Helper()
	folder := filepath.Join("/sys/class/infiniband", device, "ports/1/hw_counters")
	list, err := os.ReadDir(folder)
	require.NoError(t, err)
	values := map[string]int64{}
	for _, entry := range list {
		if text, err := os.ReadFile(filepath.Join(folder, entry.Name())); err == nil {
			values[entry.Name()] = number(t, strings.TrimSpace(string(text)))
		}
	}
	return values
}
