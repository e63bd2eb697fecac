package faulty

import (
	"sync"
	"sync/atomic"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// Transport is a transport with faults. Its mutex is never held while the inner transport or the sink is called.
//
// A slice that Submit accepted is in one of these places until it completes:
//
//	inner transport --completion--> kept back (hold.end) --its time, heal, withdrawal--> sink
//	swallowed (hold) --heal, withdrawal, fence, end of the rail--> sink, as not delivered
//	represented by an errand, a slice of our own that the inner transport has
//
// Nothing is sent late: a fence of the owner would refuse it.
type Transport struct {
	transport.Transport // the real one
	plan                *Plan
	name                string
	sink                transport.Sink
	inliner             transport.Inliner // nil if the inner transport is none
	filer               transport.Filer   // nil if the inner transport is none
	prober              transport.Prober
	witness             transport.Witness
	alignment           uint64 // of the inner transport, at least 1
	later               later
	touching            atomic.Bool  // a rule may meet slices of this transport
	engaged             atomic.Int64 // slices and rails that are not as the inner transport sees them

	mu       sync.Mutex
	ledger   ledger
	closing  bool // no more faults
	peers    map[transport.Link]string
	rails    map[path]*rail
	held     map[*transport.Slice]*hold
	asked    map[*transport.Slice]uint64 // Id of slices that Withdraw asked the inner transport for
	errands  map[*transport.Slice]*errand
	errandOf map[*transport.Slice]*errand // by the core's slice
	paces    map[lane]clock.Time          // when a slowed rail is free again
	devices  map[transport.LocalKey]bool  // regions that we cannot touch
	scratch  scratch
}

// path names a rail without its generation.
type path struct {
	link  transport.Link
	index uint16
}

func pathOf(name transport.Rail) path { return path{name.Link, name.Index} }

// rail is the decorator's state of one.
type rail struct {
	generation uint32 // newest that the sink knows
	up         bool   // as the sink knows it
	told       bool   // the sink heard of its end from us; the inner transport's RailDown is still to come
	hidden     *transport.RailInfo
	heard      transport.Signs // from the inner transport, as told before a fault
}

// idle reports that there is nothing to look at.
func (t *Transport) idle() bool { return !t.touching.Load() && t.engaged.Load() == 0 }

// mine reports whether a rule is in force here. Called with the mutex.
func (t *Transport) mine(r *rule) bool {
	return !t.closing && (r.transport == "" || r.transport == t.name)
}

// matches reports whether a rule means a slice. Called with the mutex.
func (t *Transport) matches(r *rule, s *transport.Slice) bool {
	return (r.op < 0 || r.op == int(s.Op)) && (r.class < 0 || r.class == int(s.Class)) && t.meansRail(r, pathOf(s.Rail))
}

func (t *Transport) meansRail(r *rule, p path) bool {
	return t.mine(r) && (r.rail < 0 || r.rail == int(p.index)) && (r.peer == "" || r.peer == t.peers[p.link])
}

// ended reports whether a link is not attached, or no more. No fault meets a call that names one: the inner transport
// refuses and counts it.
func (t *Transport) ended(link transport.Link) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, attached := t.peers[link]
	return !attached
}

// Submit hands over slices that no fault hits, in order.
func (t *Transport) Submit(list []*transport.Slice) int {
	if !t.touching.Load() || len(list) == 0 || t.ended(list[0].Rail.Link) {
		return t.Transport.Submit(list)
	}
	for done := 0; ; done++ {
		n, hit := t.passing(list[done:])
		if n > 0 {
			took := t.Transport.Submit(list[done : done+n])
			if took < n {
				counted := done + n
				if hit != nil {
					counted++
				}
				t.uncount(list[done+took:counted], hit)
				return done + took
			}
			done += n
		}
		if hit == nil || !t.carryOut(hit, list[done]) {
			return done
		}
	}
}

// passing says how many slices of a list pass before a rule hits one, or before one of a rail that is not up. Without a
// rule that is the end of the accepted prefix.
func (t *Transport) passing(list []*transport.Slice) (n int, hit *rule) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, s := range list {
		if !t.upNow(s.Rail) {
			return i, nil
		}
		if hit = t.atSubmit(s); hit != nil {
			return i, hit
		}
	}
	return len(list), nil
}

