package dispatch

import (
	"math"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch/internal/intrusive"
	"github.com/tent-engine/tent/gocore/qos"
	"github.com/tent-engine/tent/gocore/rail"
	"github.com/tent-engine/tent/gocore/transport"
)

// device is a local NIC: the rails, over all links, that share a wire at our end. One peer's LOW bytes on the wire are
// ahead of another peer's HIGH bytes, so order and the window of LOW are kept by NIC as well as by rail.
//
// Of a link with one rail and a NIC with one link nothing here costs anything but a few additions a slice.
type device struct {
	key     deviceKey
	rails   []*railState              // that have not ended, of all links
	records int                       // rails that it is kept for, ended ones too
	shared  bool                      // by several rails, which is when its own rate is measured
	waiting [ClassCount]int           // links with a rail here that have work of a class waiting
	flying  [ClassCount]int           // slices
	lately  [ClassCount]clock.Time    // when a class last began to wait, or had its last slice in flight come back
	calm    bool                      // nobody has wanted anything more urgent than LOW for a while
	behind  uint64                    // bytes sent behind the last slice that found the wire empty
	low     uint64                    // LOW bytes in flight
	stuck   uint64                    // of these, on rails that are silent or out: they are not on the wire
	meter   rail.Meter                // of the rate of all rails together
	held    intrusive.List[railState] // have been refused; the first is to be asked again first
	woken   *link                     // the last one that was released, until it has been asked

	transport  uint8                  // of the first rail: its settings count
	neighbours qos.Neighbours         // nil: off
	quota      qos.Quota              // how long the NIC takes for the bytes of all processes
	since      [ClassCount]clock.Time // when a class began to have work, after it had none
	claimed    [ClassCount]clock.Time // until when we have claimed slots
	told       uint64                 // bytes in flight that were published
	toldAt     clock.Time             // and when
	timer      timer                  // of the next publication
}

// deviceKey names a device. Transports share one where both give the system's name of it: a NIC has one wire for TCP
// and RDMA. Names of ends are a transport's own: shm and tcp may have equal ones.
type deviceKey struct {
	name string
	own  uint8 // the transport plus one, 0 for the system's name
}

// plug puts a rail that has come up on its device.
func (c *Core) plug(r *railState, now clock.Time) {
	key := keyOf(&r.info, r.link.spec.Transport)
	d := c.devices[key]
	if d == nil {
		d = &device{key: key, transport: r.link.spec.Transport}
		d.timer.Owner.device = d
		d.meter.Reset(r.info.Bandwidth)
		if c.options.Neighbours != nil {
			d.neighbours = c.options.Neighbours(d.transport, key.name)
		}
		c.devices[key] = d
	}
	r.device = d
	d.records++
	d.rails = append(d.rails, r)
	d.resize(now)
	c.countWaiting(r.link, -1)
	r.link.findDevices()
	c.countWaiting(r.link, 1)
	c.publish(d, now)
}

// keyOf is the NIC of a rail, or its local end where the transport does not know more.
func keyOf(info *transport.RailInfo, number uint8) deviceKey {
	if info.Device != "" {
		return deviceKey{name: info.Device}
	}
	return deviceKey{info.Local, number + 1}
}

// unplug takes a rail that has ended off its device. Its slices in flight are counted until they come back.
func (c *Core) unplug(r *railState, now clock.Time) {
	d := r.device
	for i, other := range d.rails {
		if other != r {
			continue
		}
		d.rails = append(d.rails[:i], d.rails[i+1:]...)
		d.resize(now)
		c.countWaiting(r.link, -1)
		r.link.findDevices()
		c.countWaiting(r.link, 1)
		r.held.Unlink()
		c.releaseHeld(d) // also when it was its turn
		c.publish(d, now)
		return
	}
}

// resize follows the number of rails. The meter begins at once where slices are on the wire: it has not seen their
// begin, and a sample of before would last until now.
func (d *device) resize(now clock.Time) {
	was := d.shared
	d.shared = len(d.rails) > 1
	if d.shared && !was && !d.idle() {
		d.meter.Begin(now)
	}
}

