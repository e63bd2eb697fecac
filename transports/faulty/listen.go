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

func (t *Transport) listener() transport.Sink { return listener{t.sink, t} }

// Complete passes what no fault hits. A completion has arrived, so its slice is quiet, whatever becomes of it here.
func (l listener) Complete(list []transport.Completion) {
	t := l.t
	if t.idle() {
		t.sink.Complete(list)
		return
	}
	pass := make([]transport.Completion, 0, len(list))
	t.mu.Lock()
	for _, c := range list {
		r := t.atCompletion(c)
		if r != nil && r.verb == lose {
			c = transport.Completion{Slice: c.Slice, Err: r.error(t, t.peers[c.Slice.Rail.Link])}
			r = nil
		}
		switch {
		case r == nil:
			pass = append(pass, c)
		case r.verb == delay:
			t.later.complete(c, r.delay)
		default:
			t.hold(c.Slice, hold{rule: r, end: &c})
		}
	}
	t.mu.Unlock()
	t.complete(pass)
}

// atCompletion says which rule hits a completion. What was asked for, or belongs to a generation that has ended, comes
// back unless the rule is silent. Called with the mutex.
func (t *Transport) atCompletion(c transport.Completion) *rule {
	id, asked := t.asked[c.Slice]
	asked = asked && id == c.Slice.Id
	delete(t.asked, c.Slice)
	asked = asked || !t.upNow(c.Slice.Rail)
	for _, r := range t.plan.current() {
		if !t.matches(r, c.Slice) {
			continue
		}
		back := &t.spending(r).back
		back.slices++
		back.bytes += c.Slice.Length
		hits := r.verb == delay || r.verb == lose && c.Err == nil || (r.verb == dropCompletion || r.verb == blackhole) && (!asked || r.silent)
		if hits && t.strikes(r, back.slices, back.bytes) {
			return r
		}
	}
	return nil
}

// RailUp is kept back while a rule wants the rail down.
func (l listener) RailUp(info transport.RailInfo) {
	t, p := l.t, path{info.Rail.Link, info.Rail.Index}
	t.mu.Lock()
	r := t.rails[p]
	if r == nil {
		r = &rail{}
		t.rails[p] = r
	}
	hide := t.wantedDown(p)
	if hide && r.hidden == nil {
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

// wantedDown reports whether a rule says down for a rail. Called with the mutex.
func (t *Transport) wantedDown(p path) bool {
	for _, r := range t.plan.current() {
		if r.verb == down && t.meansRail(r, p) {
			return true
		}
	}
	return false
}

// RailDown passes unless the sink has heard of it already, or never knew the generation.
func (l listener) RailDown(name transport.Rail, cause *errs.Error) {
	t := l.t
	t.mu.Lock()
	r, pass := t.rails[path{name.Link, name.Index}], true
	if r != nil {
		if r.hidden != nil && r.hidden.Rail == name {
			r.hidden, pass = nil, false
			t.engaged.Add(-1)
		} else if r.generation == name.Generation {
			pass = !r.told
			r.up, r.told = false, false
		}
	}
	t.mu.Unlock()
	if pass {
		t.sink.RailDown(name, cause)
	}
}

// LinkDown also ends what is held of the link: the peer is gone, so what was swallowed cannot be sent any more.
func (l listener) LinkDown(link transport.Link, cause *errs.Error) {
	t := l.t
	t.mu.Lock()
	for p, r := range t.rails {
		if p.link == link {
			r.up = false
		}
	}
	mine := t.takeAll(func(s *transport.Slice, _ hold) bool { return s.Rail.Link == link })
	t.mu.Unlock()
	t.complete(mine)
	t.sink.LinkDown(link, cause)
}

// changed makes the plan's new rules true: what no rule holds any more goes on, rails go down or come up.
func (t *Transport) changed() {
	t.mu.Lock()
	now := map[*rule]bool{}
	for _, r := range t.plan.current() {
		now[r] = true
	}
	for r := range t.spent {
		if !now[r] {
			delete(t.spent, r)
		}
	}
	if len(now) == 0 {
		clear(t.asked)
	}
	var again []*transport.Slice
	freed := t.takeAll(func(s *transport.Slice, h hold) bool { return !now[h.rule] && h.end != nil })
	for _, c := range t.takeAll(func(_ *transport.Slice, h hold) bool { return !now[h.rule] }) {
		again = append(again, c.Slice)
	}
	fallen, risen := t.judgeRails()
	t.mu.Unlock()
	t.complete(freed)
	for _, s := range again {
		t.resend(s)
	}
	for _, name := range fallen {
		t.sink.RailDown(name, errs.New(errs.Lost, "faulty", "injected by %q", t.plan.String()).WithScope(errs.ScopeRail, errs.SidePath))
		t.Fence(name)
	}
	for _, info := range risen {
		t.sink.RailUp(info)
	}
}

// judgeRails finds the rails that go down and those that come up by the rules of now. Called with the mutex.
func (t *Transport) judgeRails() (fallen []transport.Rail, risen []transport.RailInfo) {
	for p, r := range t.rails {
		switch want := t.wantedDown(p); {
		case want && r.up:
			r.up, r.told = false, true
			fallen = append(fallen, transport.Rail{Link: p.link, Index: p.index, Generation: r.generation})
		case !want && r.hidden != nil:
			risen = append(risen, *r.hidden)
			r.generation, r.up, r.told, r.hidden = r.hidden.Rail.Generation, true, false, nil
			t.engaged.Add(-1)
		}
	}
	return fallen, risen
}

// resend sends what a black hole had swallowed: late, as a healed network does.
func (t *Transport) resend(s *transport.Slice) {
	if t.Transport.Submit([]*transport.Slice{s}) == 0 {
		t.complete([]transport.Completion{{Slice: s, Err: errs.New(errs.Lost, "faulty", "the rail moved on meanwhile").
			WithScope(errs.ScopeRail, errs.SidePath)}})
	}
}