// atSubmit says which rule hits a slice that is about to be sent, nil if none does. Called with the mutex.
func (t *Transport) atSubmit(s *transport.Slice) *rule {
	rules := t.plan.current()
	for _, r := range rules {
		if r.verb.ofSlices() && t.matches(r, s) {
			c := t.ledger.of(r)
			c.out.slices++
			c.out.bytes += s.Length
		}
	}
	for _, v := range onTheWayOut {
		for _, r := range rules {
			if r.verb != v || !t.matches(r, s) {
				continue
			}
			if c := t.ledger.of(r); t.ledger.strikes(r, c.out.slices, c.out.bytes) {
				return r
			}
		}
	}
	return nil
}

// uncount forgets slices that were not accepted, and the hit of the last one, if there is one: they will be submitted
// again.
func (t *Transport) uncount(list []*transport.Slice, hit *rule) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range list {
		t.takeBack(s, nil)
	}
	if hit != nil {
		t.ledger.unstrike(hit)
	}
}

// takeBack undoes the counts of a slice on its way out, but for those of one rule, if it is given. Called with the
// mutex.
func (t *Transport) takeBack(s *transport.Slice, but *rule) {
	for _, r := range t.plan.current() {
		if r != but && r.verb.ofSlices() && t.matches(r, s) {
			t.ledger.takeBack(r, s.Length)
		}
	}
}

// upNow reports whether the sink believes a rail to be up in just this generation.
func (t *Transport) upNow(name transport.Rail) bool {
	r := t.rails[pathOf(name)]
	return r != nil && r.up && r.generation == name.Generation
}

// carryOut applies a rule to a slice. It returns false when the slice is not accepted.
func (t *Transport) carryOut(r *rule, s *transport.Slice) bool {
	t.mu.Lock()
	rail := s.Rail
	if !t.upNow(rail) {
		t.mu.Unlock()
		return false
	}
	peer := t.peers[rail.Link]
	if r.verb == short {
		t.takeBack(s, r) // it comes again, and r alone is to know it then
	} else {
		s.Scratch = [4]uint64{} // never the inner transport's: it must not take the slice for one of its own
	}
	if r.verb == blackhole || r.verb == drop {
		t.hold(s, &hold{rule: r})
	}
	t.mu.Unlock()
	switch r.verb {
	case reject:
		t.sink.Complete([]transport.Completion{{Slice: s, Id: s.Id, Err: r.error(peer, t.name)}})
	case truncate:
		return t.sendPart(r, s)
	case duplicate:
		return t.sendTwice(r, s)
	case short:
		t.later.at(clock.Now(), func() { t.sink.Ready(rail) }) // s is not ours: it may be another slice by then
		return false
	}
	return true
}

// Withdraw gives back held slices, and asks the inner transport for the rest.
func (t *Transport) Withdraw(list []*transport.Slice) {
	if t.idle() {
		t.Transport.Withdraw(list)
		return
	}
	var mine []transport.Completion
	var rest []*transport.Slice
	t.mu.Lock()
	for _, s := range list {
		h, e := t.held[s], t.errandOf[s]
		switch {
		case h != nil && h.rule.silent:
		case h != nil:
			mine = append(mine, t.take(s, h, errs.Withdrawn, errs.ScopeSlice))
		case e == nil || e.kind == duplicate:
			t.asked[s] = s.Id
			rest = append(rest, s)
		}
		if e != nil {
			rest = append(rest, &e.own)
		}
	}
	t.mu.Unlock()
	t.complete(mine)
	t.Transport.Withdraw(rest)
}

func (t *Transport) complete(list []transport.Completion) {
	if len(list) > 0 {
		t.sink.Complete(list)
	}
}

// Fence ends the generation here before it does so inside: nothing can be swallowed on it afterwards.
func (t *Transport) Fence(name transport.Rail) {
	t.mu.Lock()
	if r := t.rails[pathOf(name)]; r != nil && r.generation == name.Generation {
		r.up = false
	}
	mine := t.takeAll(errs.Withdrawn, errs.ScopeSlice,
		func(s *transport.Slice, h *hold) bool { return s.Rail == name && !h.rule.silent })
	t.mu.Unlock()
	t.complete(mine)
	t.Transport.Fence(name)
}
