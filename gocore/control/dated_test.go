package control

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/control/controlpb"
	"github.com/tent-engine/tent/gocore/segment"
)

// The clocks of two hosts have nothing in common, so the time between question and answer counts against a region. On
// one host they are the same, and nothing is lost. An older peer says nothing.
func TestARegionIsDatedOnOurClockAndNeverEarlier(t *testing.T) {
	asked, answered := clock.Time(10*time.Second), clock.Time(10*time.Second+time.Millisecond)
	for _, c := range []struct {
		name       string
		registered []uint64
		now        time.Duration // of the peer's clock, within the two moments of ours
		want       clock.Time
	}{
		{"the clock of this host", []uint64{uint64(9 * time.Second)}, 10*time.Second + 500*time.Microsecond,
			clock.Time(9 * time.Second)},
		{"a clock ahead", []uint64{uint64(99 * time.Second)}, 100 * time.Second,
			clock.Time(9*time.Second + time.Millisecond)},
		{"a clock behind", []uint64{uint64(time.Second)}, 2 * time.Second,
			clock.Time(9*time.Second + time.Millisecond)},
		{"longer ago than we run", []uint64{uint64(time.Second)}, 100 * time.Second, 1},
		{"not said", []uint64{0}, 2 * time.Second, 0},
		{"an older peer", nil, 0, 0},
		{"of other regions", []uint64{5, 6}, 7, 0},
	} {
		regions := make([]segment.Region, 1)
		date(regions, &controlpb.DescribeReply{Registered: c.registered, Now: uint64(c.now)}, asked, answered)
		require.Equal(t, c.want, regions[0].Registered, c.name)
	}
}
