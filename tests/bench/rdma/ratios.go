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

// limit of a ratio.
type limit struct {
	at   float64
	most bool // else at least
}

func atLeast(ratio float64) limit { return limit{ratio, false} }
func atMost(ratio float64) limit  { return limit{ratio, true} }

// wide is the verdict on an interval that has the limit inside.
const wide = "too wide to say"

// verdict judges an interval of confidence as a whole, and not its middle.
func (l limit) verdict(low, high float64) string {
	if l.most {
		low, high, l.at = -high, -low, -l.at
	}
	switch {
	case low >= l.at:
		return "yes"
	case high < l.at:
		return "no"
	}
	return wide
}

// row has the median, its interval of confidence, and the medians of both sides.
func (r *ratios) row(name, target string, l limit) report.Row {
	low, high := report.Interval(r.list)
	figure := fmt.Sprintf("%.2f (%.2f to %.2f): "+r.format+" beside "+r.format, r.median(), low, high,
		report.Median(slices.Clone(r.ours))*r.scale, report.Median(slices.Clone(r.theirs))*r.scale)
	return report.Row{Name: name, Figure: figure, Target: target, Reached: l.verdict(low, high)}.Of(r.list)
}
