package dispatch

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/rail"
)

// peersMax is the number of peers that a model has at most.
const peersMax = 2

// pause makes a peer's process stand still: nothing completes, no probe is answered, no rail comes up. Its kernel may
// go on to acknowledge.
func (m *model) pause(peer int, most time.Duration) {
	m.paused[peer] = max(m.paused[peer], m.now.Add(m.between(0, most)))
	m.check.seen["paused"]++
}

// pauseLeft is for how long the peer of a link still stands still.
func (w *world) pauseLeft(link plan.LinkID) time.Duration {
	return max(0, w.paused[w.check.links[link].peer].Sub(w.now))
}

// hear notes a sign of a peer's process.
func (k *checker) hear(link plan.LinkID) { k.heard[k.links[link].peer] = k.w.now }

// presences checks the events about peers: silence and return take turns, and a silent peer has been so for long
// enough. No rail of it is suspected meanwhile.
func (k *checker) presences(e *event.Event) {
	peer := 0
	if e.Peer == "peer1" {
		peer = 1
	}
	switch p := &k.presence[peer]; e.Kind {
	case event.PeerSilent:
		if quiet := e.Time.Sub(k.heard[peer]); quiet < k.w.core.options.SilentAfter {
			k.fail("peer %d is said to be silent, and was heard %v ago", peer, quiet)
		}
		if !p.Observe(rail.Missed) {
			k.fail("peer %d is silent twice", peer)
		}
	case event.PeerBack:
		if !p.Observe(rail.Heard) {
			k.fail("peer %d is back, and was not silent", peer)
		}
	case event.PeerGone:
		p.Observe(rail.Left)
	case event.RailSuspected:
		if *p == rail.Silent {
			k.fail("a rail is suspected while its peer is silent")
		}
	}
}

// TestModelOfPauses: nothing goes wrong but that peers pause, for less than the stall limit. No request fails, and none
// ends dirty but by its deadline or its user. A world takes some times longer than one of TestModel.
func TestModelOfPauses(t *testing.T) {
	first, n := modelSeeds(t, 1000)
	n = (n + 19) / 20
	seen := map[string]int{}
	for seed := first; seed < first+n; seed++ {
		m := newModel(t, seed)
		m.pausesOnly, m.keys = true, nil
		m.core.options.Stall, m.core.options.Outage = 5*time.Second, 5*time.Second
		for _, r := range m.rails {
			r.failed, r.lost = 0, 0
		}
		m.run(m.now.Add(m.between(10*time.Millisecond, time.Second)), func() bool { return false })
		m.run(m.now.Add(20*time.Second), func() bool { // pauses go on until all is done, or nothing would be proved
			m.paused = [peersMax]clock.Time{}
			return m.idle()
		})
		for _, task := range m.check.tasks {
			m.check.look(task)
			if task.state == Failed || (task.dirty && task.state == Completed) {
				status, _ := m.core.Status(task.batch, task.index)
				m.check.fail("a pause has ended task %d: %+v", task.index, status)
			}
			seen[task.state.String()]++
		}
		for what, times := range m.check.seen {
			seen[what] += times
		}
	}
	t.Logf("%d worlds: %v", n, seen)
	for _, what := range []string{"COMPLETED", "paused", "peer_silent", "peer_back"} {
		if n < 20 {
			break // too few to have seen all
		}
		require.NotZero(t, seen[what], what)
	}
}
