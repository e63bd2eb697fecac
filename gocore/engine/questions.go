package engine

import (
	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// question is what the core wants to know of a rail: by a probe over it, or from what its transport has heard.
type question struct {
	dispatch.Question
	probe bool
}

// keepQuestions copies what a step asks into what is done once the mutex is released. The caller holds e.mu.
func (e *Engine) keepQuestions(effects *dispatch.Effects) {
	for _, q := range effects.Doubt {
		e.after.asks = append(e.after.asks, question{q, false})
	}
	for _, q := range effects.Probe {
		e.after.asks = append(e.after.asks, question{q, true})
	}
}

// ask carries out questions. Their answers come by the inbox. The caller holds no lock.
func (e *Engine) ask(list []question) {
	looked := false
	for i := range list {
		q := list[i].Question
		port := e.ports[q.Transport]
		switch {
		case list[i].probe:
			port.probe(q)
		case port.witness != nil:
			at, held := port.witness.Heard(q.Rail)
			e.inbox.notice(notice{kind: noticeHeard, link: q.Link, rail: q.Rail, transport: q.Transport, at: at, held: held})
		default:
			if !looked { // a sign of life may lie in a socket whose reader was not let run
				looked = true
				for _, p := range e.sockets {
					p.Poll(pollWork)
				}
				arm(e.sockets)
			}
			e.inbox.notice(notice{kind: noticeHeard, link: q.Link, rail: q.Rail, transport: q.Transport})
		}
	}
}

// probe asks over a rail itself.
func (p *port) probe(q dispatch.Question) {
	answer := func(took clock.Time, err *errs.Error) {
		p.engine.inbox.notice(notice{kind: noticeProbed, link: q.Link, rail: q.Rail, at: took, cause: err})
		p.engine.turn()
	}
	if p.prober == nil {
		answer(0, errs.New(errs.NotImplemented, "probe", "transport %s has no probes", p.name))
		return
	}
	p.prober.Probe(q.Rail, answer)
}

// lookForOptions notes what a transport can do beyond the contract. It is called once, when the transport was opened.
func (p *port) lookForOptions() {
	p.prober, _ = transport.Find[transport.Prober](p.transport)
	p.witness, _ = transport.Find[transport.Witness](p.transport)
}
