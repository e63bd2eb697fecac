package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestIntervalsAreThoseOfTheBinomialRanks compares with the usual table of ranks for 95 %.
func TestIntervalsAreThoseOfTheBinomialRanks(t *testing.T) {
	for n, rank := range map[int]int{1: 1, 5: 1, 6: 1, 9: 2, 11: 2, 12: 3, 20: 6, 25: 8} {
		list := make([]float64, n)
		for i := range list {
			list[n-1-i] = float64(i + 1)
		}
		low, high := interval(list)
		require.Equal(t, []float64{float64(rank), float64(n + 1 - rank)}, []float64{low, high}, "%d numbers", n)
	}
}
