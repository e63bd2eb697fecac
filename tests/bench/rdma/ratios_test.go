package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/tests/bench/report"
)

// TestAnIntervalAroundTheLimitSaysNeither asks for verdicts on both sides of each kind of limit.
func TestAnIntervalAroundTheLimitSaysNeither(t *testing.T) {
	for _, c := range []struct {
		l         limit
		low, high float64
		verdict   string
	}{
		{atLeast(0.95), 0.95, 1.2, "yes"}, {atLeast(0.95), 0.5, 0.94, "no"}, {atLeast(0.95), 0.94, 1.2, wide},
		{atMost(1.1), 0.9, 1.1, "yes"}, {atMost(1.1), 1.11, 2, "no"}, {atMost(1.1), 0.2, 7, wide},
	} {
		require.Equal(t, c.verdict, c.l.verdict(c.low, c.high), "%v: %v to %v", c.l, c.low, c.high)
	}
}

// TestIntervalsAreThoseOfTheBinomialRanks compares with the usual table of ranks for 95 %.
func TestIntervalsAreThoseOfTheBinomialRanks(t *testing.T) {
	for n, rank := range map[int]int{1: 1, 5: 1, 6: 1, 9: 2, 11: 2, 12: 3, 20: 6, 25: 8} {
		list := make([]float64, n)
		for i := range list {
			list[n-1-i] = float64(i + 1)
		}
		low, high := report.Interval(list)
		require.Equal(t, []float64{float64(rank), float64(n + 1 - rank)}, []float64{low, high}, "%d numbers", n)
	}
}
