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

// seek asks peers for the regions at the addresses of tasks. The caller holds no lock.
func (e *Engine) seek(list []dispatch.Astray) {
	for len(list) > 0 {
		of := func(a dispatch.Astray) bool { return a.Peer == list[0].Peer }
		theirs := slices.DeleteFunc(slices.Clone(list), func(a dispatch.Astray) bool { return !of(a) })
		if peers := e.segments.numbered([]uint32{list[0].Peer}); len(peers) > 0 {
			e.renewals.add(peers[0], func(w *renewal) { w.ask, w.astray = true, append(w.astray, theirs...) })
		} else {
			e.giveHomes(theirs, make([]place, len(theirs)))
		}
		list = slices.DeleteFunc(list, of)
	}
}

// place is where the bytes of a task are now: in one region, or its parts in several. Without homes it is nowhere.
type place struct {
	homes []dispatch.Home
	err   *errs.Error
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
	e.giveHomes(list, places)
}

// placeOf looks the addresses of a task up in the newest description.
func (p *peer) placeOf(a *dispatch.Astray, local *region) (at place) {
	if p.gone.Load() != nil || p.currentEpoch() != a.Spec.Epoch { // a fence is for tasks of before it, wherever they go
		return place{}
	}
	before := a.Spec.Plan.Home.Addr
	first := before + a.Spec.Remote
	if whole := p.homeOf(a, before+a.Begin, a.End-a.Begin); whole != nil && whole.Addr <= first {
		made, err := p.planOf(a, local, whole)
		return place{[]dispatch.Home{{Plan: made, Remote: first - whole.Addr}}, err}
	}
	homes := make(map[*remoteRegion]int)
	for i, offset := range a.Parts {
		region := p.homeOf(a, before+offset, a.Spec.Length/uint64(len(a.Parts)))
		if region == nil {
			return place{}
		}
		k, known := homes[region]
		if !known {
			made, err := p.planOf(a, local, region)
			if err != nil {
				return place{err: err}
			}
			k, homes[region] = len(at.homes), len(at.homes)
			at.homes = append(at.homes, dispatch.Home{Plan: made})
		}
		h := &at.homes[k]
		h.Parts, h.At = append(h.Parts, uint32(i)), append(h.At, before+offset-region.Addr)
	}
	return at
}

// homeOf is the region to which a task may go for a range: another one than before, that was registered before the task
// was submitted. The close in between is for tasks of before.
func (p *peer) homeOf(a *dispatch.Astray, addr, length uint64) *remoteRegion {
	r := p.regions.Load().find(addr, length)
	if r == nil || r.ID == a.Spec.Plan.Home.ID || r.Registered == 0 || a.Since < r.Registered {
		return nil
	}
	return r
}

// planOf is a plan for a task to a region.
func (p *peer) planOf(a *dispatch.Astray, local *region, remote *remoteRegion) (*plan.Plan, *errs.Error) {
	terms := &a.Spec.Terms
	if err := p.permits(terms, remote); err != nil {
		return nil, err
	}
	policy, err := p.policyFor(terms, local, remote, a.Spec.Length)
	if err != nil {
		return nil, err
	}
	return p.planFor(local, remote, terms, policy)
}

// giveHomes hands the places of tasks to the core. A task without one fails as it was refused.
func (e *Engine) giveHomes(list []dispatch.Astray, places []place) {
	e.mu.Lock()
	now := clock.Now()
	for i := range list {
		a, at := &list[i], &places[i]
		if len(at.homes) == 0 && at.err == nil {
			at.err = a.Err
		}
		e.core.Relocate(a, at.homes, at.err, now)
	}
	e.stepAt(now)
	e.unlockAndDrain()
}
