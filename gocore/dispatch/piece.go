package dispatch

import (
	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch/internal/intrusive"
	"github.com/tent-engine/tent/gocore/plan"
)

// pieceState says where a piece is. Only piece.become changes it.
//
//	fresh bytes --carve--> idle --launchPiece--> flying --all bytes arrived--> freed, or queued for the next hop
//	                                             ^    |
//	                                  launchPiece|    | its slice failed or was refused: idle, and retryPiece decides
//	                                             |    v
//	     blocked --a slot is free--> queued -----+   idle --at once, or the next route--> queued
//	        ^                        | ^              |
//	        +--a stage is full-------+ |              +--after a pause--> parked
//	                                   +--pause over----------------------+
//
//	flying   --replaceSlice--> replaced   its rail fell silent or ended, or another one is quicker (a hedged request):
//	                                      a new piece has the bytes, however this slice ends
//	flying   --endDirty------> orphaned   its task has ended without it; replaced ones go the same way
//	replaced, orphaned --their slice comes back--> freed
//	any but these      --its task has its verdict (forfeitPiece)--> freed
type pieceState uint8

// States of a piece.
const (
	pieceIdle     pieceState = iota // between two others, within one call
	pieceQueued                     // waits in the queue of its class for a rail
	pieceParked                     // waits for the end of a pause before its next try
	pieceBlocked                    // waits for a slot of a stage
	pieceFlying                     // is part of a slice that is out
	pieceReplaced                   // is part of a slice that is out; its replacement answers for the bytes
	pieceOrphaned                   // is part of a slice that is out; its task has ended dirty
)

func (s pieceState) String() string {
	return [...]string{"idle", "queued", "parked", "blocked", "flying", "replaced", "orphaned"}[s]
}

// out reports whether the piece is part of a slice that is out.
func (s pieceState) out() bool { return s >= pieceFlying }

// pieceMoves are the states that may follow each, a bit each.
var pieceMoves = [...]uint8{
	pieceIdle:     1<<pieceIdle | 1<<pieceQueued | 1<<pieceParked | 1<<pieceFlying,
	pieceQueued:   1<<pieceIdle | 1<<pieceBlocked | 1<<pieceFlying,
	pieceParked:   1<<pieceIdle | 1<<pieceQueued,
	pieceBlocked:  1<<pieceIdle | 1<<pieceQueued,
	pieceFlying:   1<<pieceIdle | 1<<pieceReplaced | 1<<pieceOrphaned,
	pieceReplaced: 1 << pieceOrphaned,
	pieceOrphaned: 0,
}

// piece is a range of a task that was cut once; on the next try it may be cut further.
type piece struct {
	task        *task // nil once orphaned: only the attempt remembers the piece
	attempt     *attempt
	route       *plan.Route
	replacement *piece                // of a replaced piece, as long as it stands for exactly the same bytes
	original    *piece                // the other way round
	sibling     *piece                // next of the same attempt
	queue       intrusive.Node[piece] // where it waits
	mine        intrusive.Node[piece] // of its task
	offset      uint64
	length      uint64
	due         clock.Time // end of the pause before a retry
	slots       [stagesMost]int32
	sharer      *peer    // to which its slots of shared stages count; nil: none
	remains     *Remains // of an orphaned piece that may still use local memory
	tried       uint64   // rails that failed it in this round, a bit each by index
	sent        uint16   // times in an attempt, over all routes
	tries       uint8    // rounds over the rails of this route that failed
	spared      uint8    // failures that were not its own
	index       uint8    // of route
	hop         uint8
	state       pieceState
	staged      bool // holds slots
	lastRound   bool // when it failed last; then each rail has its chance, however slow it is
}

// way is the hop that the piece takes next.
func (p *piece) way() *plan.Hop { return &p.route.Hops[p.hop] }

// become changes the state of a piece and takes it out of wherever it waited.
func (p *piece) become(to pieceState) {
	if invariants && pieceMoves[p.state]&(1<<to) == 0 {
		panic("dispatch: a piece that is " + p.state.String() + " became " + to.String())
	}
	p.queue.Unlink()
	p.state = to
}

// unpair ends the tie between a replaced piece and its replacement, when one of them ends or changes.
func (p *piece) unpair() {
	if other := p.replacement; other != nil {
		other.original, p.replacement = nil, nil
	}
	if other := p.original; other != nil {
		other.replacement, p.original = nil, nil
	}
}

func (c *Core) newPiece(t *task, offset, length uint64) *piece {
	p := c.pieces.Get()
	p.task, p.offset, p.length = t, offset, length
	p.index, p.route = t.route, t.path()
	t.pieces.PushBack(&p.mine, p)
	return p
}

// freePiece forgets a piece that is in no attempt.
func (c *Core) freePiece(p *piece) {
	p.queue.Unlink()
	p.mine.Unlink()
	c.releaseSlots(p)
	p.unpair()
	c.pieces.Put(p)
}

// freeOrphan frees a piece that has outlived its task.
func (c *Core) freeOrphan(p *piece) {
	if p.remains != nil {
		p.remains.pieces--
	}
	c.freePiece(p)
}

// forfeitPiece frees a piece of a task that has its verdict. The replacement of a replaced one accounts for its bytes.
func (c *Core) forfeitPiece(p *piece) {
	if p.state != pieceReplaced {
		p.task.miss(p.offset, p.length)
	}
	c.freePiece(p)
}

// rewindPiece sends a piece to the begin of its task's current route.
func (c *Core) rewindPiece(p *piece) {
	p.become(pieceIdle)
	c.releaseSlots(p)
	p.hop, p.tries, p.spared, p.tried = 0, 0, 0, 0
	p.index, p.route = p.task.route, p.task.path()
}
