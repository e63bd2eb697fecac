package faulty

import (
	"context"
	"math"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

var (
	_ transport.Decorator = (*Transport)(nil)
	_ transport.Injector  = (*Transport)(nil)
	_ transport.Witness   = (*Transport)(nil)
)

// Inner implements transport.Decorator: optional interfaces that are not here are looked for there.
func (t *Transport) Inner() transport.Transport { return t.Transport }

// Injected implements transport.Injector.
func (t *Transport) Injected() (rules int, struck, ambient uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.plan.current() {
		if !r.ambient && t.mine(r) {
			rules++
		}
	}
	return rules, t.ledger.struck, t.ledger.ambient
}

// Inline leaves slices to Submit while a fault may meet them, or one of earlier slices is not over.
func (t *Transport) Inline(list []*transport.Slice) bool {
	return (t.idle() || len(list) > 0 && t.ended(list[0].Rail.Link)) && t.inliner.Inline(list)
}

// probeSilence is after how long a probe that gets no answer counts as failed.
const probeSilence = 100 * time.Millisecond

// Probe fares as a slice on the rail would.
func (t *Transport) Probe(rail transport.Rail, done func(rtt clock.Time, err *errs.Error)) {
	if !t.touching.Load() || t.ended(rail.Link) {
		t.prober.Probe(rail, done)
		return
	}
	t.mu.Lock()
	hit, late := t.atProbe(rail)
	peer := t.peers[rail.Link]
	t.mu.Unlock()
	switch {
	case hit == nil && late == 0:
		t.prober.Probe(rail, done)
	case hit == nil:
		t.prober.Probe(rail, func(rtt clock.Time, err *errs.Error) {
			t.later.at(clock.Now().Add(late), func() { done(rtt+clock.Time(late), err) })
		})
	case hit.verb == reject:
		t.later.at(clock.Now(), func() { done(0, hit.error(peer, t.name)) })
	default:
		t.later.at(clock.Now().Add(probeSilence), func() { done(0, hit.error(peer, t.name)) })
	}
}

// atProbe says which rule swallows or refuses a probe, else how much later its answer comes. Rules of one operation, of
// one class or of chosen slices are not about probes, nor are those that lose a number of slices. Called with the
// mutex.
func (t *Transport) atProbe(rail transport.Rail) (hit *rule, late time.Duration) {
	for _, r := range t.plan.current() {
		if r.op >= 0 || r.class >= 0 || r.nth > 0 || r.every > 0 || !t.meansRail(r, pathOf(rail)) {
			continue
		}
		switch r.verb {
		case reject, blackhole, drop, dropCompletion:
			if (r.verb == blackhole || r.count == math.MaxUint64) && t.ledger.wouldHit(r) {
				return r, 0
			}
		case delay:
			late += r.delay
		case slow:
			late += max(0, t.paces[lane{r, pathOf(rail)}].Sub(clock.Now()))
		}
	}
	return nil, late
}

// Heard applies the active faults to the inner answer: a black-holed rail was never heard.
func (t *Transport) Heard(name transport.Rail) transport.Signs {
	if t.touching.Load() && !t.ended(name.Link) {
		t.mu.Lock()
		hit, _ := t.atProbe(name)
		r := t.rails[pathOf(name)]
		if hit != nil && r != nil {
			signs := r.heard
			t.mu.Unlock()
			signs.Held = false
			return signs
		}
		t.mu.Unlock()
	}
	signs := t.witness.Heard(name)
	t.mu.Lock()
	if r := t.rails[pathOf(name)]; r != nil && t.touching.Load() {
		r.heard = signs
	}
	t.mu.Unlock()
	return signs
}

// OpenFile is the inner transport's.
func (t *Transport) OpenFile(ctx context.Context, spec transport.FileSpec) (transport.FileCard, error) {
	return t.filer.OpenFile(ctx, spec)
}

// Sync fails where a rule says so, as errs.StorageError unless the rule names a code: bytes that the kernel could not
// write is lost.
func (t *Transport) Sync(link transport.Link, key transport.RemoteKey, done func(*errs.Error)) {
	t.mu.Lock()
	peer, attached := t.peers[link]
	t.mu.Unlock()
	var r *rule
	if attached {
		r = t.atCall(failSync, peer)
	}
	if r == nil {
		t.filer.Sync(link, key, done)
		return
	}
	e := r.error(peer, t.name).WithScope(errs.ScopeSlice, errs.SideRemote)
	if e.Code == errs.Lost {
		e.Code = errs.StorageError
	}
	done(e)
}

// Explain adds the faults to the inner transport's answer.
func (t *Transport) Explain(link transport.Link) string {
	text := "without faults"
	if faults := t.plan.String(); faults != "" {
		text = "with faults: " + faults
	}
	if e, is := transport.Find[transport.Explainer](t.Transport); is {
		return e.Explain(link) + " (" + text + ")"
	}
	return text
}
