package tests

import (
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/transports/sim"
)

// The faults of the simulation, and the checks between them.

// disturb does something to paths, one of 26 things by weight.
func (r *simRun) disturb(dice int, where sim.Where) {
	switch {
	case dice < 4:
		r.network.Shape(where, r.shape())
	case dice < 6: // slow, and nothing else
		r.network.Shape(where, sim.Shape{Rate: 1e5 * float64(1+r.random.IntN(50)),
			Delay: time.Duration(r.random.IntN(int(time.Millisecond)))})
	case dice < 10:
		r.network.Cut(where)
	case dice < 14: // one direction only: questions are lost, or answers are
		r.network.CutTo(where, []string{where.A, where.B}[r.random.IntN(2)])
	case dice < 18:
		r.network.Heal(where)
	case dice < 21:
		r.network.Down(where)
	case dice < 24:
		r.network.Up(where)
	default:
		r.flap(where)
	}
}

// flap takes rails down and up again, several times in little time.
func (r *simRun) flap(where sim.Where) {
	for range 1 + r.random.IntN(4) {
		r.network.Down(where)
		r.advance(clock.Time(r.random.IntN(int(2 * time.Millisecond))))
		r.network.Up(where)
		r.advance(clock.Time(r.random.IntN(int(2 * time.Millisecond))))
	}
}

func (r *simRun) shape() sim.Shape {
	often := func(p float64) float64 {
		if r.random.IntN(2) == 0 {
			return 0
		}
		return p * r.random.Float64()
	}
	return sim.Shape{Rate: 1e6 * float64(1+r.random.IntN(1000)),
		Delay:  time.Duration(r.random.IntN(int(time.Millisecond))),
		Jitter: time.Duration(r.random.IntN(int(time.Millisecond))), Loss: often(0.2), LostAck: often(0.2),
		Duplicate: often(0.2), Late: often(0.2), LateBy: 5 * time.Millisecond, Refuse: often(0.5)}
}

// kill ends an engine; its transfers under way have no owner any more.
func (r *simRun) kill(e *simEngine) {
	alive := 0
	for _, other := range r.engines {
		if !other.dead {
			alive++
		}
	}
	if e.dead || alive < 3 {
		return
	}
	r.network.Kill(e.address)
	e.dead = true
	delete(r.stopped, e)
}

// restart opens another engine at the address of one that was killed, in places that no transfer has used.
func (r *simRun) restart(dead *simEngine) {
	i := slices.Index(r.engines, dead)
	e := newSimEngine(r.t, r, i, r.part(i))
	e.used = dead.used
	r.engines[i] = e
	for _, k := range r.near(i) {
		if other := r.engines[k]; !other.dead {
			other.attach(e)
			e.attach(other)
		}
	}
	seen["restart"]++
}

// look is taken after each act, at one transfer that has ended, which nobody may have written to since. It is also
// taken at the progress of all others, which never falls.
func (r *simRun) look() {
	if len(r.moves) == 0 {
		return
	}
	r.unwritten(r.moves[r.random.IntN(len(r.moves))])
	for _, m := range r.moves {
		if m.ended || m.engine.dead {
			continue
		}
		s, err := m.engine.core.Status(m.batch, 0)
		require.Nil(r.t, err)
		require.GreaterOrEqual(r.t, s.Bytes, m.bytes, "progress went backwards")
		require.LessOrEqual(r.t, s.Bytes, m.spec.Length)
		m.bytes = s.Bytes
	}
}

// secondLook checks at the end that nothing was written after the ends.
func (r *simRun) secondLook() {
	for _, m := range r.moves {
		r.unwritten(m)
		if !m.peer.dead {
			r.unmoved(m)
		}
	}
}

func (r *simRun) unwritten(m *simMove) {
	if m.ended && !m.dirty && m.after != nil && !m.engine.dead && !m.peer.dead {
		require.Equal(r.t, m.after, m.destination, "a transfer (%s, %s) was written to after its end", m.spec.Op,
			m.state)
	}
}