// findDevices lists the devices of a link's rails that are up.
func (l *link) findDevices() {
	l.devices = l.devices[:0]
	for _, r := range l.rails {
		if r == nil || r.ended() {
			continue
		}
		known := false
		for _, d := range l.devices {
			known = known || d == r.device
		}
		if !known {
			l.devices = append(l.devices, r.device)
		}
	}
}

// countWaiting adds a link's waiting classes to its devices, or subtracts them.
func (c *Core) countWaiting(l *link, n int) {
	for class, since := range l.waiting {
		if since == clock.Never {
			continue
		}
		for _, d := range l.devices {
			d.waiting[class] += n
		}
	}
}

// beginWaiting notes that a class, which had nothing to wait for, has something now.
func (c *Core) beginWaiting(l *link, class int, now clock.Time) {
	fresh := l.waiting[class] == clock.Never
	l.waiting[class] = now
	for _, d := range l.devices {
		if fresh {
			if d.neighbours != nil && d.waiting[class]+d.flying[class] == 0 &&
				now.Sub(d.lately[class]) >= c.slotsOf(d).Pause() {
				d.since[class] = now
			}
			d.waiting[class]++
		}
		d.lately[class] = now
		if d.neighbours != nil {
			c.publish(d, now)
		}
	}
}

// restWaiting notes which classes of a link have nothing to wait for any more, and lets those go on that they held
// back.
func (c *Core) restWaiting(l *link, now clock.Time) {
	for class := range l.queues {
		if l.waiting[class] == clock.Never || !l.queues[class].empty() {
			continue
		}
		l.waiting[class] = clock.Never
		c.slotCame(l, class, now)
		for _, d := range l.devices {
			if d.waiting[class]--; d.waiting[class] == 0 {
				c.releaseHeld(d)
			}
		}
	}
}

// launched and landed keep a device's books when a slice is handed out and when it comes back.
func (c *Core) launched(r *railState, a *attempt, now clock.Time) {
	d := r.device
	if a.Class == Low {
		r.low += a.Length
		d.low += a.Length
	}
	if a.alone = d.idle(); a.alone {
		d.behind = 0
	} else {
		d.behind += a.Length
	}
	if d.shared {
		if a.alone {
			d.meter.Begin(now)
		}
		if d.woken == r.link { // it had its turn, and is the last one when it wants more
			d.woken = nil
			c.releaseHeld(d)
		}
	}
	if d.neighbours != nil {
		a.active = d.bytes() + a.Length + d.neighbours.Others(now)
	}
	d.flying[a.Class]++
}

func (c *Core) landed(r *railState, a *attempt, now clock.Time) {
	d := r.device
	if d.flying[a.Class]--; d.flying[a.Class] == 0 {
		d.lately[a.Class] = now
	}
	if a.Class == Low {
		r.low -= a.Length
		d.low -= a.Length
		d.stuck = 0 // to be looked at again when it matters
		c.releaseHeld(d)
	}
}

// noteDelivery feeds the meters of a rail and of its NIC with a slice that has arrived.
func (d *device) noteDelivery(r *railState, a *attempt, n uint64, took time.Duration, now clock.Time) {
	if a.alone {
		r.meter.SampleRTT(n, d.behind, took, now)
		if d.shared {
			d.meter.SampleRTT(n, d.behind, took, now)
		}
	}
	if d.shared {
		d.meter.Carried(n, d.idle(), now)
	}
	if d.neighbours != nil {
		d.quota.Learn(a.active, d.rate(r), float64(took))
	}
}

// rate is that of the NIC, which one rail alone has for itself.
func (d *device) rate(r *railState) float64 {
	if d.shared {
		return d.meter.Rate()
	}
	return r.meter.Rate()
}

