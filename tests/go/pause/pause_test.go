package pause

import (
	"fmt"
	"net/rpc"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/forked"
)

// everything asks for the whole matrix, of some minutes: make test-all.
var everything = os.Getenv("TENT_PAUSES") == "all"

// TestMovesOutlastAPauseOfTheirPeer: they begin while it stands still, and complete when it goes on.
func TestMovesOutlastAPauseOfTheirPeer(t *testing.T) {
	t.Parallel()
	p := newPair(t, 4, nil)
	p.stop(p.far)
	over := time.After(5 * time.Second)
	calls := make(map[move]*rpc.Call, len(moves))
	for _, m := range moves {
		calls[m] = p.begin(m, 0)
	}
	p.awaitEvent("peer_silent")
	<-over
	p.resume(p.far)
	for _, m := range moves {
		p.completes(m, calls[m])
	}
	p.sawOnePause()
}

// sawOnePause checks that near took the pause for one, and blamed no rail.
func (p *pair) sawOnePause() {
	p.Helper()
	p.awaitEvent("peer_back")
	for _, blamed := range []string{"rail_condemned", "rail_paused", "link_down", "dirty", "peer_gone"} {
		require.Empty(p, p.events(blamed))
	}
	silent := false
	for _, line := range p.events("") {
		silent = strings.HasPrefix(line, "peer_silent") || silent && !strings.HasPrefix(line, "peer_back")
		require.False(p, silent && strings.HasPrefix(line, "rail_suspected"), line)
	}
	for _, down := range p.events("rail_down") {
		require.NotContains(p, down, ": ", "an alternate that is not needed goes without a cause")
	}
	require.Len(p, p.events("peer_silent"), 1)
}

// TestEachMoveOutlastsEachPause is the matrix: a move has its peer for itself, so nothing else shows that it is there.
func TestEachMoveOutlastsEachPause(t *testing.T) {
	if !everything {
		t.Skip("TENT_PAUSES=all asks for it")
	}
	for _, rails := range []int{1, 4} {
		for _, m := range moves {
			for _, pause := range []time.Duration{time.Second, 5 * time.Second, 20 * time.Second} {
				t.Run(fmt.Sprintf("%v over %d rails, %v", m, rails, pause), func(t *testing.T) {
					t.Parallel()
					p := newPair(t, rails, nil)
					p.stop(p.far)
					over := time.After(pause)
					call := p.begin(m, 0)
					<-over
					p.resume(p.far)
					p.completes(m, call)
					p.sawOnePause()
				})
			}
		}
	}
}

// TestAPauseInTheMiddle: the bytes are on their way when the peer stops; and so they are when we do.
func TestAPauseInTheMiddle(t *testing.T) {
	t.Parallel()
	pause := time.Second
	if everything {
		pause = 20 * time.Second
	}
	for _, who := range []string{"the peer", "we"} {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			p := newPair(t, 2, nil)
			calls := make(map[move]*rpc.Call, len(moves))
			for _, m := range moves {
				calls[m] = p.begin(m, 0)
			}
			stopped := p.far
			if who == "we" {
				stopped = p.near
			}
			p.stop(stopped)
			<-time.After(pause)
			p.resume(stopped)
			for _, m := range moves {
				p.completes(m, calls[m])
			}
		})
	}
}

// TestAPauseBeyondEveryLimit: moves end by the limit that is theirs, WRITEs dirty because the peer cannot be asked.
// Nothing of them lands when it goes on, and the same memory takes the next move.
func TestAPauseBeyondEveryLimit(t *testing.T) {
	for name, c := range map[string]struct {
		settings map[string]any
		deadline time.Duration
		state    string
		cause    string
	}{
		"stall limit": {map[string]any{"transfer_stall_timeout": 2.5}, 0, "FAILED", "the peer is silent: last heard"},
		"outage":      {map[string]any{"peer_outage_timeout": 1.5}, 0, "FAILED", "peer_outage_timeout"},
		"deadline":    {nil, time.Second, "TIMEOUT", "deadline"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPair(t, 2, c.settings)
			p.stop(p.far)
			calls := make(map[move]*rpc.Call, len(moves))
			for i, m := range moves {
				calls[m] = p.begin(m, c.deadline)
				if i == 0 { // its bytes are in the peer's kernel; others' may not have left
					p.awaitEvent("peer_silent")
				}
			}
			for i, m := range moves {
				out := p.end(calls[m])
				require.Equal(t, c.state, out.State, "%v: %+v", m, out)
				require.True(t, out.Dirty || i > 0, "%v: %+v", m, out)
				require.False(t, out.Dirty && m.op == transport.Read, "%v: %+v", m, out)
				require.Contains(t, out.Error, c.cause)
			}
			p.do(p.near, "Fill", p.seed+2, &forked.Nothing{}) // their memory is the user's again
			p.resume(p.far)
			p.awaitEvent("withdrawn")
			for _, m := range moves {
				p.holds(p.far, m, p.seed+1)
				if m.op == transport.Read {
					p.holds(p.near, m, p.seed+2)
				}
			}
			p.seed += 2
			p.do(p.far, "Fill", p.seed+1, &forked.Nothing{})
			for _, m := range moves {
				p.completes(m, p.begin(m, 0))
			}
		})
	}
}

// TestAStoppedPeerThatIsKilledIsGone: that proof ends moves at once, and the error says how it is known.
func TestAStoppedPeerThatIsKilledIsGone(t *testing.T) {
	t.Parallel()
	p := newPair(t, 2, nil)
	p.stop(p.far)
	call := p.begin(moves[0], 0)
	p.awaitEvent("peer_silent")
	require.NoError(t, p.far.Signal(unix.SIGKILL))
	out := p.end(call)
	require.Equal(t, "FAILED", out.State)
	p.awaitEvent("peer_gone")
	require.Contains(t, out.Error, "the peer has gone: ")
	require.Contains(t, out.Error, ", last heard ")
	require.Contains(t, out.Error, "; some of its bytes may have landed, and none does any more")
	for _, hint := range []string{"address", "rpc_server_hostname", "check the"} {
		require.NotContains(t, out.Error, hint, "its address has led there")
	}
}

// TestAnEngineWithASilentPeerCloses within the limit that it was given.
func TestAnEngineWithASilentPeerCloses(t *testing.T) {
	t.Parallel()
	p := newPair(t, 2, nil)
	p.stop(p.far)
	p.begin(moves[0], 0)
	p.awaitEvent("peer_silent")
	p.do(p.near, "Close", forked.Nothing{}, &[]string{})
}
