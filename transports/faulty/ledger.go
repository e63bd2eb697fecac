package faulty

import "math/rand/v2"

// ledger is how far somebody got with each rule. Its owner's mutex guards it.
type ledger struct {
	seed  uint64
	spent map[*rule]*spent

	struck, ambient uint64 // faults that have happened, and those of ambient rules
}

// spent is how far it is with one rule. after_slices, nth and the like count slices that pass on the way out and those
// that pass on the way back each for itself.
type spent struct {
	out, back struct{ slices, bytes uint64 }
	times     uint64
	// chance decides about slices and calls, guess about signs of life. The engine asks for those at moments that no
	// seed repeats, so they take nothing from chance.
	chance, guess *rand.Rand
}

func newLedger() ledger { return ledger{spent: map[*rule]*spent{}} }

// reseed begins the chance of all rules anew.
func (l *ledger) reseed(seed uint64) {
	l.seed = seed
	for r, s := range l.spent {
		s.begin(seed, r.number)
	}
}

func (s *spent) begin(seed, number uint64) {
	s.chance, s.guess = rand.New(rand.NewPCG(seed, 2*number)), rand.New(rand.NewPCG(seed, 2*number+1))
}

func (l *ledger) of(r *rule) *spent {
	s := l.spent[r]
	if s == nil {
		s = &spent{}
		s.begin(l.seed, r.number)
		l.spent[r] = s
	}
	return s
}

// keep forgets rules that are no longer in force.
func (l *ledger) keep(now map[*rule]bool) {
	for r := range l.spent {
		if !now[r] {
			delete(l.spent, r)
		}
	}
}

// strikes reports whether a rule hits its slice now, after the slices and bytes that passed with it, and counts.
func (l *ledger) strikes(r *rule, slices, bytes uint64) bool {
	s := l.of(r)
	if !r.reaches(slices, bytes) || s.times >= r.count || r.rate < 1 && s.chance.Float64() >= r.rate {
		return false
	}
	l.strike(r)
	return true
}

// strike notes that a rule has struck.
func (l *ledger) strike(r *rule) {
	l.of(r).times++
	l.count(r, 1)
}

// count notes that a rule has struck, or with -1 that it has not after all.
func (l *ledger) count(r *rule, by int64) {
	r.hits.Add(uint64(by))
	if r.ambient {
		l.ambient += uint64(by)
	} else {
		l.struck += uint64(by)
	}
}

// reaches reports whether the rule is in force for the last of these slices and bytes.
func (r *rule) reaches(slices, bytes uint64) bool {
	return !(r.nth > 0 && slices != r.nth || r.every > 0 && slices%r.every != 0 ||
		r.afterSlices > 0 && slices <= r.afterSlices || r.afterBytes > 0 && bytes <= r.afterBytes)
}

// call counts a call and reports whether a rule hits it.
func (l *ledger) call(r *rule) bool {
	s := l.of(r)
	s.out.slices++
	return l.strikes(r, s.out.slices, 0)
}

// wouldHit reports whether the next slice, of one byte, would be hit on its way out, without counting anything. A rule
// that leaves it to chance says yes at its rate.
func (l *ledger) wouldHit(r *rule) bool {
	s := l.of(r)
	return r.reaches(s.out.slices+1, s.out.bytes+1) && s.times < r.count &&
		(r.rate >= 1 || s.guess.Float64() < r.rate)
}

// takeBack undoes the counts of a slice that was not accepted.
func (l *ledger) takeBack(r *rule, bytes uint64) {
	if s := l.spent[r]; s != nil && s.out.slices > 0 {
		s.out.slices--
		s.out.bytes -= min(s.out.bytes, bytes)
	}
}

// unstrike undoes a hit.
func (l *ledger) unstrike(r *rule) {
	if s := l.spent[r]; s != nil && s.times > 0 {
		s.times--
		l.count(r, -1)
	}
}
