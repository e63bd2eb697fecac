package sim

import (
	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// attempt is an accepted slice. It lives in its transport's pool and is used again after its completion; life says its
// lives apart.
//
//	queued --pump--> on the wire --sent--> under way --arrived--> WRITE: bytes land --answer--> completed
//	                                           |          '-----> READ: --data--> bytes land here, completed
//	                                           '--lost----------------------------------------> completed
//	Withdraw: queued, or a READ: completed. Else --asked--> void unless landed --told--> completed
type attempt struct {
	index   uint64
	life    uint64
	slice   *transport.Slice // nil: free
	id      uint64           // of the slice
	rail    *rail
	wired   bool        // began to leave
	copies  int         // landings still to come
	landed  bool        // every byte was written at least once
	posted  bool        // a WRITE that has arrived and is placed later
	void    bool        // arriving bytes are discarded now
	asking  bool        // the peer is asked for the end
	lostAck bool        // the answer goes astray
	verdict *errs.Error // the peer's refusal
}

// accept takes a slice.
func (t *Transport) accept(r *rail, s *transport.Slice) {
	var a *attempt
	if last := len(t.free) - 1; last >= 0 {
		a, t.free = t.free[last], t.free[:last]
	} else {
		a = &attempt{index: uint64(len(t.attempts))}
		t.attempts = append(t.attempts, a)
	}
	t.network.life++
	*a = attempt{index: a.index, life: t.network.life, slice: s, id: s.Id, rail: r}
	s.Scratch[0], s.Scratch[1] = a.index+1, a.life
	r.outstanding++
	r.queues[min(s.Class, classes-1)].push(a)
}

// attempt finds a slice that is outstanding, nil if it is not.
func (t *Transport) attempt(s *transport.Slice) *attempt {
	i := s.Scratch[0] - 1
	if i >= uint64(len(t.attempts)) {
		return nil
	}
	if a := t.attempts[i]; a.slice == s && a.life == s.Scratch[1] {
		return a
	}
	return nil
}

// run carries out an event that nothing holds back.
func (e *event) run(n *Network) {
	switch a := e.attempt; e.kind {
	case call:
		e.do()
	case sent:
		if e.rail.sending == e.life {
			e.rail.sending = 0
			e.rail.pump()
		}
		if a.life == e.life {
			a.leave(n)
		}
	case arrived:
		a.arrive(n)
	case data:
		if a.void {
			return
		}
		a.land()
		if a.copies--; a.copies == 0 || !a.landed {
			a.complete(a.verdict)
		}
	case placed:
		if !a.void {
			a.land()
		}
	case answer:
		if a.posted {
			a.acknowledged(n)
		} else {
			a.complete(a.verdict)
		}
	case lost:
		a.complete(a.lost())
	case asked:
		a.asked(n)
	case told:
		if a.landed || a.verdict != nil {
			a.complete(a.verdict)
		} else {
			a.complete(a.withdrawn())
		}
	}
}

// leave deals a slice its fate, now that its last byte has left.
func (a *attempt) leave(n *Network) {
	s := &a.rail.path.shape
	way := clock.Time(s.Delay) + n.upTo(clock.Time(s.Jitter))
	if n.chance(s.Loss) {
		n.schedule(a.event(lost, nil), s.giveUp())
		return
	}
	a.copies, a.lostAck = 1, n.chance(s.LostAck)
	n.schedule(a.event(arrived, a.rail.link.to), way)
	if n.chance(s.Duplicate) {
		a.copies = 2
		n.schedule(a.event(arrived, a.rail.link.to), way+1+n.upTo(clock.Time(s.LateBy)))
	}
}

// event is one of the slice that travels on its rail to a node, nil for none.
func (a *attempt) event(k kind, to *Transport) event {
	return event{kind: k, attempt: a, life: a.life, rail: a.rail, node: to}
}

// arrive is at the peer: a WRITE lands there, a READ is answered with data.
func (a *attempt) arrive(n *Network) {
	s := &a.rail.path.shape
	if a.void {
		return
	}
	back := clock.Time(s.Delay)
	if n.chance(s.Late) {
		back += n.upTo(clock.Time(s.LateBy))
	}
	if !a.landsThere() {
		n.schedule(a.event(data, a.rail.link.owner), back)
		return
	}
	if a.rail.link.owner.posts(a) {
		a.post(n)
	} else {
		a.land()
	}
	if a.landed || a.posted {
		if a.copies--; a.copies > 0 {
			return
		}
	} else {
		a.void = true // refused once is refused
	}
	kind := answer
	if a.lostAck {
		kind, back = lost, s.giveUp()
	}
	n.schedule(a.event(kind, a.rail.link.owner), back)
}

// landsThere reports whether the peer writes the destination.
func (a *attempt) landsThere() bool {
	return a.slice.Op == transport.Write || a.rail.link.owner.settings.Executor
}

// withdraw asks for the completion.
func (a *attempt) withdraw() {
	r := a.rail
	switch n := r.link.owner.network; {
	case !a.wired || !a.landsThere(): // nothing left us, or it lands where we can refuse it
		a.complete(a.withdrawn())
	case !a.asking:
		a.asking = true
		e := event{kind: asked, attempt: a, life: a.life, node: r.link.to}
		n.schedule(r.link.owner.control(e, r), r.link.delay())
	}
}

// control sends an event over any rail of the link, or over the slice's own where the transport knows no other way.
func (t *Transport) control(e event, own *rail) event {
	if t.settings.WithdrawOnRail {
		e.rail = own
	} else {
		e.link = own.link
	}
	return e
}

// asked is the withdrawal at the peer: a slice that has not landed never will, and one that has is reported as it is.
func (a *attempt) asked(n *Network) {
	a.place()
	a.void = true
	e := event{kind: told, attempt: a, life: a.life, node: a.rail.link.owner}
	n.schedule(a.rail.link.owner.control(e, a.rail), a.rail.link.delay())
}

// complete ends the attempt. Its events are void from here on.
func (a *attempt) complete(err *errs.Error) {
	r := a.rail
	t := r.link.owner
	c := transport.Completion{Slice: a.slice, Id: a.id, Err: err}
	if err == nil {
		c.Bytes = a.slice.Length
	}
	t.network.life++
	a.life, a.slice, a.rail, a.verdict = t.network.life, nil, nil, nil
	t.free = append(t.free, a)
	t.emit(delivery{news: completed, completion: c})
	r.outstanding--
	if r.up && r.owesReady {
		r.owesReady = false
		t.emit(delivery{news: ready, rail: r.name()})
	}
	if !r.up {
		r.comeUp()
	}
}

func (a *attempt) withdrawn() *errs.Error {
	return a.refusal(errs.Withdrawn, errs.SideLocal, "asked back by the engine")
}

func (a *attempt) lost() *errs.Error {
	return a.refusal(errs.Lost, errs.SidePath, "no answer").WithScope(errs.ScopeRail, errs.SidePath)
}
