// Package netns tests whole engines in two processes, on two hosts that are joined by real TCP rails. Meanwhile the
// rails break in the ways in which cables, switches and hosts break. See tests/netbed for how.
package netns

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/rpc"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/forked"
	"github.com/tent-engine/tent/tests/netbed"
)

const (
	rails     = 4
	regionAll = 48 << 20
	railRate  = 50e6 // bytes/s: a move takes some 250 ms, so that a fault can fall into its middle
)

func TestMain(m *testing.M) {
	if forked.RunChild(new(netbed.Actor)) {
		return
	}
	os.Exit(m.Run())
}

// world is a bed with an engine on each host. Moves go from near's point of view.
type world struct {
	*netbed.Bed
	near, far *forked.Child
	seed      uint64
}

func newWorld(t *testing.T, settings map[string]string) *world {
	t.Helper()
	bed, err := netbed.New(rails)
	if errors.Is(err, netbed.ErrUnavailable) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(bed.Close)
	w := &world{Bed: bed, seed: rand.Uint64()}
	t.Logf("seed %d", w.seed)
	for _, r := range bed.Rails {
		require.NoError(t, r.Limit(railRate))
	}
	var address string
	w.far, address = w.start(t, bed.B, settings)
	w.near, _ = w.start(t, bed.A, settings)
	require.NoError(t, w.near.Call("Actor.Connect", address, &netbed.Nothing{}))
	w.awaitRails(t, rails)
	return w
}

func (w *world) start(t *testing.T, h *netbed.Host, settings map[string]string) (c *forked.Child, address string) {
	t.Helper()
	c, err := h.Start()
	require.NoError(t, err)
	args := netbed.OpenArgs{Settings: h.Settings(), Bytes: regionAll}
	for key, value := range settings {
		args.Settings[key] = value
	}
	require.NoError(t, c.Call("Actor.Open", args, &address))
	t.Cleanup(func() {
		var held []string
		require.NoError(t, c.Call("Actor.Close", netbed.Nothing{}, &held))
		require.Empty(t, held, "an engine could not take everything back")
		require.NoError(t, c.Close())
	})
	return c, address
}

// await polls until done says so.
func await(t *testing.T, what string, done func() bool) {
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

func (w *world) metric(t *testing.T, name string) float64 {
	t.Helper()
	var m map[string]float64
	require.NoError(t, w.near.Call("Actor.Metrics", netbed.Nothing{}, &m))
	value, known := m[name]
	require.True(t, known, "%s is not among %d metrics", name, len(m))
	return value
}

func (w *world) awaitRails(t *testing.T, n float64) {
	t.Helper()
	await(t, fmt.Sprintf("%v rails up", n), func() bool {
		return w.metric(t,
			`tent_rails{transport="tcp",state="up"}`) >= n
	})
}

// events lists the events of near that begin so.
func (w *world) events(t *testing.T, beginning string) (found []string) {
	t.Helper()
	var all []string
	require.NoError(t, w.near.Call("Actor.Events", netbed.Nothing{}, &all))
	for _, line := range all {
		if strings.HasPrefix(line, beginning) {
			found = append(found, line)
		}
	}
	return found
}

// broken lists the rails that near has seen go down by an error.
func (w *world) broken(t *testing.T) (list []string) {
	t.Helper()
	for _, line := range w.events(t, "rail_down") {
		if strings.Contains(line, ": ") {
			list = append(list, line)
		}
	}
	return list
}

// railName is how engines call a rail.
func (w *world) railName(i int) string {
	return w.A.Addresses[i] + " -> " + w.B.Addresses[i]
}

// ends are the sides that bytes of an operation come from and go to.
func (w *world) ends(op transport.Op) (from, to *forked.Child) {
	if op == transport.Write {
		return w.near, w.far
	}
	return w.far, w.near
}

// begin fills both regions with different patterns and starts to move the whole of one.
func (w *world) begin(t *testing.T, op transport.Op) *rpc.Call {
	t.Helper()
	w.seed += 2
	from, to := w.ends(op)
	require.NoError(t, from.Call("Actor.Fill", w.seed, &netbed.Nothing{}))
	require.NoError(t, to.Call("Actor.Fill", w.seed+1, &netbed.Nothing{}))
	return w.near.Begin("Actor.Move", netbed.MoveArgs{Op: op, Class: 2}, &netbed.Outcome{})
}

// underWay waits until a part of the bytes has been acknowledged. It returns false when all of them have: on a busy
// machine one may look too late.
func (w *world) underWay(t *testing.T, call *rpc.Call, before uint64) bool {
	t.Helper()
	await(t, "the move is under way", func() bool {
		var bytes uint64
		require.NoError(t, w.near.Call("Actor.Acknowledged", netbed.Nothing{}, &bytes))
		return bytes-before >= regionAll/8
	})
	return len(call.Done) == 0
}

// half is a move that is under way.
func (w *world) half(t *testing.T, op transport.Op) *rpc.Call {
	t.Helper()
	for range 5 {
		var before uint64
		require.NoError(t, w.near.Call("Actor.Acknowledged", netbed.Nothing{}, &before))
		call := w.begin(t, op)
		if w.underWay(t, call, before) {
			return call
		}
		require.Equal(t, "COMPLETED", w.end(t, call).State)
	}
	require.FailNow(t, "moves are over before one can look")
	return nil
}

// end waits for a move.
func (w *world) end(t *testing.T, call *rpc.Call) netbed.Outcome {
	t.Helper()
	require.NoError(t, w.near.End(call))
	return *call.Reply.(*netbed.Outcome)
}

// moves carries out a move with a fault in its middle, which must not be noticed but for the time it takes.
func (w *world) moves(t *testing.T, op transport.Op, fault func() error) netbed.Outcome {
	t.Helper()
	call := w.half(t, op)
	require.NoError(t, fault())
	out := w.end(t, call)
	require.Equal(t, "COMPLETED", out.State, out.Error)
	require.EqualValues(t, regionAll, out.Bytes)
	w.check(t, op)
	return out
}

// check looks at every byte of both regions.
func (w *world) check(t *testing.T, op transport.Op) {
	t.Helper()
	for _, side := range []*forked.Child{w.near, w.far} {
		require.NoError(t, side.Call("Actor.Check", w.seed, &netbed.Nothing{}))
	}
}

// both runs a scenario for writing and for reading.
func both(t *testing.T, f func(t *testing.T, op transport.Op)) {
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		t.Run(op.String(), func(t *testing.T) { f(t, op) })
	}
}
