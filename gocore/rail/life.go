package rail

import "github.com/tent-engine/tent/gocore/clock"

// State is the use that a rail in one generation is fit for.
type State uint8

// States of a rail.
const (
	Up         State = iota
	Probation        // an alternate that has not shown yet that it works: it stands in for no end of the matching
	Paused           // the breaker is open: used only when the link has nothing better
	Suspected        // silent while others of its peer speak: takes nothing new
	Condemned        // fenced: takes nothing more, and its completions are asked for
	Down             // its generation has ended; slices of it may still be outstanding
	DownFenced       // it has ended, and its completions are asked for
)

func (s State) String() string {
	return [...]string{"up", "probation", "paused", "suspected", "condemned", "down", "down"}[s]
}

// Healthy reports whether a rail should be chosen before others.
func (s State) Healthy() bool { return s <= Probation }

// Usable reports whether the generation may carry anything, now or later.
func (s State) Usable() bool { return s < Condemned }

// Ended reports whether the transport has ended the generation.
func (s State) Ended() bool { return s >= Down }

// Fenced reports whether the completions of the generation were asked for.
func (s State) Fenced() bool { return s == Condemned || s == DownFenced }

// Event is something that happens to a rail and may change its state.
type Event uint8

const (
	Failed    Event = iota // a failure of its own: a completion error, a reset, a late answer
	Delivered              // bytes arrived over it
	Spoke                  // any sign of life: bytes, progress, an answer
	Proved                 // an answer to a probe
	Rested                 // the time of a pause may be over
	Silenced               // silence that others of its peer do not share
	Deserted               // silence of its own for so long that its tasks took another route
	Fenced                 // it was given up for good: silent for too long, or something may still land
	Ended                  // its transport says that the generation is over
)

func (e Event) String() string {
	return [...]string{"failed", "delivered", "spoke", "proved", "rested", "silenced", "deserted", "fenced", "ended"}[e]
}

// Life is the lifecycle of a rail in one generation. Observe changes its state, and nothing else does.
//
//	Probation --proved--> Up --Threshold failures, from Probation too--> Paused, and at once when deserted
//	                      ^ ^                                              |
//	                spoke | +---rested, delivered, enough proved-----------+
//	                  Suspected <--silenced-- any of these three     spoke: back to Paused while the breaker is open
//
//	any of these four --fenced--> Condemned --ended---> DownFenced
//	any of these four --ended---> Down      --fenced--> DownFenced
//
// Every way back to Up is by slow start, but for delivered. A suspected rail keeps its breaker, and its pause goes on.
// Silence before suspicion is no state: the rail is used as before while dispatch asks for signs of life.
//
// While the whole peer is silent (Presence), no rail of it changes its state for silence.
//
// A generation is lost if something that it was given was lost, and nothing was delivered. Connections come up then,
// and carry no payload, as in a path MTU black hole (RFC 2923, 2.1). Threshold of them in a row open the breaker, and
// then each further one does. A small answer passes over such a path as well, so no probe ends such a pause.
type Life struct {
	state      State
	back       clock.Time // when the rail last left a pause or a suspicion; 0 if it never was out
	lost       bool       // something that this generation was given
	brought    bool       // this generation has delivered something
	lostInARow int        // generations before this one, of those that were given something
	Breaker    Breaker
	Start      SlowStart
}

// Change is the effect of an event.
type Change struct {
	From, To State
	Opened   bool // the breaker has opened; a rail that is suspected or worse stays so
}

// Recovered reports whether the rail is in use again after a pause or suspicion.
func (c Change) Recovered() bool { return c.To == Up && (c.From == Paused || c.From == Suspected) }

// Born begins the life of a rail that has come up.
func Born(onProbation bool) (l Life) {
	if onProbation {
		l.state = Probation
	}
	return l
}

// Inherit takes over the memory of the generation before. The rail was just proved to work, so its breaker closes,
// unless too many generations were lost; it is trusted little by little. Inherit reports whether the last one has
// opened the breaker.
func (l *Life) Inherit(old *Life, s *Settings, now clock.Time) (opened bool) {
	l.Breaker, l.lostInARow = old.Breaker, old.lostInARow
	switch {
	case old.brought:
		l.lostInARow = 0
	case old.lost:
		l.lostInARow++
	}
	switch {
	case !l.DeliversNothing(s):
		l.Breaker.Close(now)
	case old.lost && !old.brought:
		opened = l.Breaker.Trip(s, now)
	}
	if l.Breaker.open {
		l.state = Paused
	}
	l.Start.Begin()
	return opened
}

// DeliversNothing reports whether the last generations were, and this one has not shown yet that it is better.
func (l *Life) DeliversNothing(s *Settings) bool { return !l.brought && l.lostInARow >= s.Threshold }

// LostInARow is the number of generations before this one, in a row, that were lost.
func (l *Life) LostInARow() int { return l.lostInARow }

// Lose notes that something was out on the rail when its generation ended.
func (l *Life) Lose() { l.lost = true }

// State is the current state.
func (l *Life) State() State { return l.state }

// Back is when the rail last left a pause or a suspicion: slices that were sent before may fail by the trouble that is
// over.
func (l *Life) Back() clock.Time { return l.back }

// Troubled reports whether a success means anything to the rail beyond itself. It ends a pause, failures or a ramp, or
// it is the first of its generation.
func (l *Life) Troubled() bool { return !l.brought || l.Breaker.failures > 0 || l.Start.Ramping() }

// Observe notes an event and returns the change that follows.
func (l *Life) Observe(e Event, s *Settings, now clock.Time) Change {
	change := Change{From: l.state, Opened: l.note(e, s, now)}
	change.To = l.next(e)
	if change.To == change.From {
		return change
	}
	l.state = change.To
	if change.Recovered() || e == Spoke { // a suspicion may end in a pause
		l.back = now
		if e != Delivered {
			l.Start.Begin()
		}
	}
	return change
}

// note keeps the books of breaker and slow start and reports whether the breaker has opened.
func (l *Life) note(e Event, s *Settings, now clock.Time) (opened bool) {
	switch e {
	case Silenced:
		l.lost = true
	case Failed:
		l.lost = true
		if l.Start.Ramping() {
			l.Start.Begin()
		}
		return l.Breaker.Fail(s, now)
	case Deserted:
		l.lost = true
		return l.Breaker.Trip(s, now)
	case Delivered:
		if l.state.Usable() { // else it came to light another way
			l.brought = true
		}
		if l.Breaker.failures > 0 {
			l.Breaker.Close(now)
		}
	case Rested:
		if l.state == Paused && now >= l.Breaker.until {
			l.Breaker.Close(now)
		}
	case Proved:
		if l.state == Paused && !l.DeliversNothing(s) && l.Start.good >= l.Breaker.Trust(s, now) {
			l.Breaker.Close(now)
		}
	case Spoke:
		if l.state == Suspected && l.Breaker.open && now >= l.Breaker.until { // the pause ended during the suspicion
			l.Breaker.Close(now)
		}
	}
	return false
}

// next is the state after an event that is in the books already.
func (l *Life) next(e Event) State {
	switch {
	case e == Ended && l.state.Fenced(), e == Fenced && l.state.Ended():
		return DownFenced
	case e == Ended:
		return Down
	case e == Fenced:
		return Condemned
	case !l.state.Usable():
		return l.state
	case e == Silenced || (l.state == Suspected && e != Spoke):
		return Suspected
	case l.Breaker.open:
		return Paused
	case l.state == Probation && e != Proved:
		return Probation
	}
	return Up
}
