package dispatch

import (
	"slices"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
)

// A request by address means the memory that is registered there, in whichever region. Its plan leads to the region
// that the owner had described there; the owner may have closed that since, and registered the memory again. A task
// that such a region has refused as a whole has its address looked up once more:
//
//	refused, no byte acknowledged, no slice out --Effects.Astray--> in no queue --Relocate--> it starts there
//	                                                                    |
//	                                                                    +-- no region, deadline, cancel: it ends
//
// A request that names a region means that one alone, and a region that is closed in the midst of a task ends it: the
// bytes of before lie in memory that may be another by now. So does a region that was registered after the task was
// submitted: its owner has closed the one of before, and counts on nothing of before coming.

// Astray is a task that its remote region has refused.
type Astray struct {
	Batch BatchID
	Task  int
	Peer  uint32
	Spec  TaskSpec   // without its parts, which may change when the task ends
	Since clock.Time // it was submitted then
	Begin uint64     // of its bytes in the remote region, the lowest
	End   uint64
	Parts []uint64    // where each of its parts begins in the remote region
	Err   *errs.Error // of the refusal
}

// goesAstray makes a task that is about to fail wait for another region, if it may have one.
func (c *Core) goesAstray(t *task) bool {
	if !t.spec.ByAddress || t.verdict != Failed || t.acked > 0 || t.dirty ||
		t.failure.Code != errs.AddressNotRegistered || t.failure.Side == errs.SideLocal {
		return false
	}
	l := c.link(t.path().Across().Link)
	if l == nil || l.peer.gone != nil {
		return false
	}
	a := Astray{Batch: t.batch.id(), Task: int(t.index), Peer: l.spec.Peer, Spec: t.spec, Since: t.submitted,
		Err: t.failure}
	a.Begin, a.End = t.spec.remoteSpan()
	if parts := t.spec.Parts; parts != nil {
		a.Parts = slices.Clone(parts.RemoteAt)
		for i := range a.Parts {
			a.Parts[i] += t.spec.Remote
		}
		a.Spec.Parts = nil
	}
	c.out.Astray = append(c.out.Astray, a)
	t.unqueue()
	t.watch.Unlink()
	t.verdict, t.failure, t.cursor, t.missing = Initial, nil, 0, nil
	t.astray, t.spec.ByAddress = true, false // once
	return true
}

// Relocate starts a task in the regions at its address now, or fails it by the error. A task that has ended meanwhile
// is left alone.
func (c *Core) Relocate(a *Astray, homes []Home, err *errs.Error, now clock.Time) {
	if invariants {
		defer c.checkInvariants()
	}
	b := c.batches[a.Batch.Slot()]
	if !b.alive || b.id() != a.Batch { // also one that its user has freed goes on
		return
	}
	t := b.tasks[a.Task]
	if !t.astray {
		return
	}
	if err == nil {
		if err = t.settle(homes); err == nil {
			t.astray = false
			c.startTask(t, now)
			return
		}
	}
	c.endTask(t, Failed, err, now)
}
