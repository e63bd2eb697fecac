package tcp

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
)

// tries lets a rail that went down fail until the time is over, each try as long as its limit, and returns when tries began.
func tries(r *rail, now clock.Time, long time.Duration) (begins []time.Duration) {
	for start := now; now.Sub(start) < long; now = max(now, r.due) {
		begins = append(begins, now.Sub(start))
		limit, _ := r.patience(500 * time.Millisecond)
		began := now
		now = now.Add(limit)
		r.failed(began, now)
	}
	return begins
}

func TestARailThatCameBackIsTriedWithinASecond(t *testing.T) {
	const start = clock.Time(time.Hour)
	r := &rail{trip: time.Millisecond, since: start.Add(-time.Minute)}
	r.wentDown(start)
	require.Equal(t, start, r.due, "the first try is made at once")
	begins := tries(r, start, 5*time.Minute)
	for i, at := range begins[1:] {
		gap := at - begins[i]
		require.Less(t, gap, time.Second, "try %d", i)
		require.GreaterOrEqual(t, gap, tryLeast)
	}
	require.Less(t, len(begins), 5*60*4, "four tries a second are the most")
}

func TestAPathThatIsLongGetsFourRoundTrips(t *testing.T) {
	r := &rail{trip: 80 * time.Millisecond}
	limit, scout := r.patience(500 * time.Millisecond)
	require.Equal(t, 320*time.Millisecond, limit)
	require.False(t, scout, "the path was good a moment ago")
	r.tries = 3
	limit, scout = r.patience(500 * time.Millisecond)
	require.Equal(t, 500*time.Millisecond, limit, "now and then all the time there is")
	require.True(t, scout)
}

func TestARailThatFlapsDoesNotSpin(t *testing.T) {
	now := clock.Time(time.Hour)
	r := &rail{since: now.Add(-time.Minute)}
	for i := range 20 {
		r.wentDown(now)
		if i > 6 {
			require.GreaterOrEqual(t, r.due.Sub(now), tryMost*3/4)
		}
		now = r.due.Add(time.Millisecond) // up, and broken again a millisecond later
		r.since = r.due
	}
	now = now.Add(steady)
	r.wentDown(now)
	require.Equal(t, now, r.due, "a second of good service is enough to be tried at once again")
}

func TestAlternatesAreDialledWhileARailOfTheirEndsIsDown(t *testing.T) {
	now := clock.Time(time.Hour)
	l := &link{}
	var rails []*rail
	ends := []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")}
	add := func(i, j int, alternate bool) *rail {
		r := &rail{link: l, index: uint16(len(rails)), local: ends[i], remote: netip.AddrPortFrom(ends[j], 1), alternate: alternate, since: now}
		r.set = &laneSet{rail: r}
		rails = append(rails, r)
		return r
	}
	first, _, _ := add(0, 0, false), add(1, 1, false), add(2, 2, false)
	near, far, other := add(0, 1, true), add(1, 0, true), add(1, 2, true)
	l.rails.Store(&rails)
	require.Zero(t, l.wantedFrom(first))
	for _, r := range []*rail{near, far, other} {
		require.Equal(t, clock.Never, l.wantedFrom(r), "everything is up")
	}
	first.set, first.since = nil, now
	for _, r := range []*rail{near, far} {
		require.Equal(t, now.Add(alternateAfter), l.wantedFrom(r))
	}
	require.Equal(t, clock.Never, l.wantedFrom(other), "both its ends are served")
	over := append(rails, &rail{link: l, local: netip.MustParseAddr("10.0.0.9"), remote: near.remote, alternate: true})
	l.rails.Store(&over)
	require.Zero(t, l.wantedFrom(over[len(over)-1]), "an end that no rail has")
}
