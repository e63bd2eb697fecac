package dispatch

import (
	"slices"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/transport"
)

// The memory of a task with parts may have come back as several regions. The task then has a home in each: its parts
// are put in the order of their homes, and move one home after another. Its length ends with the parts of the home at
// hand until the last one begins, so that no slice has parts of two:
//
//	Relocate --> homes[0] --all of its bytes acknowledged, nothing out--> homes[1] --> ... --> COMPLETED
//	                |
//	                +-- verdict: the task has its whole length again, and ends without the homes that are left

// Home is a region that has bytes of a task which went astray.
type Home struct {
	Plan   *plan.Plan
	Remote uint64   // offset in the region at which the task begins there; 0 with parts
	Parts  []uint32 // indexes of the task's parts that are there; nil: the whole task is
	At     []uint64 // offset of each of them in the region
}

// moving is the record of a task with several homes, beside its specification.
type moving struct {
	given  *transport.Pieces // the parts as they were submitted
	order  []uint32          // the index in given of each part
	length uint64            // of the whole task
	left   []stay            // homes that were not begun
}

// stay is a home of a task, and the bytes of the task up to the end of those that are there.
type stay struct {
	plan *plan.Plan
	end  uint64
}

// settle gives a task homes, which have all of its parts together, each once.
func (t *task) settle(homes []Home) *errs.Error {
	moved := t.spec
	var m *moving
	if homes[0].Parts != nil {
		given := t.spec.Parts
		n := len(given.LocalAt)
		m = &moving{given: given, length: t.spec.Length, order: make([]uint32, 0, n)}
		parts := &transport.Pieces{LocalAt: make([]uint64, 0, n), RemoteAt: make([]uint64, 0, n), Bytes: given.Bytes}
		for i := range homes {
			h := &homes[i]
			m.order = append(m.order, h.Parts...)
			for _, part := range h.Parts {
				parts.LocalAt = append(parts.LocalAt, given.LocalAt[part])
			}
			parts.RemoteAt = append(parts.RemoteAt, h.At...)
			m.left = append(m.left, stay{h.Plan, uint64(len(m.order)) * given.Bytes})
		}
		moved.Parts = parts
	}
	for i := range homes {
		moved.Plan, moved.Remote = homes[i].Plan, homes[i].Remote
		if err := check(&moved); err != nil {
			return err
		}
	}
	moved.Plan = homes[0].Plan
	t.spec, t.moving, t.barred = moved, m, 0
	t.enter()
	return nil
}

// enter makes the next home of a task the one at hand.
func (t *task) enter() {
	if m := t.moving; m != nil {
		t.spec.Plan, t.spec.Length = m.left[0].plan, m.left[0].end
		m.left = m.left[1:]
	}
}

// goesOn begins the next home of a task that has moved everything of the one at hand. Any other end is that of the
// whole task.
func (c *Core) goesOn(t *task, now clock.Time) bool {
	m := t.moving
	if m == nil {
		return false
	}
	if len(m.left) == 0 || t.dirty || t.acked != t.spec.Length || t.verdict != Initial && t.verdict != Completed {
		t.spec.Length = m.length
		return false
	}
	t.watch.Unlink()
	t.verdict, t.failure, t.missing, t.barred, t.replaced = Initial, nil, nil, 0, 0
	t.enter()
	c.startTask(t, now)
	return true
}

// submittedSpec is the request with the parts and the length that it was submitted with.
func (t *task) submittedSpec() TaskSpec {
	s := t.spec
	if t.moving != nil {
		s.Parts, s.Length = t.moving.given, t.moving.length
	}
	return s
}

// asSubmitted calls each with the indexes that parts had when they were submitted, in ascending order.
func (m *moving) asSubmitted(parts []int, each func(part int)) {
	given := make([]int, len(parts))
	for i, part := range parts {
		given[i] = int(m.order[part])
	}
	slices.Sort(given)
	for _, part := range given {
		each(part)
	}
}
