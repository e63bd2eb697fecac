package rail

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// paced feeds a second of samples of one rate, and reports whether anything changed.
func paced(p *Pace, rate, share float64) (changed bool) {
	const sample = 10 * time.Millisecond
	for range int(paceWindow / sample) {
		changed = p.See(uint64(rate*share*sample.Seconds()), share, sample) || changed
	}
	return changed
}

func TestARailBelowHalfOfItsUsualRateIsSlow(t *testing.T) {
	var p Pace
	p.Reset(0)
	require.False(t, paced(&p, 1e9, 1), "nothing was expected of it")
	require.False(t, paced(&p, 0.51e9, 1))
	require.True(t, paced(&p, 0.45e9, 1))
	require.True(t, p.Slow())
	require.False(t, p.ByNominal())
	require.InEpsilon(t, 0.45e9, p.Rate(), 0.01)
	require.InEpsilon(t, 1e9, p.Expected(), 0.01)
	require.False(t, paced(&p, 0.45e9, 1), "it is slow already")
	require.False(t, paced(&p, 0.7e9, 1), "not yet: a rail at the edge would come and go")
	require.True(t, paced(&p, 0.8e9, 1))
	require.False(t, p.Slow())
}

func TestARailBelowHalfOfTheNominalRateIsSlow(t *testing.T) {
	var p Pace
	p.Reset(10e9)
	require.True(t, paced(&p, 3e9, 1))
	require.True(t, p.ByNominal())
	p.Reset(10e9)
	require.False(t, p.Slow())
	require.False(t, paced(&p, 6e9, 1))
}

// Four rails of one NIC have a quarter each, and none of them is slow.
func TestAShareOfTheNICIsNotSlow(t *testing.T) {
	var p Pace
	p.Reset(10e9)
	require.False(t, paced(&p, 9e9, 1))
	require.False(t, paced(&p, 9e9, 0.25), "2.25e9 of its own")
	require.True(t, paced(&p, 3e9, 0.25))
}

func TestLessThanAWindowSaysNothing(t *testing.T) {
	var p Pace
	p.Reset(10e9)
	require.False(t, p.See(1, 1, paceWindow-1))
	require.False(t, p.Slow())
	require.True(t, p.See(1, 1, 1), "time on the full rail adds up, with pauses between")
}

// A path that stays slow becomes the usual one in the end.
func TestTheUsualRateFades(t *testing.T) {
	var p Pace
	p.Reset(0)
	paced(&p, 1e9, 1)
	require.True(t, paced(&p, 0.2e9, 1))
	windows := 0
	for p.Slow() && windows < 10*paceMemory {
		paced(&p, 0.2e9, 1)
		windows++
	}
	require.Greater(t, windows, paceMemory/2)
	require.Less(t, windows, 10*paceMemory)
}