// bytes is the number of our bytes in flight on rails that are up.
func (d *device) bytes() (n uint64) {
	for _, r := range d.rails {
		n += r.bytes
	}
	return n
}

// noteCalm notes whether the NIC is calm. Slots that are not borrowed are never calm: bytes in flight at the end of one
// would use the next.
func (d *device) noteCalm(slots qos.Slots, now clock.Time) {
	d.calm = !d.urgentLately(Low, qos.CalmAfter, now)
	if d.neighbours == nil {
		return
	}
	d.calm = d.calm && (slots.Borrow || slots.Interval <= 0)
	for class := High; d.calm && class < Low; class++ {
		until := d.neighbours.Claimed(class, now)
		d.calm = until == 0 || now.Sub(until) >= qos.CalmAfter
	}
}

// drains reports whether LOW is to wait until the wire is empty, so that the delay can be measured again.
func (d *device) drains(r *railState, now clock.Time) bool {
	switch {
	case !d.shared:
		return r.slices > 0 && r.bytes == r.low && r.meter.ProbeRTT(now)
	case d.flying[High]+d.flying[Medium] > 0 || d.idle():
		return false
	}
	return d.meter.ProbeRTT(now)
}

func (d *device) idle() bool { return d.flying[High]+d.flying[Medium]+d.flying[Low] == 0 }

// holdBack queues a rail that was refused something until another event of its NIC makes it possible. It sets a time
// for another look in any case. A rail that has just been released and is refused again keeps its place.
func (c *Core) holdBack(r *railState, until clock.Time) {
	if d := r.device; !r.held.Linked() {
		if d.woken == r.link {
			d.held.PushFront(&r.held, r)
		} else {
			d.held.PushBack(&r.held, r)
		}
	}
	c.timers.SetSooner(&r.link.again, until)
}

// releaseHeld wakes the link that has been held back for longest. It wakes one at a time: the next one follows when
// that link was served (launched) or sent nothing (releaseNext). So a slice that comes back does not wake links that
// find nothing, and every peer has its share in turn.
func (c *Core) releaseHeld(d *device) {
	d.woken = nil
	r := d.held.First()
	if r == nil {
		return
	}
	r.held.Unlink()
	d.woken = r.link
	c.activate(r.link)
}

// holds reports whether a rail of the link is held back.
func (d *device) holds(l *link) bool {
	for r := d.held.First(); r != nil; r = r.held.After() {
		if r.link == l {
			return true
		}
	}
	return false
}

// lowWindow is the number of LOW bytes that may be in flight on the NIC, seen from one of its rails. A long path needs
// more.
func (d *device) lowWindow(r *railState) uint64 {
	delay := r.meter.Delay()
	if delay == 0 {
		delay = d.meter.Delay()
	}
	return qos.LowWindow(d.meter.WindowRate(), delay, d.calm && d.meter.Measured(), math.MaxUint64)
}

// lowRoom reports whether LOW bytes fit into the NIC's window and no other link has waited longer for room. Without the
// second condition small slices of one rail would take the room that a larger slice of another waits for. An idle NIC
// always takes one slice.
func (d *device) lowRoom(r *railState, want uint64) bool {
	low := d.low - d.stuck
	if !d.shared || low == 0 {
		return true
	}
	if d.woken != nil && d.woken != r.link || d.woken == nil && d.held.Len() > 0 && d.held.First().link != r.link {
		return false
	}
	return low+want <= d.lowWindow(r)
}

// findStuck finds the LOW bytes in flight that are not on the wire. Such bytes are with a peer that does not answer, or
// on a rail that is out. One peer that stands still must not stop LOW to all the others.
func (c *Core) findStuck(d *device, now clock.Time) {
	moving := uint64(0)
	for _, r := range d.rails {
		if r.low > 0 && r.healthy() && r.link.peer.presence != rail.Silent &&
			c.awake(now).Sub(r.heard) <= c.silenceOf(r) {
			moving += r.low
		}
	}
	d.stuck = d.low - moving
}
