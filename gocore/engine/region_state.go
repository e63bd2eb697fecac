package engine

import "sync/atomic"

// regionState is the place of a region in its life.
//
//	       published        closed            retired
//	  new ───────────▶ open ───────▶ closed ───────────▶ retired
//	   │                               │                    │
//	   │ freed                         │ freed              │ freed
//	   ▼                               ▼       retired      ▼
//	unmapped ◀───────────────────── freed ───────────▶ unmapped
//
// A region is retired when no transport knows it any more. Memory of the caller stays retired; memory of Allocate is
// unmapped once it is both freed and retired, whichever comes last. An event that a state does not list changes
// nothing.
type regionState uint8

const (
	regionNew      regionState = iota // its transports are being told
	regionOpen                        // transfers may begin
	regionClosed                      // no transfer begins; those under way still use it
	regionFreed                       // the same, and FreeMemory was called
	regionRetired                     // no transport knows it
	regionUnmapped                    // its memory is given back
)

func (s regionState) String() string {
	return [...]string{"new", "open", "closed", "freed", "retired", "unmapped"}[s%6]
}

// regionEvent is something that happens to a region.
type regionEvent uint8

const (
	eventPublished regionEvent = iota // it is in the table
	eventClosed                       // CloseRegion
	eventFreed                        // FreeMemory; or its registration failed
	// the last transfer that used it has ended, and the transports have deregistered it
	eventRetired
)

// regionMoves lists the next state for each state and event that changes it.
var regionMoves = map[regionState]map[regionEvent]regionState{
	regionNew:     {eventPublished: regionOpen, eventFreed: regionUnmapped},
	regionOpen:    {eventClosed: regionClosed},
	regionClosed:  {eventFreed: regionFreed, eventRetired: regionRetired},
	regionFreed:   {eventRetired: regionUnmapped},
	regionRetired: {eventFreed: regionUnmapped},
}

// regionLife holds a region's state. Any goroutine may read and advance it.
type regionLife struct{ now atomic.Uint32 }

func (l *regionLife) state() regionState { return regionState(l.now.Load()) }

// advance is the only place that changes a region's state. moved is false if the event changes nothing; of several
// goroutines that report one event, only one sees the move, and the one that sees regionUnmapped unmaps.
func (l *regionLife) advance(e regionEvent) (to regionState, moved bool) {
	for {
		from := l.state()
		to, moved = regionMoves[from][e]
		if !moved {
			return from, false
		}
		if l.now.CompareAndSwap(uint32(from), uint32(to)) {
			return to, true
		}
	}
}
