package dispatch

import (
	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/transport"
)

// straysMost is the number of stray completions with which a transport loses its links. The first of two completions
// may have been the wrong one: its bytes may still have been on their way.
const straysMost = 3

// stray notes a completion of a slice that is not out: the transport completed it a second time, or never had it. It
// ends nothing. From straysMost on, each takes the transport's links down, so tasks go another way.
func (c *Core) stray(from uint8, end *transport.Completion, now clock.Time) {
	totals := c.totalsFor(from)
	totals.strays++
	name := c.transportName(from)
	cause := errs.New(errs.Internal, "complete", "transport %q completed slice %d, which was not outstanding", name,
		end.Id).WithScope(errs.ScopeTransport, errs.SideLocal)
	c.emit(event.Event{Kind: event.StrayCompletion, Time: now, Transport: name, N: int(totals.strays), M: straysMost,
		Err: cause})
	if totals.strays < straysMost {
		return
	}
	for l := range c.linksOf(from) {
		if l.up > 0 {
			c.DropLink(l.id, cause, now)
		}
	}
}
