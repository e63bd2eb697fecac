package tcp

import (
	"fmt"
	"sync/atomic"
)

// state is the place of a lane in its life. The two ends of a connection have different lives:
//
//	initiator
//	            opened            broke, goodbye           closed              fenced
//	 dialled ───────────▶ open ──────────────────▶ broken ────────▶ in doubt ──────────▶ ended
//	     └────────────────────broke──────────────────▲
//
//	responder              stale
//	            opened   ┌──────────▶ paused ─────broke, fenced──────┐
//	 greeting ────────▶ open ◀──wanted──┘                            │
//	     │               │ │ └──broke──▶ broken ────stale, fenced────┤
//	     │               │ └────fenced───────────────────────────────┼──▶ fenced
//	     └─broke, late,──┼───────────────────────────────────────────┘
//	       fenced        │
//	                     └──goodbye (also from paused)──▶ parting ──sent──▶ parted
//	 any state ──closed──▶ ended
//
// "In doubt" is the term of two-phase commit: WRITEs had left when the connection broke, and only the peer knows which
// of them have landed. An event that a state does not list leaves the state as it is.
type state uint8

const (
	stateNone     state = iota
	stateDialled        // initiator: its socket was welcomed, nobody looks at it yet
	stateGreeting       // responder: accepted, has not proved itself yet
	stateOpen           // carries frames in both directions
	statePaused         // responder: nothing is read while the sender is asked whether it still wants its bytes
	stateParting        // responder: nothing lands any more, the last frame is being written
	stateParted         // responder: all frames have left, so that the socket is closed without a reset
	stateBroken         // takes nothing more; bytes in the socket may still be read
	stateFenced         // responder: takes nothing more, and nothing lands any more
	stateInDoubt        // initiator: its socket is closed, and a FENCE asks which of its WRITEs have landed
	stateEnded          // its socket is closed, and nobody asks about it
	stateCount
)

var stateNames = [stateCount]string{"none", "dialled", "greeting", "open", "paused", "parting", "parted", "broken",
	"fenced", "in doubt", "ended"}

func (s state) String() string {
	if s < stateCount {
		return stateNames[s]
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// live reports that frames and slices may be queued and that epoll looks at the socket.
func (s state) live() bool {
	switch s {
	case stateDialled, stateGreeting, stateOpen, statePaused, stateParting:
		return true
	}
	return false
}

// receives reports that the socket may be read and that payload may land. An initiator's lane that has broken is still
// read, because the peer's goodbye may lie in it.
func (s state) receives() bool {
	switch s {
	case stateDialled, stateGreeting, stateOpen, stateBroken:
		return true
	}
	return false
}

// event is something that happens to a lane.
type event uint8

const (
	eventOpened  event = iota // initiator: workers and pollers look at it; responder: its proof was right
	eventLate                 // responder: no proof came in time, or others needed its room
	eventStale                // responder: bytes in its socket have waited for longer than the lease
	eventWanted               // responder: the sender still wants that written
	eventGoodbye              // initiator: the peer's goodbye came; responder: ours is to be written
	eventSent                 // responder: the goodbye and all before it have left
	eventBroke                // an error of the socket or of the peer, a Fence, a Detach, a Close
	eventFenced               // initiator: the peer has answered the FENCE, or cannot; responder: a FENCE or LEAVE came
	eventClosed               // the socket is closed
	eventCount
)

var eventNames = [eventCount]string{"opened", "late", "stale", "wanted", "goodbye", "sent", "broke", "fenced", "closed"}

func (e event) String() string {
	if e < eventCount {
		return eventNames[e]
	}
	return fmt.Sprintf("event %d", uint8(e))
}

// moves lists the next state for each state and event; stateNone means that the event changes nothing.
type moves [stateCount][eventCount]state

var initiatorMoves = moves{
	stateDialled: {eventOpened: stateOpen, eventBroke: stateBroken, eventClosed: stateInDoubt},
	stateOpen:    {eventBroke: stateBroken, eventGoodbye: stateBroken, eventClosed: stateInDoubt},
	stateBroken:  {eventClosed: stateInDoubt},
	stateInDoubt: {eventFenced: stateEnded},
}

var responderMoves = moves{
	stateGreeting: {eventOpened: stateOpen, eventLate: stateFenced, eventBroke: stateFenced, eventFenced: stateFenced,
		eventClosed: stateEnded},
	stateOpen: {eventStale: statePaused, eventGoodbye: stateParting, eventBroke: stateBroken, eventFenced: stateFenced,
		eventClosed: stateEnded},
	statePaused: {eventWanted: stateOpen, eventGoodbye: stateParting, eventBroke: stateFenced, eventFenced: stateFenced,
		eventClosed: stateEnded},
	stateParting: {eventSent: stateParted, eventBroke: stateFenced, eventFenced: stateFenced, eventClosed: stateEnded},
	stateParted:  {eventClosed: stateEnded},
	stateBroken:  {eventStale: stateFenced, eventFenced: stateFenced, eventClosed: stateEnded},
	stateFenced:  {eventClosed: stateEnded},
}

// life holds a lane's state. Any goroutine may read it. The caller of advance holds the lock of the activity that the
// move ends: mu for queueing, copyMu for payload that lands, readMu and writeMu for the socket itself.
type life struct {
	now   atomic.Uint32
	moves *moves
}

func (l *life) init(first state, m *moves) {
	l.now.Store(uint32(first))
	l.moves = m
}

func (l *life) state() state { return state(l.now.Load()) }

// advance is the only place that changes a lane's state. It returns the states before and after; both are the same if
// the event changes nothing. Of several goroutines that report one event, only one sees the move.
func (l *life) advance(e event) (from, to state) {
	for {
		from = l.state()
		if to = l.moves[from][e]; to == stateNone {
			return from, from
		}
		if l.now.CompareAndSwap(uint32(from), uint32(to)) {
			return from, to
		}
	}
}
