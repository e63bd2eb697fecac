package tcp

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// rail is one (local address, remote address) path of a link. Its fields belong to the link's goroutine, except live.
//
//	down ──dial──▶ dialling ──all lanes welcomed──▶ up ──a lane broke, Fence, Detach──▶ down (redial, see redial.go)
//	                                                 up ──first large slice of the background──▶ up, wider (widen.go)
//	                                                 up ──our own end lost its link, the peer says that of its──▶ down
type rail struct {
	link       *link
	index      uint16
	local      netip.Addr
	remote     netip.AddrPort
	alternate  bool                    // no part of the matching
	routed     bool                    // local is where the route to remote starts, now
	live       atomic.Pointer[laneSet] // the set that Submit uses
	set        *laneSet                // nil while the rail is down
	generation uint32
	dial       *dial         // the one under way
	extra      *dial         // for lanes that the set lacks, see widen.go
	due        clock.Time    // of the next dial
	tries      int           // in a row, without success
	flaps      int           // generations in a row that were short
	trip       time.Duration // of the last dial that succeeded, 0 before
	since      clock.Time    // of the last change between up and down
	away       bool          // our end has lost its interface or its address
	lastErr    error
	probes     []probe // that wait for dial
}

func (r *rail) name() string { return fmt.Sprintf("%v-%v", r.local, r.remote) }

// ours makes an error one of the rail that comes from our side.
func (r *rail) ours(err *errs.Error) *errs.Error {
	return err.WithScope(errs.ScopeRail, errs.SideLocal).WithPeer(r.link.peer.Address, Name, r.name())
}

func (s *laneSet) id() transport.Rail {
	return transport.Rail{Link: s.rail.link.number, Index: s.rail.index, Generation: s.generation}
}

// laneSet is one generation of a rail. It gets wider, and is immutable but for that and the lanes' own state.
type laneSet struct {
	rail       *rail
	generation uint32
	owner      transport.ID // of the engine that its lanes lead to
	groups     [groupCount]laneGroup
	fenced     atomic.Bool   // its lanes take nothing more, nor do those that are on their way
	owes       atomic.Bool   // a Submit took less than it was given: Ready is due
	wider      atomic.Bool   // all lanes are wanted
	widened    bool          // and were dialled, for the link's goroutine
	trip       time.Duration // one way and back when it was dialled
}

// groupCount is the number of class groups: class 0 has connections of its own, so neither its bytes nor its
// acknowledgements wait behind others'.
const groupCount = 2

// groupOf returns the group that carries a class.
func groupOf(class uint8) int {
	if class == 0 {
		return 0
	}
	return 1
}

// carries reports whether the lane carries one of the classes.
func (l *initiatorLane) carries(classes transport.Classes) bool {
	return groupCarries(l.group, classes)
}

func groupCarries(group uint8, classes transport.Classes) bool {
	urgent := classes & 1
	if group == 0 {
		return urgent != 0
	}
	return classes != urgent
}

func (s *laneSet) each(f func(*initiatorLane)) {
	for i := range s.groups {
		for _, l := range s.groups[i].lanes() {
			f(l)
		}
	}
}

func (s *laneSet) String() string {
	return fmt.Sprintf("generation %d, %d lanes", s.generation, len(s.groups[0].lanes())+len(s.groups[1].lanes()))
}
