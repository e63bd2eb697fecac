package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/bench/report"
	"github.com/tent-engine/tent/tests/roce"
)

// Classes of priority.
const (
	high = 0
	low  = 2
)

// smallBytes are those of the moves that are watched beside others.
const smallBytes = 64 << 10

// slowest is the 99th percentile of flows together.
func slowest(list ...[]Span) time.Duration {
	var took []time.Duration
	for _, spans := range list {
		for _, s := range spans {
			took = append(took, s.took())
		}
	}
	return report.Quantile(took, 0.99)
}

// withdrawals compares small moves beside a neighbour that cancels each of its moves with those beside one that lets
// them end.
func withdrawals(o *options, pairs []pair) (rows []report.Row, err error) {
	t, err := startTent(pairs, patient)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	var p99 ratios
	for range o.rounds {
		var took [2]time.Duration
		for i, after := range []time.Duration{0, time.Millisecond} {
			flows := several(3, Flow{Op: transport.Write, Class: 1, Bytes: smallBytes})
			flows = append(flows, Flow{Op: transport.Write, Class: 1, Offset: 16 << 20, Bytes: 1 << 20, Cancel: after})
			list, err := t.spans(Work{flows, time.Duration(2 * o.seconds * float64(time.Second))})
			if err != nil {
				return nil, err
			}
			took[i] = slowest(list[:3]...)
		}
		p99.add(float64(took[1]), float64(took[0]), "%.2f ms", 1e-6)
	}
	return []report.Row{p99.row("WRITE 64 KiB beside moves of 1 MiB that are cancelled and that are not, 2 rails, p99",
		"≤ 1.1 times", atMost(1.1))}, nil
}

// classes measures small moves of HIGH alone and beside a flood of LOW, and the rate that the flood keeps. The rail's
// own is bounded at the switch.
func classes(o *options, pairs []pair) (rows []report.Row, err error) {
	if err := roce.Rail(0).Limit(fastRate); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, roce.Rail(0).Heal()) }()
	t, err := startTent(pairs, patient)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	small := Flow{Op: transport.Write, Class: high, Bytes: smallBytes, Gap: 20 * time.Millisecond}
	flood := several(2, Flow{Op: transport.Write, Class: low, Offset: 16 << 20, Bytes: 4 << 20})
	var took, kept ratios
	for range o.rounds {
		length := time.Duration(4 * o.seconds * float64(time.Second))
		alone, err := t.spans(Work{[]Flow{small}, length})
		if err != nil {
			return nil, err
		}
		calm, err := t.spans(Work{flood, length})
		if err != nil {
			return nil, err
		}
		both, err := t.spans(Work{append([]Flow{small}, flood...), length})
		if err != nil {
			return nil, err
		}
		first := small
		first.Gap = time.Hour
		idle, err := t.spans(Work{append([]Flow{first}, flood...), length})
		if err != nil {
			return nil, err
		}
		took.add(float64(slowest(both[0])), float64(slowest(alone[0])), "%.2f ms", 1e-6)
		kept.add(rateOf(idle[1:], 4<<20), rateOf(calm, 4<<20), "%.1f MB/s", 1e-6)
	}
	// One slice of LOW may be on the wire when the small move comes.
	const slice = float64(1<<20) / fastRate * 1e9
	bound := 2 + slice/report.Median(took.theirs)
	return []report.Row{
		took.row("WRITE 64 KiB of HIGH beside a flood of LOW and alone, 1 rail of 40 MB/s, p99",
			fmt.Sprintf("≤ 2 times and a slice of 1 MiB: %.1f", bound), atMost(bound)),
		kept.row("the flood of LOW beside HIGH that is idle, and alone", "≥ 0.9", atLeast(0.9)),
	}, nil
}

// rateOf is the rate of flows together, in bytes/s.
func rateOf(list [][]Span, bytes uint64) (rate float64) {
	for _, spans := range list {
		if n := len(spans); n > 0 {
			rate += float64(n) * float64(bytes) / spans[n-1].End.Sub(spans[0].Begin).Seconds()
		}
	}
	return rate
}
