package dispatch

import (
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/transport"
)

// Where memory and rails are: among rails of the same health, one that is far from the memory counts as slower than it
// is, by RailOptions.Penalties. So a rail on the NUMA node of the memory comes first. Helpers from another node take
// bytes that it has no room for, or would take many times as long for. A transport may know more: how far the NIC of
// each end is from the memory there. Then the farther end counts.
//
// With RailOptions.OwnNode (allow_cross_numa is false, or strict_local_numa true) they do not help: as long as the link
// has a usable rail on the memory's node, rails of other nodes leave its tasks alone, and take others that wait behind
// them. When it has none, by failure or because no NIC is there, every rail may, since nobody is to see FAILED while a
// path is left. An unknown node keeps nobody away: memory without a node goes everywhere, a rail without one takes
// everything.

// numaNodesMax is the number of NUMA nodes that are kept apart; a rail beyond counts as one without a known node.
const numaNodesMax = 64

// penaltiesUsual are upstream's factors.
var penaltiesUsual = [3]float64{1, 5, 10}

// lookBehindMost bounds how many tasks a rail leaves to other rails to find one that it may take.
const lookBehindMost = 64

// numaNode is the NUMA node plus one of the rail's local end, 0 if it is not known.
func (r *railState) numaNode() int {
	if n := r.info.Node; n >= 0 && n < numaNodesMax {
		return n + 1
	}
	return 0
}

// weighNodes updates the facts about nodes and named NICs that the choice uses, after ranks have changed.
func (l *link) weighNodes() {
	l.numa, l.nodes, l.nics = false, 0, 0
	first := -1
	for _, r := range l.rails {
		if r == nil || l.rank == rankNever || r.rank != l.rank {
			continue
		}
		node := r.numaNode()
		l.numa = l.numa || (first >= 0 && node != first)
		first = node
		l.nics |= r.nics
		if node > 0 {
			l.nodes |= 1 << (node - 1)
		}
	}
}

// selective reports whether some rails of the link may have to leave tasks to others.
func (l *link) selective() bool { return l.ownNode && l.numa || l.nics != 0 || l.keyed }

// apart reports whether the rail must leave a task to others. These are rails on which its keys work, rails of the NICs
// that its policy names, or rails on the node of its memory.
func (l *link) apart(r *railState, t *task, hop *plan.Hop) bool {
	nics, nodes := l.nics, l.nodes
	if l.keyed {
		if !r.reaches(t, hop) {
			return true
		}
		rank := l.rank
		if t.isKeyed(hop) {
			rank, nics, nodes = l.reached(t, hop)
		}
		if r.rank != rank {
			return true
		}
	}
	if devices := t.spec.Plan.Devices; nics&devices != 0 && r.nics&devices == 0 {
		return true
	}
	if !l.ownNode || !l.numa {
		return false
	}
	memory, own := t.spec.Plan.Node, r.numaNode()
	return memory > 0 && own > 0 && memory != own && memory <= numaNodesMax && nodes>>(memory-1)&1 != 0
}

// own is the next work of a class for the rail, behind the tasks that it must leave alone. Those that no rail may take
// now are set aside on the way: they would hide the others for as long as their rails are out.
func (l *link) own(q *classQueue, r *railState) (*piece, *task) {
	p, t := q.pieces.First(), q.next()
	for n := 0; p != nil && l.apart(r, p.task, p.way()); {
		if !l.served(p.task, p.way()) {
			q.setPieceAside(p)
			p, n = q.pieces.First(), 0
		} else if p = p.queue.After(); n == lookBehindMost {
			p = nil
		} else {
			n++
		}
	}
	for n := 0; t != nil && l.apart(r, t, t.begin()); {
		if !l.served(t, t.begin()) {
			q.setTaskAside(t)
			t, n = q.next(), 0
		} else if t = q.another(t); n == lookBehindMost {
			t = nil
		} else {
			n++
		}
	}
	return p, t
}

// distance is the factor by which the rail counts as slower for a task than it is, by where the memory lies. Each end
// has its distance, and the farther one counts: bytes pass both.
func (r *railState) distance(t *task, hop *plan.Hop) float64 {
	rank := r.localRank(t, hop)
	if len(hop.There) > 0 {
		rank = max(rank, r.rankIn(hop.There))
	}
	return r.link.options.Penalties[rank]
}

// localRank says how far the rail is from our memory. The transport may know; else a rail of another node than the
// memory's, or of a node that is not known, counts as far.
func (r *railState) localRank(t *task, hop *plan.Hop) uint8 {
	if len(hop.Near) > 0 {
		return r.rankIn(hop.Near)
	}
	if memory := t.spec.Plan.Node; !r.link.numa || memory == 0 || r.numaNode() == memory {
		return transport.Nearest
	}
	return transport.Far
}

// rankIn returns the rail's rank in a list that is not empty.
func (r *railState) rankIn(list []uint8) uint8 {
	return min(list[min(int(r.id.Index), len(list)-1)], transport.Farthest)
}
