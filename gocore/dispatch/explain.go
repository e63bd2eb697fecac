package dispatch

import (
	"fmt"
	"strings"

	"github.com/tent-engine/tent/gocore/plan"
)

// Explain describes a link in words for people: its rails with windows and rates, its queues, and what holds it up.
func (c *Core) Explain(id plan.LinkID) string {
	l := c.link(id)
	if l == nil {
		return "closed"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s to %s: ", c.name(l.spec.Transport), l.peer.name)
	switch {
	case l.peer.gone != nil:
		fmt.Fprintf(&b, "the peer has ended: %v", l.peer.gone)
	case l.peer.open > 0:
		fmt.Fprintf(&b, "waits for the peer to confirm the withdrawal of %d slices", l.peer.open)
	case l.up > 0:
		fmt.Fprintf(&b, "%d of %d rails up", l.up, len(l.rails))
	case l.dialing:
		b.WriteString("no rail yet")
	case l.cause != nil:
		fmt.Fprintf(&b, "down: %v", l.cause)
	default:
		b.WriteString("down")
	}
	fmt.Fprintf(&b, "; tasks waiting: %d high, %d medium, %d low", l.queues[High].depth, l.queues[Medium].depth, l.queues[Low].depth)
	for _, r := range l.rails {
		if r != nil {
			c.explainRail(&b, r)
		}
	}
	return b.String()
}

func (c *Core) explainRail(b *strings.Builder, r *railState) {
	low, _ := r.window(Low)
	fmt.Fprintf(b, "\n  rail %d.%d %s: %s, health %d; %d of %d bytes and %d of %d slices in flight, LOW at most %d bytes; %.1f MB/s, delay %v",
		r.id.Index, r.id.Generation, r.name(), c.railState(r), r.health.Value(), r.bytes, r.bytesMax, r.slices, r.slicesMax, low,
		r.meter.Rate()/1e6, r.meter.Delay())
	if r.info.Device != "" {
		fmt.Fprintf(b, "; on %s", r.info.Device)
	}
	if node := r.numaNode(); node > 0 {
		fmt.Fprintf(b, "; NUMA node %d", node-1)
	}
	if n := r.monitor.Failures(); n > 0 {
		fmt.Fprintf(b, ", %d recent failures", n)
	}
}

// railState is the state with how long it lasts.
func (c *Core) railState(r *railState) string {
	state := c.stateOf(r)
	if state == "paused" {
		return fmt.Sprintf("paused for %v", r.monitor.Until().Sub(c.last))
	}
	return state
}

func (c *Core) stateOf(r *railState) string {
	switch {
	case !r.up:
		return "down"
	case r.fenced:
		return "condemned"
	case r.monitor.Paused(c.last):
		return "paused"
	case r.suspected:
		return "suspected"
	case r.full:
		return "full"
	}
	return "up"
}
