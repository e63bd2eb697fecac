package netns

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/netbed"
)

// fault is one way in which a rail breaks, and how it is mended.
type fault struct {
	name string
	make func(*netbed.Rail) error
	mend func(*netbed.Rail) error
	side string // whom the RailDown event must blame at once; "" for faults that nobody is told of
}

func (w *world) faults() []fault {
	return []fault{
		{"own device down", func(r *netbed.Rail) error { return r.Down(w.A) },
			func(r *netbed.Rail) error { return r.Up(w.A) }, "local"},
		{"own cable pulled", func(r *netbed.Rail) error { return r.Unplug(w.A) },
			func(r *netbed.Rail) error { return r.Plug(w.A) }, "local"},
		{"own address removed", func(r *netbed.Rail) error { return r.Unassign(w.A) },
			func(r *netbed.Rail) error { return r.Assign(w.A) }, "local"},
		{"peer's device down", func(r *netbed.Rail) error { return r.Down(w.B) },
			func(r *netbed.Rail) error { return r.Up(w.B) }, "remote"},
		{"peer's cable pulled", func(r *netbed.Rail) error { return r.Unplug(w.B) },
			func(r *netbed.Rail) error { return r.Plug(w.B) }, "remote"},
		{"silent both ways", func(r *netbed.Rail) error { return r.Drop(netbed.Both) }, (*netbed.Rail).Heal, ""},
		{"silent forth", func(r *netbed.Rail) error { return r.Drop(netbed.Forth) }, (*netbed.Rail).Heal, ""},
		{"silent back", func(r *netbed.Rail) error { return r.Drop(netbed.Back) }, (*netbed.Rail).Heal, ""},
		{"reset by the network", (*netbed.Rail).Reset, (*netbed.Rail).Heal, "path"},
		{"connections aborted", func(r *netbed.Rail) error {
			n, _, err := r.Abort(w.A)
			if err == nil && n == 0 {
				err = errors.New("there were none")
			}
			return err
		}, (*netbed.Rail).Heal, "path"},
	}
}

// TestARailThatBreaksUnderATransferIsNoticedByNobody breaks one rail in every way there is, in the middle of a
// transfer; each next transfer then has the rail back.
func TestARailThatBreaksUnderATransferIsNoticedByNobody(t *testing.T) {
	netbed.EitherWay(t, func(t *testing.T, op transport.Op) {
		w := newWorld(t, nil)
		for i, f := range w.faults() {
			t.Run(f.name, func(t *testing.T) {
				n := i % rails
				rail := w.Rails[n]
				down := "rail_down " + w.railName(n)
				before, up := len(w.Events(t, down)), len(w.Events(t, "rail_up "+w.railName(n)))
				t.Cleanup(func() {
					if t.Failed() { // the next fault is to find all rails well
						_ = f.mend(rail)
					}
				})
				out := w.Moves(t, op, func() error { return f.make(rail) })
				t.Logf("%d MiB in %v, %d attempts", out.Bytes>>20, out.Took.Round(time.Millisecond), out.Attempts)
				if f.side != "" { // a transfer with nothing on the rail at that moment may end before
					netbed.Await(t, "the rail is down", func() bool { return len(w.Events(t, down)) > before })
					require.Contains(t, w.Events(t, down)[before], " "+f.side+": ", "the cause names the side")
				}
				require.NoError(t, f.mend(rail))
				if len(w.Events(t, down)) > before {
					netbed.Await(t, "the rail is back", func() bool {
						return len(w.Events(t, "rail_up "+w.railName(n))) > up
					})
				}
				w.AwaitRails(t, rails)
			})
		}
	})
}

// TestARailThatCarriesNoPayloadIsPaused: connections come up over a path MTU black hole, and pings are answered. Each
// generation would cost a transfer a second. After a few of them the rail is paused, and it carries bytes when it is
// mended.
func TestARailThatCarriesNoPayloadIsPaused(t *testing.T) {
	netbed.EitherWay(t, func(t *testing.T, op transport.Op) {
		w := newWorld(t, map[string]string{"transports/tcp/rail_cooldown_secs": "1"})
		const small = 600 // bytes of a packet: whatever a lane says besides payload
		count := func(kind string) int { return len(w.Events(t, kind+" "+w.railName(1))) }
		require.NoError(t, w.Rails[1].Shorten(small))
		for count("rail_paused") == 0 {
			w.Move(t, op)
		}
		require.GreaterOrEqual(t, count("rail_up"), 3, "the first generations are no reason for a pause")
		require.NoError(t, w.Rails[1].Heal())
		for paused := count("rail_paused"); ; {
			w.Move(t, op)
			if now := count("rail_paused"); now > paused { // the last one that was lost, before the rail was mended
				paused = now
			} else if w.RailsUp(t) == rails && count("rail_recovered") > 0 {
				break
			}
		}
	})
}
