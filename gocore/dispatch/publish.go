package dispatch

import (
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/qos"
)

// This process publishes two facts about a NIC to the others of the host (qos.Neighbours): until when it claims slots
// for a class, and how many bytes it has in flight. LOW is not published: nobody has to leave it anything.

const (
	// heartbeat is the longest pause before bytes in flight are published again, also where they have not changed.
	heartbeat = 50 * time.Millisecond
	// shareInterval paces the publication of bytes where there are no slots: at 10 Gbit/s an eighth of it is one large
	// slice.
	shareInterval = 2 * time.Millisecond
)

// publish updates the view of the others: claims of which half has passed, and bytes that were told a while ago. It
// arms the timer for the next time: work that lasts keeps its claim, whether or not anything happens.
func (c *Core) publish(d *device, now clock.Time) {
	n := d.neighbours
	if n == nil {
		return
	}
	slots := c.slotsOf(d)
	fresh := min(slots.Interval/8, heartbeat) // others forget bytes that are not said again for some heartbeats
	next := heartbeat
	for class := range Low {
		if d.waiting[class]+d.flying[class] == 0 {
			continue
		}
		hold := slots.Hold(now.Sub(d.since[class]))
		if d.claimed[class].Sub(now) <= hold/2 {
			d.claimed[class] = now.Add(hold)
			n.Claim(class, d.claimed[class], now)
		}
		next = min(next, d.claimed[class].Sub(now)-hold/2)
	}
	bytes := d.bytes()
	switch {
	case (bytes == 0) != (d.told == 0), bytes > 0 && now.Sub(d.toldAt) >= fresh:
		d.told, d.toldAt = bytes, now
		n.Carries(bytes, now)
	case bytes != d.told:
		next = min(next, slots.Interval/2)
	}
	if bytes > 0 || next < heartbeat {
		c.timers.SetSooner(&d.timer, now.Add(next))
	}
}

// slotsOf returns the slots of a NIC, and some for the pace of publications where there are none.
func (c *Core) slotsOf(d *device) qos.Slots {
	slots := c.optionsOf(d.transport).Slots
	if slots.Interval <= 0 {
		slots.Interval = shareInterval
	}
	return slots
}

// predictFinish predicts in ns when want more bytes would be there over a rail. Where the others of the host are known,
// the NIC may take longer than the rail: their bytes in flight are ahead of ours, too.
func (r *railState) predictFinish(want uint64, now clock.Time) float64 {
	byRail := r.meter.Finish(r.bytes+want, r.slices == 0, now)
	d := r.device
	if d.neighbours == nil {
		return byRail
	}
	return max(byRail, d.quota.Predict(d.bytes()+want+d.neighbours.Others(now), d.rate(r)))
}
