package main

import (
	"fmt"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/bench/report"
)

// clients is how many flood at once, each with two requests of clientBytes under way. These are longer than a slice,
// and shorter than the flood of other rows, or the queue of a class would not come round within a run.
const (
	clients     = 10
	clientBytes = 1 << 20
)

// fair measures ten clients of one engine that flood one peer in one class.
func fair(o options, p place) ([]report.Row, error) {
	w, err := newWorld(p, 1, nil)
	if err != nil {
		return nil, err
	}
	defer w.close()
	var index, rate []float64
	for round := range o.rounds {
		p := w.pairs[0]
		if err := p.fill(); err != nil {
			return nil, err
		}
		work := Work{Op: transport.Write}
		for range clients {
			work.Floods = append(work.Floods, Flood{dispatch.Low, clientBytes, 2})
		}
		done := make([][]Place, 1)
		seen, err := w.together(o.long, done, work)
		if err != nil {
			return nil, err
		}
		if err := p.verify(work.Op, done[0]); err != nil {
			return nil, err
		}
		share, bytes := jain(seen[0].Flooded)
		index, rate = append(index, share), append(rate, bytes/o.long.Seconds())
		report.Progress("%s round %d: fairness %.3f, %.1f MB/s", w.name, round, share, rate[round]/1e6)
	}
	least := report.Quantile(index, 0)
	return []report.Row{report.Judge(fmt.Sprintf("%d clients of one engine flood in one class, %s: Jain's index",
		clients, w.name),
		fmt.Sprintf("%.3f median, %.3f least, %.0f MB/s", report.Median(index), least, report.Median(rate)/1e6),
		"at least 0.95", report.Median(index) >= 0.95).Of(index)}, nil
}

// jain is the index of fairness: 1 when all have the same, 1/n when one has everything.
func jain(list []uint64) (index, sum float64) {
	squares := 0.0
	for _, n := range list {
		sum += float64(n)
		squares += float64(n) * float64(n)
	}
	if squares == 0 {
		return 0, 0
	}
	return sum * sum / (float64(len(list)) * squares), sum
}
