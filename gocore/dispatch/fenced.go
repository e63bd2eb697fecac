package dispatch

import (
	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/transport"
)

// Fenced ends the tasks that began before the owner of a region fenced it, over whichever link the news came: the epoch
// is the region's. Their slices would be refused one by one (transport.Epoch); a task that has none yet would wait for
// a rail only to be refused.
func (c *Core) Fenced(link plan.LinkID, key transport.RemoteKey, epoch transport.Epoch, now clock.Time) {
	if invariants {
		defer c.checkInvariants()
	}
	l := c.link(link)
	if l == nil || key == 0 {
		return
	}
	key = l.current(key)
	for _, b := range c.batches {
		for i := 0; i < len(b.tasks); i++ { // the end of the last pending one may empty the table
			if t := b.tasks[i]; t.live() && t.spec.Epoch < epoch && t.spec.Plan.Reaches(link, key) {
				err := transport.Fenced("transfer").WithPeer(l.peer.name, c.transportName(l.spec.Transport), "")
				c.endTask(t, Failed, nameRegion(err, t), now)
			}
		}
	}
}

// nameRegion adds the name of the task's remote region to an error about that.
func nameRegion(err *errs.Error, t *task) *errs.Error {
	name := t.spec.Plan.Region
	if name == "" || err.Scope != errs.ScopeSlice || err.Side != errs.SideRemote {
		return err
	}
	full := *err
	full.Cause = "region \"" + name + "\": " + full.Cause
	return &full
}
