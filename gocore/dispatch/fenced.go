package dispatch

import (
	"strconv"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/transport"
)

// RegionKey names a region as the peer of a link knows it.
type RegionKey struct {
	Link plan.LinkID
	Key  transport.RemoteKey
}

// Fenced ends the tasks that began before the owners of regions fenced them, over whichever link the news came: an
// epoch is the region's. Their slices would be refused one by one (transport.Epoch); a task that has none yet would
// wait for a rail only to be refused. It looks at the pending tasks once, however many regions there are: an owner may
// say this as often as its network allows.
func (c *Core) Fenced(news map[RegionKey]transport.Epoch, now clock.Time) {
	if invariants {
		defer c.checkInvariants()
	}
	fences := make(map[RegionKey]transport.Epoch, len(news))
	for at, epoch := range news {
		if l := c.link(at.Link); l != nil && at.Key != 0 {
			at.Key = l.current(at.Key)
			fences[at] = max(fences[at], epoch)
		}
	}
	if len(fences) == 0 {
		return
	}
	for _, b := range c.batches {
		for i := 0; b.pending > 0 && i < len(b.tasks); i++ { // the end of the last one may empty the table
			t := b.tasks[i]
			if !t.live() {
				continue
			}
			if at, is := c.fencedBy(t, fences); is {
				l := c.link(at.Link)
				err := transport.Fenced("transfer").WithPeer(l.peer.name, c.transportName(l.spec.Transport), "")
				c.endTask(t, Failed, nameRegion(err, t), now)
			}
		}
	}
}

// fencedBy returns the region of a task that was fenced after the task began. The task may have come with a key of
// before.
func (c *Core) fencedBy(t *task, fences map[RegionKey]transport.Epoch) (RegionKey, bool) {
	if at, is := c.endsIn(t.spec.Plan, t.spec.Epoch, fences); is || t.moving == nil {
		return at, is
	}
	for _, s := range t.moving.left {
		if at, is := c.endsIn(s.plan, t.spec.Epoch, fences); is {
			return at, true
		}
	}
	return RegionKey{}, false
}

// endsIn returns the region of a plan that has a fence behind an epoch.
func (c *Core) endsIn(p *plan.Plan, epoch transport.Epoch, fences map[RegionKey]transport.Epoch) (RegionKey, bool) {
	for i := range p.Routes {
		for _, h := range p.Routes[i].Hops {
			at := RegionKey{h.Link, h.RemoteKey}
			if l := c.link(h.Link); l != nil {
				at.Key = l.current(h.RemoteKey)
			}
			if epoch < fences[at] {
				return at, true
			}
		}
	}
	return RegionKey{}, false
}

// nameRegion adds the name of the task's remote region to an error about that. The peer chose the name, so it is quoted
// with its control characters.
func nameRegion(err *errs.Error, t *task) *errs.Error {
	name := t.spec.Plan.Region
	if name == "" || err.Scope != errs.ScopeSlice || err.Side != errs.SideRemote {
		return err
	}
	full := *err
	full.Cause = "region " + strconv.Quote(name) + ": " + full.Cause
	return &full
}
