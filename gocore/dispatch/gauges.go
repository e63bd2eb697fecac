package dispatch

import (
	"github.com/tent-engine/tent/gocore/dispatch/internal/intrusive"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/plan"
)

// railTotals are counted for the life of the core, by transport.
type railTotals struct {
	errors    uint64 // failures that counted against a rail
	condemned uint64 // rails given up for a while
	slow      uint64 // times that a rail became slow
	strays    uint64 // completions of slices that were not out
}

// Gauges are the present state of a transport, and the history of its rails in numbers.
type Gauges struct {
	Queued      [ClassCount]int    // tasks that wait for a rail
	QueuedBytes [ClassCount]uint64 // bytes that do
	RailsUp     int
	RailsDown   int
	RailErrors  uint64
	Condemned   uint64
	SlowPaths   uint64
	Strays      uint64 // completions of slices that were not outstanding
	InFlight    uint64 // bytes handed out and not completed
}

// Gauges sums a transport's links. Its cost is that of the links, so it is for people and scrapes.
func (c *Core) Gauges(transport uint8) (g Gauges) {
	for l := range c.linksOf(transport) {
		for class := range g.Queued {
			q := &l.queues[class]
			g.Queued[class] += q.depth
			g.QueuedBytes[class] += q.bytes
			for _, pieces := range [...]*intrusive.List[piece]{&q.aside.pieces, &q.pieces} {
				for p := pieces.First(); p != nil; p = p.queue.After() { // no more than windows and stages hold
					g.QueuedBytes[class] += p.length
				}
			}
		}
		for _, r := range l.rails {
			if r == nil {
				continue
			}
			g.InFlight += r.bytes
			switch {
			case l.peer.gone != nil: // its peer is out, and not the rail
			case r.healthy():
				g.RailsUp++
			default:
				g.RailsDown++
			}
		}
	}
	if int(transport) < len(c.totals) {
		totals := c.totals[transport]
		g.RailErrors, g.Condemned, g.SlowPaths = totals.errors, totals.condemned, totals.slow
		g.Strays = totals.strays
	}
	return g
}

// totalsOf are those of a rail's transport.
func (c *Core) totalsOf(r *railState) *railTotals { return c.totalsFor(r.link.spec.Transport) }

func (c *Core) totalsFor(transport uint8) *railTotals {
	for int(transport) >= len(c.totals) {
		c.totals = append(c.totals, railTotals{})
	}
	return &c.totals[transport]
}

// RailView is one rail as metrics and people see it.
type RailView struct {
	Transport     uint8
	Peer          string
	Local, Remote string  // its ends
	State         string  // "up", "full", "suspected", "paused", "condemned" or "down"
	Health        int     // 0 to 1000
	Rate          float64 // bytes/s, as estimated
	Carried       uint64  // bytes that it has delivered, over all generations
	Errors        uint64  // failures that counted against it
	InFlight      uint64  // bytes handed out and not completed
	Slow          bool    // it carries less than half of its nominal or usual rate
}

// Rails lists every rail that there has been on a link that is there, to a peer that has not gone.
func (c *Core) Rails() (list []RailView) {
	for _, l := range c.links {
		if l == nil || l.peer.gone != nil {
			continue
		}
		for _, r := range l.rails {
			if r != nil {
				list = append(list, RailView{Transport: l.spec.Transport, Peer: l.peer.name, Local: r.info.Local,
					Remote: r.info.Remote, State: r.stateName(), Health: r.health.Value(), Rate: r.meter.Rate(),
					Carried: r.carried, Errors: r.errors, InFlight: r.bytes, Slow: r.pace.Slow()})
			}
		}
	}
	return list
}

// LinkView is a link as engine.explain shows it.
type LinkView struct {
	State string      // in words, with the reason why it waits
	Rails []string    // "local -> remote: state"
	Down  *errs.Error // why there is no rail; nil if there is one, or one may be coming up
}

// Link describes a link; a removed one is "closed".
func (c *Core) Link(id plan.LinkID) LinkView {
	view := LinkView{State: c.Explain(id)}
	if l := c.link(id); l != nil {
		if l.up == 0 && !l.dialing {
			view.Down = l.cause
		}
		for _, r := range l.rails {
			if r != nil {
				view.Rails = append(view.Rails, r.name()+": "+c.railWords(r))
			}
		}
	}
	return view
}

// Up reports whether a link has a rail that is up.
func (c *Core) Up(id plan.LinkID) bool {
	l := c.link(id)
	return l != nil && l.up > 0
}

// Batches is the number of batches that are alive.
func (c *Core) Batches() int { return len(c.batches) - len(c.vacant) }
