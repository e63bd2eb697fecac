package tcp

// linkState is the place of a link in its life.
//
//	       ┌───no answer───▶ down        down: LinkDown was reported, and the link goes on trying
//	trying ◀────rail up──────┘
//	trying, down ───────peer gone──────▶ dead
//	trying, down, dead ──detached──▶ leaving ──settled──▶ over
type linkState uint8

const (
	linkTrying  linkState = iota + 1 // some rail is up, or no dial and no call has failed for long
	linkDown                         // no rail can be had now
	linkDead                         // the peer's process or transport has ended: nothing is tried any more
	linkLeaving                      // detached; the peer is asked about WRITEs in doubt
	linkOver                         // nothing is done for it any more
	linkStateCount
)

var linkStateNames = [linkStateCount]string{linkTrying: "trying", linkDown: "down", linkDead: "dead",
	linkLeaving: "leaving", linkOver: "over"}

func (s linkState) String() string { return linkStateNames[s] }

// linkEvent is something that happens to a link.
type linkEvent uint8

const (
	linkRailUp   linkEvent = iota // a rail has come up
	linkNoAnswer                  // dials and calls fail
	linkPeerGone                  // the peer has said goodbye, has ended, or another incarnation answers
	linkDetached                  // Detach was called
	linkSettled                   // everything has completed
	linkEventCount
)

var linkEventNames = [linkEventCount]string{"rail up", "no answer", "peer gone", "detached", "settled"}

// linkMoves lists the next state for each state and event; an event that is not listed changes nothing.
var linkMoves = [linkStateCount][linkEventCount]linkState{
	linkTrying:  {linkNoAnswer: linkDown, linkPeerGone: linkDead, linkDetached: linkLeaving},
	linkDown:    {linkRailUp: linkTrying, linkPeerGone: linkDead, linkDetached: linkLeaving},
	linkDead:    {linkDetached: linkLeaving},
	linkLeaving: {linkSettled: linkOver},
}

// advance changes the link's state, as nothing else does, and reports whether the event did. Only the link's
// goroutine calls it.
func (l *link) advance(e linkEvent) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.advanceLocked(e)
}

func (l *link) advanceLocked(e linkEvent) bool {
	to := linkMoves[l.state][e]
	if to != 0 {
		l.state = to
	}
	return to != 0
}

// serves reports that the link tries to move slices and that the core still wants to hear of it.
func (l *link) serves() bool {
	return (l.state == linkTrying || l.state == linkDown) && !l.left.Load()
}
