package dispatch

import (
	"fmt"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/event"
)

// No path becomes slow without a word: a rail that was full, and carried less than half of its nominal or usual rate
// for a second, is the event SlowPath, a counter and a gauge (rail.Pace). It changes nothing else: a slow rail still
// helps, and the choice of rails goes by measured rates anyway.

// windowShare is the part of a rail's window that fills rate times delay, the bandwidth-delay product, when the window
// is the cause. The delay of a rail that its window limits is measured too short by the slice's part of the window.
const windowShare = 0.25

// judgePace notes bytes that a full rail has delivered in a time. length is the bytes of the slice that came back last.
func (c *Core) judgePace(r *railState, bytes, length uint64, took time.Duration, now clock.Time) {
	if r.info.Varied {
		return
	}
	share := 1.0
	if r.device.shared {
		share = float64(r.bytes+length) / float64(max(r.device.bytes(), r.bytes)+length)
	}
	expected := r.pace.Expected()
	if !r.pace.See(bytes, share, took) {
		return
	}
	e := event.Event{Kind: event.SlowPathOver, N: int(100 * r.pace.Rate() / expected), Bytes: r.bytes}
	if r.pace.Slow() {
		c.totalsOf(r).slow++
		e.Kind, e.Took, e.Note = event.SlowPath, time.Second, r.whySlow(expected)
	}
	c.railEvent(e, r, now)
}

// whySlow returns the cause in words, as far as the core can tell, and the knob.
func (r *railState) whySlow(expected float64) string {
	of := "usual"
	if r.pace.ByNominal() {
		of = "nominal"
	}
	text := fmt.Sprintf("%.1f MB/s of %s %.1f MB/s; ", r.pace.Rate()/1e6, of, expected/1e6)
	delay := r.meter.Delay()
	if r.meter.Rate()*delay.Seconds() > windowShare*float64(r.bytesMax) {
		return text + fmt.Sprintf("the window of %d bytes allows no more at a delay of %v: raise the window of the "+
			"transport", r.bytesMax, delay)
	}
	return text + fmt.Sprintf("the path itself: look at speed and errors of %s (ethtool, ip -s link), other traffic "+
		"there and at the peer, and the load of both processors", r.device.key.name)
}
