package tcp

import (
	"errors"
	"slices"
	"sync/atomic"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
)

// A rail comes up with all lanes of class 0 and one for the other classes. The first large slice of these asks for the
// rest, so an idle peer costs three descriptors at each end instead of four. Until they are there, or for as long as
// they cannot be had, the one lane carries all.

// laneGroup is the lanes of a class group: it only grows.
type laneGroup struct {
	list atomic.Pointer[[]*initiatorLane]
}

func (g *laneGroup) lanes() []*initiatorLane {
	if list := g.list.Load(); list != nil {
		return *list
	}
	return nil
}

// add is for the link's goroutine.
func (g *laneGroup) add(l *initiatorLane) {
	list := append(slices.Clone(g.lanes()), l)
	g.list.Store(&list)
}

// lanesAtFirst is how many lanes of a group a rail comes up with.
func (s *Settings) lanesAtFirst(group int) int {
	if group == 0 {
		return s.Lanes
	}
	return 1
}

// askWider asks for the lanes that are not there, once in the life of a set.
func (s *laneSet) askWider() {
	if !s.wider.Load() && s.wider.CompareAndSwap(false, true) {
		s.rail.link.kick()
	}
}

// widen dials the lanes that were asked for. Only the link's goroutine calls it.
func (l *link) widen(now clock.Time) {
	for _, r := range *l.rails.Load() {
		set := r.set
		if set == nil || !set.wider.Load() || set.widened || r.extra != nil {
			continue
		}
		set.widened = true
		d := l.newDial(r, now)
		d.extra, d.every = true, 0
		d.greeting.generation = set.generation
		if l.t.spawn(func() {
			err := d.bringUp()
			if !l.runOnLink(func(now clock.Time) { l.widenEnded(r, set, d, err, now) }) {
				d.closeAll()
			}
		}) {
			r.extra = d
		}
	}
}

// widenEnded adds lanes to the set for which they were dialled. The set goes on without them if they could not be had.
func (l *link) widenEnded(r *rail, set *laneSet, d *dial, err error, now clock.Time) {
	r.extra = nil
	switch {
	case err != nil:
		l.t.host.Log().Debug("a rail keeps one lane for background", "rail", r.name(), "err", err)
	case r.set != set || !l.serves() || l.offer.attachment != d.greeting.attachment:
		d.closeAll()
	default:
		if err := l.join(set, d); err != nil {
			l.railDown(r, r.ours(errs.Wrap(errs.Internal, "tcp.dial", err)), now)
		}
	}
}

// join makes lanes of a dial's sockets and adds them to a set, also where one cannot be registered: the rail goes down
// then. Submit sees them when they are open.
func (l *link) join(set *laneSet, d *dial) (failed error) {
	var lanes []*initiatorLane
	for i, fd := range d.fds {
		group, _ := d.place(i)
		out, in := d.seen[i].protect(&d.secret, d.shield, byInitiator)
		lanes = append(lanes, set.newInitiatorLane(fd, d.ids[i], group, out, in))
	}
	l.mu.Lock()
	open := l.openFrames()
	for _, lane := range lanes {
		l.lanes[lane.id] = lane
		for _, f := range open { // ahead of any slice that may depend on them
			lane.post(f.header, f.records...)
		}
	}
	l.mu.Unlock()
	for _, lane := range lanes {
		failed = errors.Join(failed, lane.register())
	}
	for _, lane := range lanes {
		if failed == nil {
			lane.life.advance(eventOpened)
			lane.arm()
			lane.pump(submitBudget)
		}
		set.groups[lane.group].add(lane)
	}
	return failed
}

// count is how many sockets the dial makes.
func (d *dial) count() int {
	if d.extra {
		return d.t.settings.Lanes - d.t.settings.lanesAtFirst(1)
	}
	return d.t.settings.lanesAtFirst(0) + d.t.settings.lanesAtFirst(1)
}

// place returns the class group of the dial's i-th socket, and its number there.
func (d *dial) place(i int) (group, lane int) {
	if d.extra {
		return 1, d.t.settings.lanesAtFirst(1) + i
	}
	if first := d.t.settings.lanesAtFirst(0); i >= first {
		return 1, i - first
	}
	return 0, i
}
