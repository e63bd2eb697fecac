package transport

import (
	"context"

	"github.com/tent-engine/tent/gocore/mem"
)

// Order is a transfer that a peer asks our engine to carry out, between a region here and memory that it lends us. A
// transport with Info.Delegates passes it on.
type Order struct {
	From   Peer     // as its connection proves it: its rights count
	Op     Op       // of the peer: WRITE changes the region
	Class  uint8    // as its slice has it
	Epoch  Epoch    // of our engine, as the peer knew it
	Key    LocalKey // of the region
	Places []uint64 // offsets of parts in the region; they follow one another in the lent memory, from Offset on
	Bytes  uint64   // of each part
	Lent   Lent
	Offset uint64
}

// Length returns the bytes of all parts.
func (o *Order) Length() uint64 { return uint64(len(o.Places)) * o.Bytes }

// Lent is memory of a peer that it lends to one engine, for its orders.
type Lent struct {
	ID          mem.RegionID // at the peer
	Addr        uintptr      // there; an order names offsets alone
	Size        uint64
	Descriptors map[string]Descriptor // by transport
}

// Deputy is the Host of a transport with Info.Delegates. Any goroutine may call it.
type Deputy interface {
	// Lent describes memory of ours that is lent to a peer. False: the key is of no such memory.
	Lent(key LocalKey) (memory Lent, is bool)
	// Confine ends the reach of an engine's transfers into memory of the key. Those that it begins later have it.
	Confine(ctx context.Context, key LocalKey, peer Peer) error
	// Execute carries an order out as a transfer of our own, with the rights of its peer. It returns when that has
	// ended. The end of ctx cancels it. dirty: slices of it are left.
	Execute(ctx context.Context, o *Order) (dirty bool, err error)
}
