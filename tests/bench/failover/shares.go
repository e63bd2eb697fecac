package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tent-engine/tent/tests/bench/report"
)

// few is how often rows are measured that have no tail worth looking at.
func few(o options) int { return max(3, min(o.runs/10, 20)) }

// rateOf is the rate of a run without its beginning, in bytes/s.
func rateOf(t *Trace) float64 {
	from := t.Begin.Add(settle)
	return float64(t.bytes(from, t.End)) / t.End.Sub(from).Seconds()
}

// median rate of some runs, and all small requests of them.
func (w *world) rates(n int, long time.Duration) (rate float64, smalls []time.Duration, err error) {
	var list []float64
	for range n {
		trace, _, err := w.run(long, nil, nil)
		if err != nil {
			return 0, nil, err
		}
		list = append(list, rateOf(trace))
		smalls = append(smalls, trace.latencies()...)
	}
	return report.Quantile(list, 0.5), smalls, nil
}

// ideal and have are names of rates: the sum of the rails alone, and the rate of all together, both of one round.
const (
	ideal = ": ideal"
	have  = ": have"
)

// together measures rails of several rates in rounds: each rate alone, then all together, all with the usual small
// requests or all without. Only the two sums of one round are compared: a machine that is disturbed in one series and
// calm in the next gives any ratio.
func together(o options, f figures, name string, smalls bool, rates ...uint64) error {
	alone := map[uint64]*world{}
	defer func() {
		for _, w := range alone {
			w.close()
		}
	}()
	for _, rate := range rates {
		if alone[rate] != nil {
			continue
		}
		w, err := newWorld(nil, rate)
		if err != nil {
			return err
		}
		alone[rate] = w
	}
	all, err := newWorld(nil, rates...)
	if err != nil {
		return err
	}
	defer all.close()
	if !smalls {
		for _, w := range append(slices.Collect(maps.Values(alone)), all) {
			w.load.SmallEvery = 0
		}
	}
	for range few(o) {
		var could, got float64
		if err := undisturbed(o, f, func() (err error) {
			could, got, err = roundTogether(o, alone, all, rates)
			return err
		}); err != nil {
			return err
		}
		f.add(name+ideal, could)
		f.add(name+have, got)
	}
	return nil
}

// roundTogether measures each rate alone, and then all rails together.
func roundTogether(o options, alone map[uint64]*world, all *world, rates []uint64) (could, got float64,
	err error) {
	each := map[uint64]float64{}
	for rate, w := range alone {
		if each[rate], _, err = w.rates(1, runFor); err != nil {
			return 0, 0, err
		}
	}
	for _, rate := range rates {
		could += each[rate]
	}
	got, _, err = all.rates(1, runFor)
	if o.verbose {
		report.Progress("alone %v, together %.0f bytes/s", each, got)
	}
	return could, got, errors.Join(err, slowAlone(each))
}

// aloneLeast is the share of its limit that a rail carries alone while nothing else wants the processors. Headers take
// 4 % of the limit.
const aloneLeast = 0.92

// slowAlone returns an error where a rail alone is far below its limit: the machine was busy. A sum of such rates is no
// bound for all rails together, which are measured at another moment.
func slowAlone(each map[uint64]float64) error {
	for limit, rate := range each {
		if limit > 0 && rate < aloneLeast*float64(limit) {
			return fmt.Errorf("%w: a rail of %.0f MB/s carried %.0f alone", errAgain, float64(limit)/1e6, rate/1e6)
		}
	}
	return nil
}

// shareMost is the largest share of their sum that rails can have together. Beyond it a rail was slower alone than
// beside others, so the machine and not tent was measured.
const shareMost = 1.03

// togetherRow has no target where least is 0.
func togetherRow(f figures, name string, least float64) report.Row {
	var shares []float64
	for i := range min(len(f[name+have]), len(f[name+ideal])) {
		shares = append(shares, f[name+have][i]/f[name+ideal][i])
	}
	share := report.Median(shares)
	name += ": against the sum of the rails, each alone in the same round"
	figure := fmt.Sprintf("%.1f %% median of %d rounds", 100*share, len(shares))
	if least == 0 {
		return report.Beside(name, figure).Of(shares)
	}
	row := report.Judge(name, figure, fmt.Sprintf("at least %g %%", 100*least), share >= least).Of(shares)
	if share > shareMost {
		row.Reached = "not said: a rail was slower alone than beside others"
	}
	return row
}

const (
	oneTwoFour = "rails of rates 1:2:4"
	besideHigh = "rails of rates 1:2:4, beside small requests of HIGH"
	aTenth     = "one of four rails at a tenth"
	oursSmall  = "small beside a slow rail"
	inTurn     = "small in turn"
)

// rates measures rails of rates 1:2:4, with the flood alone and beside the usual small requests.
func rates(o options, f figures) error {
	err := together(o, f, oneTwoFour, false, o.rate/2, o.rate, o.rate*2)
	if err == nil {
		err = together(o, f, besideHigh, true, o.rate/2, o.rate, o.rate*2)
	}
	return err
}

func rateRows(_ options, f figures) []report.Row {
	return []report.Row{togetherRow(f, oneTwoFour, 0.98), togetherRow(f, besideHigh, 0)}
}

// slow measures four rails of which one has a tenth of the rate of the others. It counts all the bytes, and small
// requests alone, beside a program that sends them to its four connections in turn.
func slow(o options, f figures) error {
	if err := together(o, f, aTenth, true, o.rate, o.rate/10, o.rate, o.rate); err != nil {
		return err
	}
	w, err := newWorld(nil, o.rate, o.rate/10, o.rate, o.rate)
	if err != nil {
		return err
	}
	defer w.close()
	w.load.Bulk, w.load.SmallBurst = 0, 4
	// a fifth of the capacity of all
	w.load.SmallEvery = time.Duration(4 * smallBytes * float64(time.Second) / (0.2 * 3.1 * float64(o.rate)))
	for range few(o) {
		_, smalls, err := w.rates(1, 3*runFor)
		if err != nil {
			return err
		}
		theirs, err := w.inTurn(3 * runFor)
		if err != nil {
			return err
		}
		for i, list := range [][]time.Duration{smalls, theirs} {
			for _, took := range list {
				f.addTime([]string{oursSmall, inTurn}[i], took)
			}
		}
	}
	return nil
}

func slowRows(_ options, f figures) []report.Row {
	a, b := f.quantile(oursSmall, 0.99), f.quantile(inTurn, 0.99)
	return []report.Row{togetherRow(f, aTenth, 0.95),
		report.Judge("the same: p99 of 64 KiB requests, beside connections that are used in turn",
			fmt.Sprintf("%s beside %s: %.1f times", milli(a), milli(b), b/a), "5 times better", b >= 5*a)}
}
