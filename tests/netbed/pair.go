package netbed

import (
	"fmt"
	"math/rand/v2"
	"net/rpc"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/forked"
)

// Pair is two actors of a test. Its methods fail that test, and moves go from Near's point of view. For one goroutine.
type Pair struct {
	Near, Far *forked.Child
	Transport string // AwaitRails counts its rails
	bytes     uint64 // of each region
	seed      uint64 // of the newest move
}

// NewPair is for regions of that many bytes. Near and Far are to be set.
func NewPair(t *testing.T, transport string, bytes uint64) *Pair {
	p := &Pair{Transport: transport, bytes: bytes, seed: rand.Uint64()}
	t.Logf("seed %d", p.seed)
	return p
}

// Open opens an actor in a child, which ends with the test: then the engine must give everything back.
func (p *Pair) Open(t *testing.T, start func() (*forked.Child, error), settings map[string]string) (c *forked.Child,
	address string,
) {
	t.Helper()
	c, err := start()
	require.NoError(t, err)
	require.NoError(t, c.Call("Actor.Open", OpenArgs{Settings: settings, Bytes: int(p.bytes)}, &address))
	t.Cleanup(func() {
		var held []string
		require.NoError(t, c.Call("Actor.Close", forked.Nothing{}, &held))
		require.Empty(t, held, "an engine could not take everything back")
		require.NoError(t, c.Close())
	})
	return c, address
}

// Await polls until done says so.
func Await(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick, late := time.NewTicker(time.Millisecond), time.After(forked.Patience)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-late:
			require.FailNow(t, "waited in vain", what)
		}
	}
}

// Metric of Near.
func (p *Pair) Metric(t *testing.T, name string) float64 {
	t.Helper()
	var m map[string]float64
	require.NoError(t, p.Near.Call("Actor.Metrics", forked.Nothing{}, &m))
	value, known := m[name]
	require.True(t, known, "%s is not among %d metrics", name, len(m))
	return value
}

// Report logs the events of Near and its next way, where the test has failed.
func (p *Pair) Report(t *testing.T) {
	if !t.Failed() {
		return
	}
	var lines []string
	var how string
	err := p.Near.Call("Actor.Events", forked.Nothing{}, &lines)
	last := lines[max(0, len(lines)-reported):]
	t.Logf("%d events (%v), the last ones:\n%s", len(lines), err, strings.Join(last, "\n"))
	err = p.Near.Call("Actor.Explain", forked.Nothing{}, &how)
	t.Logf("now (%v): %s", err, how)
}

// reported events are enough for the fault at hand.
const reported = 40

// RailsUp counts those of Near that are up.
func (p *Pair) RailsUp(t *testing.T) int {
	t.Helper()
	return int(p.Metric(t, `tent_rails{transport="`+p.Transport+`",state="up"}`))
}

// AwaitRails waits until that number is up.
func (p *Pair) AwaitRails(t *testing.T, n int) {
	t.Helper()
	Await(t, fmt.Sprintf("%d rails up", n), func() bool { return p.RailsUp(t) >= n })
}

// Events lists those of Near that begin so.
func (p *Pair) Events(t *testing.T, beginning string) (found []string) {
	t.Helper()
	var all []string
	require.NoError(t, p.Near.Call("Actor.Events", forked.Nothing{}, &all))
	for _, line := range all {
		if strings.HasPrefix(line, beginning) {
			found = append(found, line)
		}
	}
	return found
}

// Broken lists the rails that Near has seen go down by an error.
func (p *Pair) Broken(t *testing.T) (list []string) {
	t.Helper()
	for _, line := range p.Events(t, "rail_down") {
		if strings.Contains(line, ": ") {
			list = append(list, line)
		}
	}
	return list
}

// Acknowledged counts the bytes of Near's moves until now.
func (p *Pair) Acknowledged(t *testing.T) (bytes uint64) {
	t.Helper()
	require.NoError(t, p.Near.Call("Actor.Acknowledged", forked.Nothing{}, &bytes))
	return bytes
}

// Ends are the sides that bytes of an operation come from and go to.
func (p *Pair) Ends(op transport.Op) (from, to *forked.Child) {
	if op == transport.Write {
		return p.Near, p.Far
	}
	return p.Far, p.Near
}

// Begin fills both regions with different patterns and starts to move the whole of one.
func (p *Pair) Begin(t *testing.T, op transport.Op) *rpc.Call {
	t.Helper()
	p.seed += 2
	from, to := p.Ends(op)
	require.NoError(t, from.Call("Actor.Fill", p.seed, &forked.Nothing{}))
	require.NoError(t, to.Call("Actor.Fill", p.seed+1, &forked.Nothing{}))
	return p.Near.Begin("Actor.Move", MoveArgs{Op: op, Class: 2}, &Outcome{})
}

// underWay waits until a part of the bytes has been acknowledged. It returns false when all of them have: on a busy
// machine one may look too late.
func (p *Pair) underWay(t *testing.T, call *rpc.Call, before uint64) bool {
	t.Helper()
	Await(t, "the move is under way", func() bool { return p.Acknowledged(t)-before >= p.bytes/8 })
	return len(call.Done) == 0
}

// Half is a move that is under way.
func (p *Pair) Half(t *testing.T, op transport.Op) *rpc.Call {
	t.Helper()
	for range 5 {
		before := p.Acknowledged(t)
		call := p.Begin(t, op)
		if p.underWay(t, call, before) {
			return call
		}
		require.Equal(t, "COMPLETED", p.End(t, call).State)
	}
	require.FailNow(t, "moves are over before one can look")
	return nil
}

// End waits for a move.
func (p *Pair) End(t *testing.T, call *rpc.Call) Outcome {
	t.Helper()
	require.NoError(t, p.Near.End(call))
	return *call.Reply.(*Outcome)
}

// Moves carries out a move with a fault in its middle, which must not be noticed but for the time it takes.
func (p *Pair) Moves(t *testing.T, op transport.Op, fault func() error) Outcome {
	t.Helper()
	call := p.Half(t, op)
	require.NoError(t, fault())
	return p.arrives(t, call)
}

// Move moves the whole of one region, with nothing in its way.
func (p *Pair) Move(t *testing.T, op transport.Op) Outcome {
	t.Helper()
	return p.arrives(t, p.Begin(t, op))
}

func (p *Pair) arrives(t *testing.T, call *rpc.Call) Outcome {
	t.Helper()
	out := p.End(t, call)
	require.Equal(t, "COMPLETED", out.State, out.Error)
	require.Equal(t, p.bytes, out.Bytes)
	p.Check(t)
	return out
}

// Check looks at every byte of both regions.
func (p *Pair) Check(t *testing.T) {
	t.Helper()
	for _, side := range []*forked.Child{p.Near, p.Far} {
		require.NoError(t, side.Call("Actor.Check", p.seed, &forked.Nothing{}))
	}
}

// EitherWay runs a scenario for writing and for reading.
func EitherWay(t *testing.T, f func(t *testing.T, op transport.Op)) {
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		t.Run(op.String(), func(t *testing.T) { f(t, op) })
	}
}
