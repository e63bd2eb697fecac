package engine

import (
	"slices"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/transport"
)

// Failed writes the indexes of requests that did not complete into out, as far as they fit, and returns how many there
// are. Indexes count requests, ranges and pages in the order of the calls; a page of several rows is one. When a sync
// has failed, every WRITE counts.
func (e *Engine) Failed(id dispatch.BatchID, out []uint64) int {
	e.mu.Lock()
	defer e.unlockAndDrain()
	b, err := e.lookup(id)
	if err != nil {
		return 0
	}
	sum, err := e.core.Summary(id)
	if err != nil {
		return 0
	}
	found := unfinished{out: out}
	for i := range sum.Tasks {
		spec, err := e.core.Task(id, i)
		if err != nil {
			return found.n
		}
		pages, rows := 1, 1
		found.list = nil
		if parts := spec.Parts; parts != nil {
			if found.list = placesOf(b.lists, parts); found.list != nil {
				rows = found.list.rows
			}
			pages = len(parts.LocalAt) / rows
		}
		if b.unsure && spec.Op == transport.Write { // there, but perhaps not after a crash
			for page := range pages {
				found.add(uint64(page))
			}
		} else {
			next := uint64(0)                          // the first page that was not named yet
			_ = e.core.Missing(id, i, func(part int) { // the task is there, as was just seen
				if page := uint64(part / rows); page >= next {
					next = page + 1
					found.add(page)
				}
			})
		}
		found.begin += uint64(pages)
	}
	if found.mixed {
		slices.Sort(out[:min(found.n, len(out))])
	}
	return found.n
}

// unfinished collects the indexes of requests that did not complete.
type unfinished struct {
	out   []uint64
	n     int
	begin uint64  // index of the task's first page
	list  *places // of the task
	mixed bool    // the order of the tasks is not that of the call
}

func (u *unfinished) add(page uint64) {
	index := u.begin + page
	if l := u.list; l != nil && len(l.stretches) > 0 {
		index = u.begin - uint64(l.before) + l.indexOf(int(page))
		u.mixed = true
	}
	if u.n < len(u.out) {
		u.out[u.n] = index
	}
	u.n++
}
