package faulty

import (
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// listener is the sink of the inner transport. Notified, Ready and Progress pass as they are.
type listener struct {
	transport.Sink
	t *Transport
}

func (t *Transport) listen() listener { return listener{t.sink, t} }

// Complete passes completions that no fault hits. A completion has arrived, so its slice is quiet also if it is kept
// here.
func (l listener) Complete(list []transport.Completion) {
	t := l.t
	if t.idle() {
		t.sink.Complete(list)
		return
	}
	pass := make([]transport.Completion, 0, len(list))
	var spoilers []*errand
	t.mu.Lock()
	for _, c := range list {
		if e := t.errands[c.Slice]; e != nil {
			pass = t.settle(e, c.Err, pass)
			continue
		}
		if e := t.errandOf[c.Slice]; e != nil { // its copy is still under way
			e.end = &c
			continue
		}
		if e, arrived := t.arrive(&c); e != nil {
			spoilers = append(spoilers, e)
		} else if arrived {
			pass = t.overtake(c, append(pass, c))
		}
	}
	t.mu.Unlock()
	t.complete(pass)
	for _, e := range spoilers {
		if t.Transport.Submit([]*transport.Slice{&e.own}) == 0 {
			t.over(e) // no room: this one stays as it is
		}
	}
}

// arrive applies the rules to a completion. It reports whether c, changed perhaps, goes on to the core now, or
// returns an errand that has to be carried out first. Called with the mutex.
func (t *Transport) arrive(c *transport.Completion) (*errand, bool) {
	r := t.atCompletion(*c)
	if r == nil {
		return nil, true
	}
	end, s := *c, c.Slice
	switch r.verb {
	case lose:
		*c = transport.Completion{Slice: s, Id: s.Id, Err: r.error(t.peers[s.Rail.Link], t.name)}
		return nil, true
	case corrupt:
		e := t.spoil(r, c)
		return e, e == nil
	case delay:
		t.holdFor(r.delay, s, &hold{rule: r, end: &end})
	case reorder:
		t.holdFor(reorderWithin, s, &hold{rule: r, end: &end, behind: r.behind})
	case slow:
		t.holdFor(t.pace(r, s), s, &hold{rule: r, end: &end, paced: true})
	default:
		t.hold(s, &hold{rule: r, end: &end})
	}
	return nil, false
}

// atCompletion says which rule hits a completion. A slice that was asked for, or is of a generation that has ended,
// comes back unless the rule is silent. Called with the mutex.
func (t *Transport) atCompletion(c transport.Completion) *rule {
	id, asked := t.asked[c.Slice]
	asked = asked && id == c.Slice.Id
	delete(t.asked, c.Slice)
	asked = asked || !t.upNow(c.Slice.Rail)
	rules := t.plan.current()
	for _, r := range rules {
		if r.verb.ofSlices() && t.matches(r, c.Slice) {
			back := &t.ledger.of(r).back
			back.slices++
			back.bytes += c.Slice.Length
		}
	}
	for _, v := range onTheWayBack {
		for i, r := range rules {
			if r.verb != v || !t.matches(r, c.Slice) || !r.applies(c.Err == nil, asked, t.devices[c.Slice.LocalKey]) {
				continue
			}
			if back := t.ledger.of(r).back; t.ledger.strikes(r, back.slices, back.bytes) {
				return t.slowest(rules[i:], c.Slice)
			}
		}
	}
	return nil
}

// slowest returns the first of the rules, or one behind it that hits the same slice and slows it down more. Then the
// hit is that rule's alone. Called with the mutex.
func (t *Transport) slowest(rules []*rule, s *transport.Slice) *rule {
	r := rules[0]
	for _, other := range rules[1:] {
		if r.verb != slow || other.verb != slow || other.bytesPerSecond >= r.bytesPerSecond || !t.matches(other, s) {
			continue
		}
		if back := t.ledger.of(other).back; t.ledger.strikes(other, back.slices, back.bytes) {
			t.ledger.unstrike(r)
			r = other
		}
	}
	return r
}

// applies reports whether a fault of the way back can be put on such a completion.
func (r *rule) applies(fine, asked, device bool) bool {
	switch r.verb {
	case blackhole, dropCompletion:
		return !asked || r.silent
	case lose:
		return fine
	case corrupt:
		return fine && !asked && !device
	}
	return !asked
}

// RailUp is kept back while a rule wants the rail down.
func (l listener) RailUp(info transport.RailInfo) {
	t, p := l.t, pathOf(info.Rail)
	t.mu.Lock()
	r := t.rails[p]
	if r == nil {
		r = &rail{}
		t.rails[p] = r
	}
	by := t.wantedDown(p)
	hide := by != nil
	if hide && r.hidden == nil {
		t.ledger.count(by, 1)
		t.engaged.Add(1)
	}
	if hide {
		r.hidden = &info
	} else {
		r.generation, r.up, r.told = info.Rail.Generation, true, false
	}
	t.mu.Unlock()
	if !hide {
		t.sink.RailUp(info)
	}
}

// wantedDown returns the rule that says down for a rail, or nil. Called with the mutex.
func (t *Transport) wantedDown(p path) *rule {
	for _, r := range t.plan.current() {
		if r.verb == down && t.meansRail(r, p) {
			return r
		}
	}
	return nil
}

// RailDown passes unless the sink has heard of it already, or never knew the generation. A slice that waits here for
// the rail is given back.
func (l listener) RailDown(name transport.Rail, cause *errs.Error) {
	t := l.t
	t.mu.Lock()
	r, pass := t.rails[pathOf(name)], true
	if r != nil {
		if r.hidden != nil && r.hidden.Rail == name {
			r.hidden, pass = nil, false
			t.engaged.Add(-1)
		} else if r.generation == name.Generation {
			pass = !r.told
			r.up, r.told = false, false
		}
	}
	mine := t.takeAll(errs.Lost, errs.ScopeRail,
		func(s *transport.Slice, h *hold) bool { return s.Rail == name && !h.rule.silent })
	t.mu.Unlock()
	if pass {
		t.sink.RailDown(name, cause)
	}
	t.complete(mine)
}

// LinkDown also ends the slices that are held of the link: the peer is gone, so they cannot be sent any more.
func (l listener) LinkDown(link transport.Link, cause *errs.Error) {
	t := l.t
	t.mu.Lock()
	for p, r := range t.rails {
		if p.link == link {
			r.up = false
		}
	}
	mine := t.takeAll(errs.Lost, errs.ScopeLink, func(s *transport.Slice, _ *hold) bool { return s.Rail.Link == link })
	t.mu.Unlock()
	t.complete(mine)
	t.sink.LinkDown(link, cause)
}

// changed makes the plan's new rules true: slices that no rule holds any more complete, rails go down or come up.
func (t *Transport) changed() {
	t.mu.Lock()
	now := map[*rule]bool{}
	touching := false
	for _, r := range t.plan.current() {
		now[r] = true
		touching = touching || r.verb.ofSlices() && t.mine(r)
	}
	t.touching.Store(touching)
	t.ledger.keep(now)
	for lane := range t.paces {
		if !now[lane.rule] {
			delete(t.paces, lane)
		}
	}
	if !touching {
		clear(t.asked)
	}
	freed := t.takeAll(errs.Lost, errs.ScopeRail, func(_ *transport.Slice, h *hold) bool { return !now[h.rule] })
	fallen, risen := t.judgeRails()
	t.mu.Unlock()
	t.complete(freed)
	for _, name := range fallen {
		t.fell(name, t.plan.String())
	}
	for _, info := range risen {
		t.sink.RailUp(info)
	}
}

// fell reports to the sink that a rail has gone down, and ends it inside.
func (t *Transport) fell(name transport.Rail, why string) {
	t.sink.RailDown(name, errs.New(errs.Lost, "faulty", "injected by %q", why).WithScope(errs.ScopeRail, errs.SidePath))
	t.Fence(name)
}

// judgeRails finds the rails that go down and those that come up by the rules of now. Called with the mutex.
func (t *Transport) judgeRails() (fallen []transport.Rail, risen []transport.RailInfo) {
	for p, r := range t.rails {
		switch want := t.wantedDown(p); {
		case want != nil && r.up:
			fallen = append(fallen, t.drop(p, r, want))
		case want == nil && r.hidden != nil:
			risen = append(risen, *r.hidden)
			r.generation, r.up, r.told, r.hidden = r.hidden.Rail.Generation, true, false, nil
			t.engaged.Add(-1)
		}
	}
	return fallen, risen
}

// drop notes that a rail ends by a rule's will. Called with the mutex.
func (t *Transport) drop(p path, r *rail, why *rule) transport.Rail {
	r.up, r.told = false, true
	t.ledger.count(why, 1)
	return transport.Rail{Link: p.link, Index: p.index, Generation: r.generation}
}

// reset breaks the rails that a rule means, once.
func (t *Transport) reset(why *rule) {
	var fallen []transport.Rail
	t.mu.Lock()
	for p, r := range t.rails {
		if r.up && t.meansRail(why, p) {
			fallen = append(fallen, t.drop(p, r, why))
		}
	}
	t.mu.Unlock()
	for _, name := range fallen {
		t.fell(name, why.text)
	}
}
