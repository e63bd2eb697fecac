package dispatch

import (
	"time"

	"github.com/tent-engine/tent/gocore/clock"
)

// A class may be held back although its rail has room. HIGH never is.
//
//	order    a more urgent class waits on another link that could use the same NIC; ageing grants turns against it
//	filter   the NICs of a link take turns in refusing lower classes
//	slots    processes of the host take turns
//
// Each refusal sets a time for another look, so nothing waits for an event that never comes.

// admits reports whether a class may begin a slice on a rail now, and whether that is a turn granted by ageing.
func (c *Core) admits(l *link, r *railState, class int, aged bool, now clock.Time) (ok, turn bool) {
	d := r.device
	if !aged && d.shared && d.outranked(l, class) {
		if due := r.turns.Due(class, l.waiting[class], l.options.Ageing, l.ageingDivisor(class)); now < due {
			c.holdBack(r, due)
			return false, false
		}
		aged = true
	}
	if l.several && !c.filtered(l, r, class, now) {
		return false, false
	}
	if d.neighbours != nil && !c.inSlot(l, r, class, now) {
		return false, false
	}
	return true, aged
}

// outranked reports whether something more urgent than the class waits on another link that could send it here.
func (d *device) outranked(l *link, class int) bool {
	n := d.waiting[High]
	if class == Low {
		n += d.waiting[Medium]
	}
	if n == 0 { // mostly
		return false
	}
	for _, r := range d.rails {
		other := r.link
		if other == l || r.rank != other.rank || r.rank == rankNever || other.peer.held() {
			continue
		}
		for k := range class {
			if !other.queues[k].empty() {
				return true
			}
		}
	}
	return false
}

// filtered applies the filter of NICs and returns false while the rail refuses the class. Positions are those among the
// rails that the link would use now, so a rail that is out leaves no class without one.
func (c *Core) filtered(l *link, r *railState, class int, now clock.Time) bool {
	filter := l.options.Filter
	if filter.Interval <= 0 || !r.device.urgentLately(class, l.options.Ageing, now) {
		return true
	}
	position, n := 0, 0
	for _, other := range l.rails {
		if other == nil || other.rank != l.rank {
			continue
		}
		if other == r {
			position = n
		}
		n++
	}
	ok, again := filter.May(class, position, n, now)
	if !ok {
		c.timers.SetSooner(&l.again, again)
	}
	return ok
}

// urgentLately reports whether a class above this one has work on the NIC or had some within the time.
func (d *device) urgentLately(class int, within time.Duration, now clock.Time) bool {
	for k := range class {
		if d.waiting[k]+d.flying[k] > 0 || (d.lately[k] != 0 && now.Sub(d.lately[k]) < within) {
			return true
		}
	}
	return false
}

// inSlot asks whether this is a slot of time in which the class may begin, and counts how long it waits for one.
func (c *Core) inSlot(l *link, r *railState, class int, now clock.Time) bool {
	ok, again := l.options.Slots.May(class, r.device.neighbours, now)
	if ok {
		c.slotCame(l, class, now)
		return true
	}
	if l.refused[class] == 0 {
		l.refused[class] = now
		c.counters[l.spec.Transport][class].SlotWaits++
	}
	c.timers.SetSooner(&l.again, again)
	return false
}

// slotCame ends a wait for a slot.
func (c *Core) slotCame(l *link, class int, now clock.Time) {
	if since := l.refused[class]; since != 0 {
		l.refused[class] = 0
		c.counters[l.spec.Transport][class].SlotWait.addValue(micros(now.Sub(since)))
	}
}

// ageingDivisor divides the promotion time-out: by 1, or with PerEntry by the number of requests and pieces that wait.
func (l *link) ageingDivisor(class int) int {
	if !l.options.PerEntry {
		return 1
	}
	q := &l.queues[class]
	return max(q.pieces.Len()+q.tasks.Len()+len(q.urgent), 1)
}
