package dispatch

import (
	"fmt"
	"strings"

	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/rail"
)

// Explain describes a link in words for people: its rails with windows and rates, its queues, and the reason why it
// waits.
func (c *Core) Explain(id plan.LinkID) string {
	l := c.link(id)
	if l == nil {
		return "closed"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s to %s: ", c.transportName(l.spec.Transport), l.peer.name)
	switch {
	case l.peer.gone != nil:
		fmt.Fprintf(&b, "the peer has ended: %v", l.peer.gone)
	case l.peer.held():
		fmt.Fprintf(&b, "waits for the peer to confirm the withdrawal of %d slices", l.peer.engine.open)
	case l.up > 0:
		fmt.Fprintf(&b, "%d of %d rails up", l.up, len(l.rails))
	case l.dialing:
		b.WriteString("no rail yet")
	case l.cause != nil:
		fmt.Fprintf(&b, "down: %v", l.cause)
	default:
		b.WriteString("down")
	}
	fmt.Fprintf(&b, "; tasks waiting: %d high, %d medium, %d low", l.queues[High].depth, l.queues[Medium].depth,
		l.queues[Low].depth)
	for _, r := range l.rails {
		if r != nil {
			c.explainRail(&b, r)
		}
	}
	return b.String()
}

func (c *Core) explainRail(b *strings.Builder, r *railState) {
	low, _ := r.window(Low)
	fmt.Fprintf(b, "\n  rail %d.%d %s: %s, health %d; %d of %d bytes and %d of %d slices in flight, ",
		r.id.Index, r.id.Generation, r.name(), c.railWords(r), r.health.Value(), r.bytes, r.bytesMax, r.slices,
		r.slicesMax)
	fmt.Fprintf(b, "LOW at most %d bytes; %.1f MB/s, delay %v", low, r.meter.Rate()/1e6, r.meter.Delay())
	if r.info.Device != "" {
		fmt.Fprintf(b, "; on %s", r.info.Device)
	}
	if node := r.numaNode(); node > 0 {
		fmt.Fprintf(b, "; NUMA node %d", node-1)
	}
	if r.recalled > 0 {
		fmt.Fprintf(b, "; the transport has not taken the withdrawal of %d slices", r.recalled)
	}
	if n := r.life.Breaker.Failures(); n > 0 {
		fmt.Fprintf(b, ", %d recent failures", n)
	}
}

// railWords is the state of a rail for people, with how long a pause still lasts.
func (c *Core) railWords(r *railState) string {
	if r.life.State() == rail.Paused {
		return fmt.Sprintf("paused for %v", r.life.Breaker.Until().Sub(c.last))
	}
	return r.stateName()
}

// stateName is the state of a rail as metrics have it.
func (r *railState) stateName() string {
	switch {
	case r.flooded():
		return "full"
	case r.life.State() == rail.Probation:
		return rail.Up.String()
	}
	return r.life.State().String()
}

// flooded reports whether nothing but backpressure keeps the rail from carrying.
func (r *railState) flooded() bool { return r.full && r.healthy() }
