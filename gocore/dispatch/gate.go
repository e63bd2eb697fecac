package dispatch

import (
	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch/internal/intrusive"
	"github.com/tent-engine/tent/gocore/errs"
)

// A task may wait for something outside of the core, the work in a stream of a device, before it may begin:
//
//	NewGate --> Submit with TaskSpec.Gate: the task is pending, and in no queue --OpenGate--> it starts, or fails
//	                                        |
//	                                        +-- deadline, cancel, fence: it ends
//
// The caller looks at the world and opens the gate, since the core sees neither clock nor device. The task's deadline
// runs meanwhile; its stall clock, its latency and the patience of links begin when the gate opens.

// GateID is slot and generation, as a BatchID; 0 is no gate.
type GateID uint64

// gate holds the tasks that wait for it.
type gate struct {
	slot       uint32
	generation uint32
	alive      bool
	tasks      intrusive.List[task] // by task.queue
}

func (g *gate) id() GateID { return GateID(g.generation)<<32 | GateID(g.slot) }

// NewGate makes a gate that is closed. It goes when it is opened, or in Effects.Deserted. The caller bounds their
// number.
func (c *Core) NewGate() GateID {
	if len(c.vacantGates) == 0 {
		c.gates = append(c.gates, &gate{slot: uint32(len(c.gates))})
		c.vacantGates = append(c.vacantGates, uint32(len(c.gates)-1))
	}
	last := len(c.vacantGates) - 1
	g := c.gates[c.vacantGates[last]]
	c.vacantGates = c.vacantGates[:last]
	g.generation, g.alive = max(g.generation+1, 1), true
	return g.id()
}

// findGate returns a gate that is closed, nil for all others.
func (c *Core) findGate(id GateID) *gate {
	if id == 0 {
		return nil
	}
	if slot := int(uint32(id)); slot < len(c.gates) {
		if g := c.gates[slot]; g.alive && g.id() == id {
			return g
		}
	}
	return nil
}

// OpenGate starts the tasks of a gate, or fails them where there is a cause. A gate that has gone is left alone.
func (c *Core) OpenGate(id GateID, cause *errs.Error, now clock.Time) {
	if invariants {
		defer c.checkInvariants()
	}
	g := c.findGate(id)
	if g == nil {
		return
	}
	c.dropGate(g)
	for t := g.tasks.First(); t != nil; t = g.tasks.First() {
		t.unqueue()
		if cause != nil {
			c.endTask(t, Failed, cause, now)
			continue
		}
		t.submitted = now
		c.startTask(t, now)
	}
}

// holdTask makes a task wait for its gate.
func (c *Core) holdTask(t *task, g *gate) { g.tasks.PushBack(&t.queue.Node, t) }

// leaveGate notes that a task is about to end at its gate. The last one closes the gate for good.
func (c *Core) leaveGate(t *task) {
	g := c.findGate(t.spec.Gate)
	if g == nil || t.queue.List() != &g.tasks {
		return
	}
	t.queue.Unlink()
	if g.tasks.First() == nil {
		c.dropGate(g)
		c.out.Deserted = append(c.out.Deserted, g.id())
	}
}

func (c *Core) dropGate(g *gate) {
	g.alive = false
	c.vacantGates = append(c.vacantGates, g.slot)
}

// gated reports whether a task waits for a gate.
func (c *Core) gated(t *task) bool {
	g := c.findGate(t.spec.Gate)
	return g != nil && t.queue.List() == &g.tasks
}
