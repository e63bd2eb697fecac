package qos

import (
	"time"

	"github.com/tent-engine/tent/gocore/clock"
)

// Filter makes the NICs of a link take turns in refusing lower classes. HIGH always finds one on which nothing else is
// ahead of it. The zero value refuses nobody.
//
// It applies only while a more urgent class has had work recently. Upstream's filter applies always, and so leaves NICs
// idle that nobody else wants; an empty NIC needs no protection, and the window of LOW bounds the queue before the
// first HIGH slice.
type Filter struct {
	Interval time.Duration // of a rotation
}

// May reports whether a class may use the NIC at a position among n equals, and if not, when to ask again. Of n NICs
// all are open to HIGH, n-1 to MEDIUM and n-2 to LOW at any moment, but always at least one to each; the positions
// rotate.
func (f Filter) May(class, position, n int, now clock.Time) (ok bool, again clock.Time) {
	if f.Interval <= 0 || n <= 1 {
		return true, 0
	}
	interval := clock.Time(f.Interval)
	turn := now / interval
	if (clock.Time(position)+turn)%clock.Time(n) >= clock.Time(min(class, n-1)) {
		return true, 0
	}
	return false, (turn + 1) * interval
}
