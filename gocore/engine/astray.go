package engine

import (
	"slices"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/plan"
)

// A region that its owner has closed stays in the descriptions that peers have, and wins over the region that is at its
// address now. The owner refuses every byte there. A request by address then asks the owner once, and goes to the
// region that the answer has there (dispatch/astray.go), if that one was registered before the request was submitted:
// nothing of before a close comes behind it. The owner announces no close: peers that never touch the region again
// would all ask. Decision 0171.

// seek asks peers for the regions at the addresses of tasks. The caller holds no lock but, perhaps, that of a peer.
func (e *Engine) seek(list []dispatch.Astray) {
	for len(list) > 0 {
		of := func(a dispatch.Astray) bool { return a.Peer == list[0].Peer }
		theirs := slices.DeleteFunc(slices.Clone(list), func(a dispatch.Astray) bool { return !of(a) })
		if peers := e.segments.numbered([]uint32{list[0].Peer}); len(peers) > 0 {
			e.renewals.add(peers[0], func(w *renewal) { w.ask, w.astray = true, append(w.astray, theirs...) })
		} else {
			e.settle(theirs, make([]place, len(theirs)))
		}
		list = slices.DeleteFunc(list, of)
	}
}

// place is where a task's address is now; without a plan nothing leads there.
type place struct {
	plan   *plan.Plan
	remote uint64 // offset in the region
	err    *errs.Error
}

// relocate starts tasks anew in the regions that the peer has at their addresses, or fails them.
func (p *peer) relocate(list []dispatch.Astray) {
	if len(list) == 0 {
		return
	}
	e := p.engine
	locals := make([]*region, len(list))
	e.mu.Lock()
	for i := range list {
		if b, err := e.lookup(list[i].Batch); err == nil { // else it has ended
			if at := slices.IndexFunc(b.uses, func(r *region) bool { return r.ID == list[i].Spec.Plan.Own }); at >= 0 {
				locals[i] = b.uses[at]
			}
		}
	}
	e.unlockAndDrain()
	places := make([]place, len(list))
	for i := range list {
		if locals[i] != nil {
			places[i] = p.placeOf(&list[i], locals[i])
		}
	}
	e.settle(list, places)
}

// placeOf looks a task's address up in the newest description.
func (p *peer) placeOf(a *dispatch.Astray, local *region) (at place) {
	home, terms := a.Spec.Plan.Home, &a.Spec.Terms
	remote := p.regions.Load().find(home.Addr+a.Begin, a.End-a.Begin)
	switch {
	case p.gone.Load() != nil, remote == nil, remote.ID == home.ID:
		return place{}
	case remote.Registered == 0 || a.Since < remote.Registered: // the close in between is for tasks of before
		return place{}
	case p.begin() != a.Spec.Epoch: // a fence of the owner since then is for tasks of before, wherever they go
		return place{}
	}
	if remote.Addr > home.Addr+a.Spec.Remote { // its parts are counted from before the region
		return place{}
	}
	at.remote = home.Addr + a.Spec.Remote - remote.Addr
	if at.err = p.permits(terms, remote); at.err != nil {
		return at
	}
	policy, err := p.policyFor(terms, local, remote, a.Spec.Length)
	if err == nil {
		at.plan, err = p.planFor(local, remote, terms, policy)
	}
	at.err = err
	return at
}

// settle hands the places of tasks to the core. A task without one fails as it was refused.
func (e *Engine) settle(list []dispatch.Astray, places []place) {
	e.mu.Lock()
	now := clock.Now()
	for i := range list {
		a, at := &list[i], &places[i]
		if at.plan == nil && at.err == nil {
			at.err = a.Err
		}
		e.core.Relocate(a, at.plan, at.remote, at.err, now)
	}
	e.stepAt(now)
	e.unlockAndDrain()
}
