// Package plan decides how a request may travel: by which policy, over which routes of one or more hops, and why not
// over others. It is pure; the engine calls it once per pair of regions and policy, and keeps the result.
package plan

import (
	"slices"

	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// LinkID names a link of the core, one transport to one peer: generation<<32 | slot, 0 is none. Slots are reused, so
// tables that mirror the core's links are indexed by Slot; a stale id names no link.
type LinkID uint64

// Slot is the index of the link in the core's table and in tables that mirror it.
func (id LinkID) Slot() uint32 { return uint32(id) }

// StageID is the core's number of a pool of stage buffers. 0 means the request's own memory.
type StageID uint32

// Hop is one movement of a route. A route with one hop goes straight from the local to the remote region. A route with
// several has stage buffers between its hops; a hop that the peer's engine must carry out goes over a link of its own
// with requests to that engine as slices, so the core treats it like any other.
type Hop struct {
	Link      LinkID
	Op        transport.Op
	LocalKey  transport.LocalKey // of the request's region, or of the stage on that side
	RemoteKey transport.RemoteKey
	Local     StageID // where the hop's local bytes are
	Remote    StageID
	Rails     uint64  // on which both keys work, as transport.Match says; 0: all
	Why       string  // for people: why other rails are left out
	Near      []uint8 // how near each rail is, as transport.Match says; nil: by NUMA nodes
	There     []uint8 // how near its far end is to the peer's memory; nil: not known
}

// match notes on which rails the keys of the hop work.
func (h *Hop) match(m transport.Match) {
	h.Rails, h.Near, h.There, h.Why = m.Rails, m.Near, m.There, m.Why
}

// Route is one way; Plan.Routes[0] is tried first.
type Route struct {
	Transport uint8 // index of the transport that carries the crossing hop, for names and metrics
	Crossing  uint8 // index of the hop that leads to the peer; the others stay in this engine
	Vectors   bool  // the transport of each hop understands Slice.Pieces
	Bounces   bool  // its transport copies through memory of the host itself
	Hops      []Hop
	SliceMax  uint64 // least of its hops' limits
	SliceBest uint64
	SliceLow  uint64 // the most of a LOW slice where something more urgent may come; 0: as others
	Alignment uint64
	PiecesMax uint64 // in one slice; 0: any number
}

// Across is the hop that leads to the peer.
func (r *Route) Across() *Hop { return &r.Hops[r.Crossing] }

// Rejected is a way that is not taken, with the reason in words for people.
type Rejected struct {
	Transport string
	Reason    string
}

// Plan is immutable and shared by all tasks between the same two regions.
type Plan struct {
	Routes   []Route
	Rejected []Rejected
	Node     int    // NUMA node of the local memory plus one, 0 if it is not known
	Region   string // name of the remote region, "" if it has none
	Policy   string // label of the policy that chose the routes, "" for none
	Devices  uint64 // local NICs that may carry the request, by bits that config.Policy.DeviceMask explains; 0: all

	Own  mem.RegionID // the local region; the engine fills in this and the next
	Home Home         // the remote region
}

// Home is the remote region of a plan, as its owner has described it.
type Home struct {
	ID   mem.RegionID
	Addr uint64 // in its owner; 0 for a lease and for a file
}

// Reaches reports whether a route ends in the region that has a key on a link.
func (p *Plan) Reaches(link LinkID, key transport.RemoteKey) bool {
	for i := range p.Routes {
		for j := range p.Routes[i].Hops {
			if h := &p.Routes[i].Hops[j]; h.Link == link && h.RemoteKey == key {
				return true
			}
		}
	}
	return false
}

// Matches says on which rails of a link a region's key works, by the local key beside it. Where that is not known, the
// rails say it: one that cannot use the two refuses their slices as errs.NotHere.
type Matches map[transport.LocalKey]transport.Match

// Rekeyed returns the plan with another key for the region that has key old on a link. The routes keep their order; the
// rails are those of the new key.
func (p *Plan) Rekeyed(link LinkID, old, key transport.RemoteKey, matches Matches) *Plan {
	next := *p
	next.Routes = slices.Clone(p.Routes)
	for i := range next.Routes {
		r := &next.Routes[i]
		r.Hops = slices.Clone(r.Hops)
		for j := range r.Hops {
			if h := &r.Hops[j]; h.Link == link && h.RemoteKey == old {
				h.RemoteKey = key
				h.match(matches[h.LocalKey])
			}
		}
	}
	return &next
}

// End is one side of a request as far as planning goes.
type End struct {
	Kind     mem.Kind
	Location mem.Location
	Node     int // NUMA node plus one, 0 if it is not known; read of the local end
}

// Candidate is a transport that could carry a request between two ends, with the facts about it here and there.
type Candidate struct {
	Transport uint8
	Info      *transport.Info
	Link      LinkID              // 0: not attached
	LocalKey  transport.LocalKey  // 0: the local region is not registered with it
	NotHere   string              // and why not, as far as that is known
	RemoteKey transport.RemoteKey // 0: the peer does not offer the remote region over it
	Match     transport.Match     // where the keys work; the zero value: on every rail
	SameHost  bool                // the peer has our machine id
	Self      bool
	Disabled  string // why it is not there at all: a setting, missing hardware
}
