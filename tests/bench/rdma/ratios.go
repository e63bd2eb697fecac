package main

import (
	"fmt"
	"slices"

	"github.com/tent-engine/tent/tests/bench/report"
)

// ratios are those of rounds, with both sides' figures for people.
type ratios struct {
	list         []float64
	ours, theirs []float64
	format       string
	scale        float64
}

func (r *ratios) add(ours, theirs float64, format string, scale float64) {
	r.list = append(r.list, ours/theirs)
	r.ours, r.theirs = append(r.ours, ours), append(r.theirs, theirs)
	r.format, r.scale = format, scale
}

func (r *ratios) median() float64 { return report.Median(slices.Clone(r.list)) }

// row has the median, its interval of confidence, and the medians of both sides.
func (r *ratios) row(name, target string, reached bool) report.Row {
	low, high := interval(r.list)
	figure := fmt.Sprintf("%.2f (%.2f to %.2f): "+r.format+" beside "+r.format, r.median(), low, high,
		report.Median(slices.Clone(r.ours))*r.scale, report.Median(slices.Clone(r.theirs))*r.scale)
	return report.Judge(name, figure, target, reached)
}

// interval is the one of 95 % around a median, by the ranks of the binomial distribution. With fewer than six numbers
// it is their whole range, and less sure.
func interval(list []float64) (low, high float64) {
	sorted := slices.Sorted(slices.Values(list))
	n := len(sorted)
	if n == 0 {
		return 0, 0
	}
	share := 1.0 // of all outcomes, that exactly k of n fall below the median
	for range n {
		share /= 2
	}
	below, k := 0.0, 0
	for ; k < n/2 && below+share <= 0.025; k++ {
		below += share
		share *= float64(n-k) / float64(k+1)
	}
	k = max(k-1, 0)
	return sorted[k], sorted[n-1-k]
}
