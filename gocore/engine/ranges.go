package engine

import (
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
)

// Ranges are N ranges of one local and one remote operand; offsets count from the begin of each. A size of 0 stands for
// all registered memory of that side: its offsets are addresses then, in any number of regions.
type Ranges struct {
	Local                              uintptr
	LocalSize                          uint64
	Remote                             Remote
	RemoteSize                         uint64
	N                                  int
	LocalOffsets, RemoteOffsets, Bytes Indexes
}

// Ranges starts a transfer of ranges, one task each, and returns its batch. n may be nil.
func (e *Engine) Ranges(t Terms, r *Ranges, n *Note) (dispatch.BatchID, error) {
	return e.transfer(t, n, func(c *Call) error { return c.AddRanges(r) })
}

// ranges appends one task for each range. The operands are bound once, unless a policy looks at lengths.
func (c *Call) ranges(r *Ranges) *errs.Error {
	if r.N < 1 {
		return errs.New(errs.InvalidArgument, "ranges", "there are no ranges to move")
	}
	for _, x := range []struct {
		what string
		of   *Indexes
	}{{"local_offsets", &r.LocalOffsets}, {"remote_offsets", &r.RemoteOffsets}, {"lengths", &r.Bytes}} {
		if err := x.of.check(x.what, r.N); err != nil {
			return err
		}
	}
	if err := c.bounds(r.N, 1); err != nil {
		return err
	}
	if r.LocalSize == 0 || r.RemoteSize == 0 {
		return c.rangesAnywhere(r)
	}
	own, err := c.engine.ownRegion(c.terms.Op, r.Local, r.LocalSize)
	if err != nil {
		return err
	}
	first, _ := r.Bytes.at(0)
	base, err := c.reach(&c.terms, own, r.Remote, r.RemoteSize, first)
	if err != nil {
		if c.isScattered(r.Remote, r.RemoteSize) {
			return c.rangesAnywhere(r)
		}
		return err
	}
	for i := range r.N {
		from, ok1 := r.LocalOffsets.at(i)
		to, ok2 := r.RemoteOffsets.at(i)
		n, ok3 := r.Bytes.at(i)
		switch {
		case !ok1 || !ok2 || !ok3 || n == 0:
			return errs.New(errs.InvalidArgument, "ranges", "range [%d] has offsets %d and %d and the length %d: "+
				"offsets must not be negative and lengths at least 1", i, int64(from), int64(to), int64(n))
		case !mem.Contains(r.LocalSize, from, n):
			return errs.New(errs.InvalidArgument, "ranges",
				"range [%d]: %d bytes at offset %d leave the local range of %d bytes",
				i, n, from, r.LocalSize)
		case !mem.Contains(r.RemoteSize, to, n):
			return errs.New(errs.InvalidArgument, "ranges",
				"range [%d]: %d bytes at offset %d leave the remote range of %d bytes",
				i, n, to, r.RemoteSize)
		}
		if i > 0 && c.engine.policies.Sized() {
			if err := c.bind(&c.terms, c.peer, own, c.remote, n); err != nil {
				return err
			}
		}
		s := c.task(&c.terms)
		s.Local, s.Remote, s.Length = r.Local+uintptr(from), base+to, n
	}
	return nil
}
