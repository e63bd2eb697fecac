package sim

import (
	"fmt"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// Match names the rails on which both regions can be used (Settings.Reaches).
func (t *Transport) Match(id transport.Link, here transport.LocalKey, there transport.RemoteKey) (transport.Match,
	error) {
	t.network.mu.Lock()
	defer t.network.leave()
	l := t.links.Lookup(id)
	if l == nil {
		return transport.Match{}, errs.New(errs.Stale, "sim.match", "link %v has ended", id)
	}
	target, local := l.target(), t.regions.Lookup(here)
	if t.settings.Reaches == nil || t.settings.Untold || target == nil || local == nil {
		return transport.Match{}, nil
	}
	remote := target.regions.Lookup(l.imported(there).key)
	if remote == nil {
		return transport.Match{}, nil
	}
	var m transport.Match
	for i := range l.rails {
		if t.reaches(local, i) && target.reaches(remote, i) {
			m.Rails |= 1 << min(i, 63)
		}
	}
	if m.Rails == 0 {
		return m, errs.New(errs.NotHere, "sim.match", "no rail can use both regions")
	}
	if len(l.rails) <= 63 && m.Rails == 1<<len(l.rails)-1 {
		return transport.Match{}, nil
	}
	m.Why = fmt.Sprintf("%d simulated NICs have not taken a region", len(l.rails))
	return m, nil
}

func (t *Transport) reaches(r *region, rail int) bool {
	return t.settings.Reaches == nil || t.settings.Reaches(&r.Region, rail)
}

// unreached refuses a slice on a rail on which one of its regions cannot be used, nil if both can.
func (a *attempt) unreached(local, remote *region) *errs.Error {
	t, rail := a.rail.link.owner, a.rail.path.index
	side := errs.SideLocal
	if t.reaches(local, rail) {
		target := a.rail.link.target()
		if target == nil || target.reaches(remote, rail) {
			return nil
		}
		side = errs.SideRemote
	}
	return a.refusal(errs.NotHere, side, "the region cannot be used on this rail").WithScope(errs.ScopeRail, side)
}
