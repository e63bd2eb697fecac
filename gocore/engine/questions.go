package engine

import (
	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// question asks for a sign of life of a rail: by a probe over it, or from its transport's account.
type question struct {
	dispatch.Question
	probe bool
}

// keepQuestions copies the questions of a step into the deferred work. The caller holds e.mu.
func (e *Engine) keepQuestions(effects *dispatch.Effects) {
	for _, q := range effects.AskLiveness {
		e.deferred.asks = append(e.deferred.asks, question{q, false})
	}
	for _, q := range effects.Probe {
		e.deferred.asks = append(e.deferred.asks, question{q, true})
	}
}

// ask carries out questions; the answers come through the inbox. The caller holds no lock.
func (e *Engine) ask(list []question) {
	looked := false
	for i := range list {
		q := list[i].Question
		port := e.ports[q.Transport]
		switch {
		case list[i].probe:
			port.probe(q)
		case port.witness != nil:
			e.inbox.notice(notice{kind: noticeHeard, link: q.Link, rail: q.Rail, transport: q.Transport,
				signs: port.witness.Heard(q.Rail)})
		default:
			if !looked { // a sign of life may lie unread in a socket: its reader may not have run
				looked = true
				e.pollers.poll(pollWork, transport.AllClasses)
				e.pollers.arm()
			}
			e.inbox.notice(notice{kind: noticeHeard, link: q.Link, rail: q.Rail, transport: q.Transport})
		}
	}
}

// probe asks over a rail itself.
func (p *port) probe(q dispatch.Question) {
	answer := func(took clock.Time, err *errs.Error) {
		p.engine.notice(notice{kind: noticeProbed, link: q.Link, rail: q.Rail, at: took, cause: err})
	}
	if p.prober == nil {
		answer(0, errs.New(errs.NotImplemented, "probe", "transport %s has no probes", p.name))
		return
	}
	p.prober.Probe(q.Rail, answer)
}
