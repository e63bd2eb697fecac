package dispatch

import (
	"slices"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/transport"
)

// A task with parts moves many equal ranges, the pages of a grid in one pair of regions, for the price of one task. Its
// bytes are counted as if the parts followed one another, so cursor, pieces and acknowledgements know nothing of parts;
// only the code that cuts or fills a slice looks where they lie. A task that fails finds out which parts have not
// arrived, from notes of the bytes that were given up; a task that goes well notes nothing.

// span is a range of a task's bytes.
type span struct{ offset, length uint64 }

// whole reports whether the length of a request with parts is theirs.
func (s *TaskSpec) whole() bool {
	n := uint64(len(s.Parts.LocalAt))
	return n > 0 && n <= 1<<31 && n == uint64(len(s.Parts.RemoteAt)) && s.Parts.Bytes > 0 &&
		s.Length/n == s.Parts.Bytes &&
		s.Length%n == 0
}

// requests is how many the user asked for: each part is one.
func (s *TaskSpec) requests() int {
	if s.Parts == nil {
		return 1
	}
	return len(s.Parts.LocalAt)
}

func requests(specs []TaskSpec) (n int) {
	for i := range specs {
		n += specs[i].requests()
	}
	return n
}

// partsFit reports whether all parts meet an alignment.
func (s *TaskSpec) partsFit(a uint64) bool {
	for i, local := range s.Parts.LocalAt {
		if (uint64(s.Local)+local)%a != 0 || (s.Remote+s.Parts.RemoteAt[i])%a != 0 {
			return false
		}
	}
	return s.Parts.Bytes%a == 0
}

// remoteSpan returns the bytes of the remote region between which the request lies.
func (s *TaskSpec) remoteSpan() (begin, end uint64) {
	if s.Parts == nil {
		return s.Remote, s.Remote + s.Length
	}
	at := s.Parts.RemoteAt
	return s.Remote + slices.Min(at), s.Remote + slices.Max(at) + s.Parts.Bytes
}

// localAt and remoteAt say where a byte of the task lies.
func (s *TaskSpec) localAt(offset uint64) uintptr {
	if s.Parts == nil {
		return s.Local + uintptr(offset)
	}
	return s.Local + uintptr(at(s.Parts, s.Parts.LocalAt, offset))
}

func (s *TaskSpec) remoteAt(offset uint64) uint64 {
	if s.Parts == nil {
		return s.Remote + offset
	}
	return s.Remote + at(s.Parts, s.Parts.RemoteAt, offset)
}

// at is where a byte of the parts lies, given where they begin.
func at(p *transport.Pieces, places []uint64, offset uint64) uint64 {
	i := offset / p.Bytes
	return places[i] + offset - i*p.Bytes
}

// freshBytes is how many of a task's fresh bytes the next slice on a rail has.
func (c *Core) freshBytes(t *task, r *railState, class int) uint64 {
	most := min(t.spec.Length-t.cursor, c.limit(r, class, t.path(), t))
	if t.spec.Parts == nil {
		return most
	}
	return c.stretch(t, t.path(), r, t.cursor, most)
}

// pieceBytes is how many bytes of a piece that was cut before the next slice on a rail has.
func (c *Core) pieceBytes(p *piece, r *railState, class int) uint64 {
	if p.staged {
		return p.length
	}
	most := min(p.length, c.limit(r, class, p.route, p.task))
	if p.task.spec.Parts == nil {
		return most
	}
	return c.stretch(p.task, p.route, r, p.offset, most)
}

// stretch is the number of bytes, up to most, that one slice on a rail may have at an offset of a task with parts:
// within one part or, over a transport that takes pieces, whole parts; over others, parts that follow one another on
// both sides.
func (c *Core) stretch(t *task, route *plan.Route, r *railState, offset, most uint64) uint64 {
	parts := t.spec.Parts
	first := offset / parts.Bytes
	begun := offset - first*parts.Bytes
	if begun > 0 || most <= parts.Bytes {
		return min(most, parts.Bytes-begun)
	}
	n, vectors := most/parts.Bytes, r.vectors
	if len(route.Hops) > 1 { // the piece takes all of them
		n, vectors = min(n, stagePartsMost), route.Vectors
	}
	if !vectors {
		n = t.spec.run(first, n, c.options.Merge)
	} else if route.PiecesMax > 0 {
		n = min(n, route.PiecesMax)
	}
	return n * parts.Bytes
}

// run is the number of parts from the first on, up to most, that are one range of memory here and there.
func (s *TaskSpec) run(first, most uint64, merge bool) uint64 {
	local, remote, size := s.Parts.LocalAt[first:first+most], s.Parts.RemoteAt[first:first+most], s.Parts.Bytes
	n := 1
	for merge && n < len(local) && local[n] == local[n-1]+size && remote[n] == remote[n-1]+size {
		n++
	}
	return uint64(n)
}

// miss notes bytes that will not have arrived when the task ends.
func (t *task) miss(offset, length uint64) {
	if t.spec.Parts != nil {
		t.missing = append(t.missing, span{offset, length})
	}
}

// sumUpMissing adds the bytes that were never cut to those that were given up, and puts them in order.
func (t *task) sumUpMissing() {
	if t.cursor < t.spec.Length {
		t.miss(t.cursor, t.spec.Length-t.cursor)
	}
	slices.SortFunc(t.missing, func(a, b span) int { return int(int64(a.offset) - int64(b.offset)) })
}

// eachMissing calls each with the missing parts of a task that has ended, in ascending order. A part is missing if it
// is not complete at the destination or may still change there; a task without parts is one.
func (t *task) eachMissing(each func(part int)) {
	if t.state == Completed {
		return
	}
	if t.spec.Parts == nil {
		each(0)
		return
	}
	if m := t.moving; m != nil {
		var parts []int
		t.eachGivenUp(func(part int) { parts = append(parts, part) })
		m.asSubmitted(parts, each)
		return
	}
	t.eachGivenUp(each)
}

// eachGivenUp calls each with the parts that have bytes which were given up, in the order in which the task has them.
func (t *task) eachGivenUp(each func(part int)) {
	next := 0
	for _, s := range t.missing {
		last := int((s.offset + s.length - 1) / t.spec.Parts.Bytes)
		for next = max(next, int(s.offset/t.spec.Parts.Bytes)); next <= last; next++ {
			each(next)
		}
	}
}

// Missing calls each with those parts of a task that has ended which are not complete at the destination, in ascending
// order. The parts of a task that has not ended are not looked at. Errors: Stale, InvalidEntry.
func (c *Core) Missing(id BatchID, i int, each func(part int)) *errs.Error {
	t, err := c.findTask(id, i)
	if err == nil && t.state.Terminal() {
		t.eachMissing(each)
	}
	return err
}
