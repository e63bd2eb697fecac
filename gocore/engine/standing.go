package engine

import (
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// RegionState is the state of a region on one transport.
type RegionState string

// States of a region on a transport.
const (
	RegionReady       RegionState = "ready"
	RegionUnshared    RegionState = "not shared"  // for the reason given; transfers that begin here use it
	RegionRegistering RegionState = "registering" // it joins when the transport has pinned its pages
	RegionNotHere     RegionState = "not here"    // for the reason given; the region lives on the others
)

// Standing says where a region is, and on which transports.
type Standing struct {
	Location mem.Location          `json:"location"`
	On       map[string]StandingOn `json:"transports"` // those that move its kind of memory, by name
}

// StandingOn is a region on one transport.
type StandingOn struct {
	State RegionState `json:"state"`
	Why   string      `json:"why"` // of "not shared" and "not here"
}

// Standing describes an open region.
func (e *Engine) Standing(id mem.RegionID) (Standing, error) {
	r, closed := e.openRegion("standing", id)
	if closed != nil {
		return Standing{}, closed
	}
	s := Standing{r.Location, map[string]StandingOn{}}
	for i, p := range e.ports {
		switch {
		case !e.registersOn(p, r):
		case r.key(i) != 0:
			s.On[p.name] = p.standing(r)
		case r.on[i].Load() == nil:
			s.On[p.name] = StandingOn{State: RegionRegistering}
		default:
			s.On[p.name] = StandingOn{RegionNotHere, r.whyNot(p)}
		}
	}
	return s, nil
}

// standing is that of a region which a transport has.
func (p *port) standing(r *region) StandingOn {
	if why := r.whyNot(p); why != "" {
		return StandingOn{RegionUnshared, why}
	}
	key := r.key(int(p.index))
	if u, is := transport.Find[transport.Unsharing](p.transport); is {
		if why := u.Unshared(key); why != nil {
			return StandingOn{RegionUnshared, why.Error()}
		}
	}
	return StandingOn{State: RegionReady}
}
