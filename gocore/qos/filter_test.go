package qos

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
)

func TestFilterAdmitsAsTheSeedSays(t *testing.T) {
	f := Filter{Interval: 200 * time.Microsecond}
	for _, c := range []struct{ n, high, medium, low int }{{1, 1, 1, 1}, {2, 2, 1, 1}, {3, 3, 2, 1}, {4, 4, 3, 2},
		{8, 8, 7, 6}} {
		uses := make([][Classes]int, c.n)
		for turn := range 10 * c.n {
			now := clock.Time(time.Hour) + clock.Time(turn)*clock.Time(f.Interval) + clock.Time(turn%200)
			for class, want := range [Classes]int{c.high, c.medium, c.low} {
				open := 0
				for position := range c.n {
					ok, again := f.May(class, position, c.n, now)
					if ok {
						open++
						uses[position][class]++
						continue
					}
					require.Greater(t, again, now)
					require.LessOrEqual(t, again.Sub(now), f.Interval)
				}
				require.Equal(t, want, open, "class %d of %d NICs", class, c.n)
			}
		}
		for _, u := range uses { // each NIC has its turn
			require.Equal(t, [Classes]int{10 * c.high, 10 * c.medium, 10 * c.low}, u)
		}
	}
}

func TestNoFilterRefusesNobody(t *testing.T) {
	for position := range 3 {
		ok, _ := Filter{}.May(Low, position, 3, 12345)
		require.True(t, ok)
	}
}
