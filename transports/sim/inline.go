package sim

import "github.com/tent-engine/tent/gocore/transport"

// inliner is a transport that carries out slices on the caller's thread.
type inliner struct{ *Transport }

var _ transport.Inliner = (*inliner)(nil)

// Inline copies at once where nothing is between the two ends that could go wrong or take time. There is no fault in
// the shape, no cut, and nobody is stopped. Errors are left to the usual way.
func (t *inliner) Inline(list []*transport.Slice) bool {
	n := t.network
	n.mu.Lock()
	defer n.leave()
	if !n.inline || len(list) == 0 {
		return false
	}
	r := t.rail(list[0].Rail)
	if r == nil || r.path.cut || r.path.deaf != "" || r.path.shape.faulty() || t.stopped {
		return false
	}
	if to := r.link.target(); to == nil || to.stopped {
		return false
	}
	for _, s := range list {
		if !r.inline(s) {
			return false
		}
	}
	return true
}

// inline carries out one slice if both ends allow it.
func (r *rail) inline(s *transport.Slice) bool {
	a := attempt{slice: s, rail: r}
	local, remote, err := a.ends()
	if err != nil {
		return false
	}
	if a.check(local, remote) != nil {
		return false
	}
	return a.copy(local, remote) == nil
}

// faulty reports whether slices may meet a fault.
func (s *Shape) faulty() bool {
	return s.Loss > 0 || s.LostAck > 0 || s.Duplicate > 0 || s.Late > 0 || s.Refuse > 0
}
