//go:build invariants

package dispatch

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/rail"
)

// Each mutant falsifies one thing that the core keeps; the next public call must find it.
func TestTheModelsInvariantsFindEachMutant(t *testing.T) {
	for name, mutate := range map[string]func(c *Core, l *link, r *railState, a *attempt){
		"bytes that wait":      func(_ *Core, l *link, _ *railState, _ *attempt) { l.queues[Low].bytes++ },
		"tasks that wait":      func(_ *Core, l *link, _ *railState, _ *attempt) { l.queues[Low].depth-- },
		"a class that waits":   func(_ *Core, l *link, _ *railState, _ *attempt) { l.waiting[Low] = clock.Never },
		"rails that are up":    func(_ *Core, l *link, _ *railState, _ *attempt) { l.up-- },
		"bytes in flight":      func(_ *Core, _ *link, r *railState, _ *attempt) { r.bytes -= 4096 },
		"LOW on the NIC":       func(_ *Core, _ *link, r *railState, _ *attempt) { r.device.low++ },
		"slices of the NIC":    func(_ *Core, _ *link, r *railState, _ *attempt) { r.device.flying[Low]++ },
		"slices of the core":   func(c *Core, _ *link, _ *railState, _ *attempt) { c.outstanding = 0 },
		"a slice that is back": func(_ *Core, _ *link, _ *railState, a *attempt) { a.state = attemptBack },
		"open withdrawals":     func(_ *Core, l *link, _ *railState, _ *attempt) { l.peer.open++ },
		"a held engine":        func(_ *Core, l *link, _ *railState, _ *attempt) { l.peer.engine.open++ },
		"bytes of a task":      func(_ *Core, _ *link, _ *railState, a *attempt) { a.pieces.task.acked++ },
		"slices of a task":     func(_ *Core, _ *link, _ *railState, a *attempt) { a.pieces.task.outstanding++ },
		"a verdict by the way": func(_ *Core, _ *link, _ *railState, a *attempt) { a.pieces.task.verdict = Failed },
		"an end by the way":    func(_ *Core, _ *link, _ *railState, a *attempt) { a.pieces.task.state = Completed },
		"pending tasks":        func(_ *Core, _ *link, _ *railState, a *attempt) { a.pieces.task.batch.pending++ },
		"requests of the core": func(c *Core, _ *link, _ *railState, _ *attempt) { c.pending = 0 },
		"a piece that waits":   func(_ *Core, _ *link, _ *railState, a *attempt) { a.pieces.state = pieceQueued },
		"a piece replaced":     func(_ *Core, _ *link, _ *railState, a *attempt) { a.pieces.state = pieceReplaced },
		"a piece orphaned":     func(_ *Core, _ *link, _ *railState, a *attempt) { a.pieces.state = pieceOrphaned },
		"a rail's life": func(_ *Core, _ *link, r *railState, _ *attempt) {
			r.life.Observe(rail.Ended, &rail.Settings{}, 1)
		},
		"a breaker by the way": func(_ *Core, _ *link, r *railState, _ *attempt) {
			r.life.Breaker.Fail(&rail.Settings{}, 1)
		},
		"a rank by the way": func(_ *Core, l *link, r *railState, _ *attempt) {
			l.rank, r.rank = rankMain, rankMain-1
		},
		"a link's slot":         func(_ *Core, l *link, _ *railState, _ *attempt) { l.id++ },
		"the books of a device": func(_ *Core, _ *link, r *railState, _ *attempt) { r.device.records-- },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Options{Stall: time.Hour})
			id := r.link(1, 0, 2, 64*kib)
			r.submit(to(r.core, id), Low, 1<<20, r.now.Add(time.Minute))
			require.NotEmpty(t, r.out)
			require.NotPanics(t, func() { r.core.Ready(id, railOf(id, 0, 1)) })
			a := attemptOf(r.out[0])
			mutate(r.core, r.core.link(id), a.rail, a)
			require.Panics(t, func() { r.core.Ready(id, railOf(id, 0, 1)) })
		})
	}
}

func TestAPieceOfTheModelGoesOnlyWhereTheDiagramLeads(t *testing.T) {
	for from := pieceIdle; from <= pieceOrphaned; from++ {
		for to := pieceIdle; to <= pieceOrphaned; to++ {
			p := &piece{state: from}
			if pieceMoves[from]&(1<<to) != 0 {
				require.NotPanics(t, func() { p.become(to) })
				require.Equal(t, to, p.state)
			} else {
				require.PanicsWithValue(t, "dispatch: a piece that is "+from.String()+" became "+to.String(), func() {
					p.become(to)
				})
				require.Equal(t, from, p.state)
			}
		}
	}
}
