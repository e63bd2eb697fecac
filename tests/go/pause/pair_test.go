// Package pause tests engines of which one stands still for seconds, as a machine does that migrates, swaps or is being
// debugged. Its process is stopped; its kernel goes on to acknowledge. See docs/design/failover.md.
package pause

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/rpc"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/forked"
	"github.com/tent-engine/tent/tests/netbed"
)

const (
	large = 64 << 20
	small = 4 << 10
)

func TestMain(m *testing.M) {
	if forked.RunChild(new(netbed.Actor)) {
		return
	}
	os.Exit(m.Run())
}

// move is one transfer between the same places of both regions.
type move struct {
	op    transport.Op
	bytes uint64
}

// moves are the transfers of all tests. Each has a place of its own in the regions, in this order.
var moves = []move{{transport.Write, large}, {transport.Read, large}, {transport.Write, small}, {transport.Read, small}}

func (m move) place() (offset uint64) {
	for _, other := range moves {
		if other == m {
			return offset
		}
		offset += other.bytes
	}
	panic("not among moves")
}

func (m move) String() string { return fmt.Sprintf("%v of %d bytes", m.op, m.bytes) }

// pair is two engines in processes of their own, joined by tcp rails on loopback. Moves go from near's point of view.
type pair struct {
	*testing.T
	near, far *forked.Child
	seed      uint64 // of near's bytes; far has the next one
}

func newPair(t *testing.T, rails int, settings map[string]any) *pair {
	p := &pair{T: t, seed: rand.Uint64()}
	t.Logf("seed %d", p.seed)
	var address string
	p.far = p.start(rails, settings, &address)
	p.near = p.start(rails, settings, new(string))
	p.do(p.near, "Connect", address, &forked.Nothing{})
	p.await("rails up", func() bool { return p.metric(`tent_rails{transport="tcp",state="up"}`) >= float64(rails) })
	p.do(p.near, "Fill", p.seed, &forked.Nothing{})
	p.do(p.far, "Fill", p.seed+1, &forked.Nothing{})
	return p
}

func (p *pair) start(rails int, settings map[string]any, address *string) *forked.Child {
	c, err := forked.Start()
	require.NoError(p, err)
	p.Cleanup(c.Kill)
	addresses := make([]string, rails)
	for i := range addresses {
		addresses[i] = fmt.Sprintf("127.0.0.%d", i+1)
	}
	args := netbed.OpenArgs{Settings: map[string]string{}, Bytes: 2*large + 2*small}
	for key, value := range map[string]any{"transports/tcp/addresses": addresses, "transports/shm/enable": false} {
		args.Settings[key] = encode(value)
	}
	for key, value := range settings {
		args.Settings[key] = encode(value)
	}
	p.do(c, "Open", args, address)
	return c
}

func encode(value any) string {
	text, _ := json.Marshal(value) // strings, numbers and lists of them cannot fail
	return string(text)
}

func (p *pair) do(c *forked.Child, method string, arg, result any) {
	p.Helper()
	require.NoError(p, c.Call("Actor."+method, arg, result))
}

func (p *pair) metric(name string) float64 {
	var m map[string]float64
	p.do(p.near, "Metrics", forked.Nothing{}, &m)
	return m[name]
}

func (p *pair) await(what string, done func() bool) {
	p.Helper()
	tick, late := time.NewTicker(5*time.Millisecond), time.After(forked.Patience)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-late:
			require.FailNow(p, "waited in vain", what)
		}
	}
}

// events lists the events of near that begin so.
func (p *pair) events(beginning string) (found []string) {
	var all []string
	p.do(p.near, "Events", forked.Nothing{}, &all)
	for _, line := range all {
		if strings.HasPrefix(line, beginning) {
			found = append(found, line)
		}
	}
	return found
}

func (p *pair) awaitEvent(beginning string) {
	p.Helper()
	p.await(beginning, func() bool { return len(p.events(beginning)) > 0 })
}

func (p *pair) stop(c *forked.Child)   { require.NoError(p, c.Stop()) }
func (p *pair) resume(c *forked.Child) { require.NoError(p, c.Signal(unix.SIGCONT)) }

func (p *pair) begin(m move, deadline time.Duration) *rpc.Call {
	return p.near.Begin("Actor.Move", netbed.MoveArgs{Op: m.op, Offset: m.place(), Bytes: m.bytes, Deadline: deadline},
		&netbed.Outcome{})
}

func (p *pair) end(call *rpc.Call) netbed.Outcome {
	p.Helper()
	require.NoError(p, p.near.End(call))
	return *call.Reply.(*netbed.Outcome)
}

// completes waits for a move and looks at every byte of its place, at both ends.
func (p *pair) completes(m move, call *rpc.Call) {
	p.Helper()
	out := p.end(call)
	require.Equal(p, "COMPLETED", out.State, "%v: %+v", m, out)
	source := p.seed
	if m.op == transport.Read {
		source++
	}
	p.holds(p.near, m, source)
	p.holds(p.far, m, source)
}

// holds looks at the bytes of a move's place at one end.
func (p *pair) holds(c *forked.Child, m move, seed uint64) {
	p.Helper()
	p.do(c, "CheckPart", netbed.PartArgs{Seed: seed, Offset: m.place(), Bytes: m.bytes}, &forked.Nothing{})
}
