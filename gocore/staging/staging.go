// Package staging makes routes through memory of the host, for memory of devices that no transport carries all the way.
// It is pure: the engine owns the memory and calls it, the core moves the bytes.
//
//	WRITE  device --copy--> slot --wire--> peer        READ  device <--copy-- slot <--wire-- peer
//
// A route has two hops. One stays in this engine, between the request's memory and a slot; a transport with a link to
// our own engine carries it. The other one leads to the peer: policies and errors mean that one. The core
// cuts a request into pieces of a slot at most, and each takes its slot before its first hop (dispatch/stage.go). So a
// piece is on the wire while others are copied, and a piece that holds a slot waits for no other slot: nothing waits in
// a circle. A pool without a free slot is backpressure.
//
// Pages that lie apart share a slot where both transports take lists of pieces: one copy gathers them, one slice of the
// wire scatters them.
//
// Slots are memory of this engine. A slot is given back when the last slice of its piece has completed, also when its
// task ended dirty before: nobody writes there any more.
//
// Memory of a peer's device is reached in the same form. The wire is then an order (transport.Order): the peer's engine
// moves the bytes between its device and the slot, by a transfer of its own, which may have a pool there in turn. So
// each engine copies in memory of its own, and no way has more than two hops at an engine. Pools for our requests, for
// orders of peers, and memory lent to each peer are apart. A transfer of an order waits for none but its own, so two
// engines that stage at each other do not wait in a circle.
//
// The pool for orders is shared by peers that have nothing to do with each other. One that stops, or means harm, holds
// its slots until its orders are given up. So the last eighth of the slots is for peers that hold none
// (dispatch/stage.go).
package staging

import (
	"fmt"
	"slices"

	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/transport"
)

// Sizes are those of a pool.
type Sizes struct {
	Slots     int
	SlotBytes uint64
}

// Bytes returns the memory of a pool.
func (s Sizes) Bytes() uint64 { return uint64(s.Slots) * s.SlotBytes }

// String returns the sizes for people.
func (s Sizes) String() string { return fmt.Sprintf("%d slots of %d KiB", s.Slots, s.SlotBytes>>10) }

// Helps reports whether bytes between memory of two kinds can gain by a copy in host memory: ours is not there.
func Helps(local mem.Kind) bool { return local != mem.Host }

// join makes a route of two hops from a route to a slot and one from there to the peer. Each of them has one hop.
func join(op transport.Op, own, wire *plan.Route, pool plan.StageID) plan.Route {
	near, far := own.Hops[0], wire.Hops[0]
	near.Remote, far.Local = pool, pool
	r := plan.Route{Transport: wire.Transport, Vectors: own.Vectors && wire.Vectors,
		Alignment: max(own.Alignment, wire.Alignment), SliceMax: least(own.SliceMax, wire.SliceMax),
		SliceBest: least(own.SliceBest, wire.SliceBest), SliceLow: least(own.SliceLow, wire.SliceLow),
		PiecesMax: least(own.PiecesMax, wire.PiecesMax)}
	if op == transport.Write {
		r.Hops, r.Crossing = []plan.Hop{near, far}, 1
	} else {
		r.Hops = []plan.Hop{far, near}
	}
	return r
}

// least returns the smaller of two limits; 0 is none.
func least(a, b uint64) uint64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// Add puts the routes through a pool behind those of a plan. A route of a transport that bounces comes behind them,
// unless the user has ordered the transports: both cross memory of the host, and the core's own way does it with less
// work. A plan without routes has the reasons of there being none; those of the wire follow them. It is nil where none
// was made.
func Add(direct *plan.Plan, ordered bool, op transport.Op, own, wire *plan.Plan, pool plan.StageID) *plan.Plan {
	next := *wire
	next.Routes = nil
	if direct != nil {
		next = *direct
		next.Routes = slices.Clone(direct.Routes)
	}
	if direct != nil && len(direct.Routes) == 0 {
		next.Rejected = slices.Concat(direct.Rejected, wire.Rejected)
	}
	before, behind := next.Routes, []plan.Route(nil)
	if at := slices.IndexFunc(before, func(r plan.Route) bool { return r.Bounces }); at >= 0 && !ordered {
		before, behind = slices.Clone(before[:at]), before[at:]
	}
	for i := range wire.Routes {
		before = append(before, join(op, &own.Routes[0], &wire.Routes[i], pool))
	}
	next.Routes = append(before, behind...)
	return &next
}
