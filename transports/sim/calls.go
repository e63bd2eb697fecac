package sim

import (
	"bytes"
	"slices"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// probeLimit bounds a probe.
const probeLimit = clock.Time(time.Second)

// pending is a notification or a probe that is owed an answer.
type pending struct {
	link *link
	done func(*errs.Error)
	rtt  clock.Time // of a probe that was answered
}

func (l *link) expect(done func(*errs.Error)) *pending {
	p := &pending{link: l, done: done}
	l.calls = append(l.calls, p)
	return p
}

// finish answers a call, once.
func (p *pending) finish(err *errs.Error) {
	if i := slices.Index(p.link.calls, p); i >= 0 {
		p.link.calls = slices.Delete(p.link.calls, i, i+1)
		p.link.owner.emit(delivery{news: called, do: func() { p.done(err) }})
	}
}

func (l *link) finishCalls(err *errs.Error) {
	for len(l.calls) > 0 {
		l.calls[0].finish(err)
	}
}

// Notify carries a message over any rail of the link. A peer with a full queue gives it back with the code
// TooManyRequests.
func (t *Transport) Notify(id transport.Link, message []byte, done func(*errs.Error)) bool {
	n := t.network
	n.mu.Lock()
	defer n.leave()
	l := t.links.Lookup(id)
	if l == nil || !l.connected {
		return false
	}
	p, message := l.expect(done), bytes.Clone(message)
	n.schedule(event{node: l.target(), link: l, do: func() { l.notified(p, message) }}, l.delay())
	return true
}

// notified is the message at the peer.
func (l *link) notified(p *pending, message []byte) {
	to := l.target()
	if to == nil {
		p.finish(l.gone())
		return
	}
	n, from := l.owner.network, l.owner.self
	to.emit(delivery{news: called, do: func() {
		taken := to.sink.Notified(from, message)
		n.mu.Lock()
		defer n.leave()
		var err *errs.Error
		if !taken {
			err = errs.New(errs.TooManyRequests, "sim.notify", "the peer's queue is full").
				WithScope(errs.ScopeSlice, errs.SideRemote)
		}
		n.schedule(event{node: l.owner, link: l, do: func() { p.finish(err) }}, l.delay())
	}})
}

// Probe sends a small message there and back on the rail itself.
func (t *Transport) Probe(name transport.Rail, done func(clock.Time, *errs.Error)) {
	n := t.network
	n.mu.Lock()
	defer n.leave()
	r, begun := t.rail(name), n.now
	if r == nil {
		t.emit(delivery{news: called, do: func() {
			done(0, errs.New(errs.StaleGeneration, "sim.probe", "the rail is not up in this generation").
				WithScope(errs.ScopeRail, errs.SideLocal))
		}})
		return
	}
	p := r.link.expect(nil)
	p.done = func(err *errs.Error) { done(p.rtt, err) }
	way := clock.Time(r.path.shape.Delay)
	n.schedule(event{node: r.link.target(), rail: r, do: func() {
		n.schedule(event{node: t, rail: r, do: func() { p.rtt = n.now - begun; p.finish(nil) }}, way)
	}}, way)
	n.schedule(event{do: func() {
		p.finish(errs.New(errs.Timeout, "sim.probe", "no answer within %v", time.Duration(probeLimit)).
			WithScope(errs.ScopeRail, errs.SidePath))
	}}, probeLimit)
}
