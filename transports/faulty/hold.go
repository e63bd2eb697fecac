package faulty

import (
	"slices"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// reorderWithin is for how long a completion waits for others to pass it.
const reorderWithin = 10 * time.Millisecond

// hold is a slice of the core's that the decorator answers for.
type hold struct {
	rule   *rule
	end    *transport.Completion // the real one, kept back; nil: the slice was swallowed and never sent
	behind uint64                // reorder: the number of others that go first
	// end waits for its turn on a slowed rail: not delivered yet, as far as anybody can know
	paced bool
}

// hold keeps a slice. Called with the mutex.
func (t *Transport) hold(s *transport.Slice, h *hold) {
	t.held[s] = h
	t.engaged.Add(1)
}

// holdFor keeps a completion back for a while; in a black hole that was made meanwhile it stays. Called with the mutex.
func (t *Transport) holdFor(after time.Duration, s *transport.Slice, h *hold) {
	t.hold(s, h)
	passed := t.plan.current() // these rules have seen it
	t.later.at(clock.Now().Add(after), func() {
		t.mu.Lock()
		mine := t.held[s] == h
		if hole := t.swallows(s, passed); mine && hole != nil {
			h.rule, h.behind, mine = hole, 0, false
			t.ledger.strike(hole)
		}
		if mine {
			t.release(s)
		}
		t.mu.Unlock()
		if mine {
			t.complete([]transport.Completion{*h.end})
		}
	})
}

// swallows returns the black hole that a completion ends in now, other than those that it has passed. Called with the
// mutex.
func (t *Transport) swallows(s *transport.Slice, passed []*rule) *rule {
	for _, r := range t.plan.current() {
		if r.verb == blackhole && t.matches(r, s) && !slices.Contains(passed, r) && t.ledger.wouldHit(r) {
			return r
		}
	}
	return nil
}

// release ends the hold of a slice. Called with the mutex.
func (t *Transport) release(s *transport.Slice) {
	delete(t.held, s)
	t.engaged.Add(-1)
}

// take gives up a slice that is held. A slice that a slowed rail has not carried yet counts as not delivered, although
// it is there. Called with the mutex.
func (t *Transport) take(s *transport.Slice, h *hold, code errs.Code, scope errs.Scope) transport.Completion {
	t.release(s)
	if h.end != nil && !h.paced {
		return *h.end
	}
	e := errs.New(code, "faulty", "held by %q", h.rule.text).WithScope(scope, errs.SidePath).
		WithPeer(t.peers[s.Rail.Link], t.name, "")
	e.Collateral = code == errs.Lost
	return transport.Completion{Slice: s, Id: s.Id, Err: e}
}

// takeAll takes the held slices that fit, in the order of the slices' ids. Called with the mutex.
func (t *Transport) takeAll(code errs.Code, scope errs.Scope,
	fits func(*transport.Slice, *hold) bool) (list []transport.Completion) {
	for s, h := range t.held {
		if fits(s, h) {
			list = append(list, t.take(s, h, code, scope))
		}
	}
	slices.SortFunc(list, func(a, b transport.Completion) int { return int(a.Slice.Id) - int(b.Slice.Id) })
	return list
}

// overtake lets a completion pass those of its rail that are to come behind others, and adds those that have been
// passed often enough. Called with the mutex.
func (t *Transport) overtake(c transport.Completion, pass []transport.Completion) []transport.Completion {
	for s, h := range t.held {
		if h.behind == 0 || s.Rail != c.Slice.Rail {
			continue
		}
		if h.behind--; h.behind == 0 {
			t.release(s)
			pass = append(pass, *h.end)
		}
	}
	return pass
}

// lane is a rail as one rule slows it down.
type lane struct {
	rule *rule
	path path
}

// pace says after how long a slice has passed a rail that carries one after the other at the rule's rate. Called with
// the mutex.
func (t *Transport) pace(r *rule, s *transport.Slice) time.Duration {
	at, free := clock.Now(), t.paces[lane{r, pathOf(s.Rail)}]
	free = max(free, at).Add(time.Duration(float64(s.Length) / float64(r.bytesPerSecond) * 1e9))
	t.paces[lane{r, pathOf(s.Rail)}] = free
	return free.Sub(at)
}
