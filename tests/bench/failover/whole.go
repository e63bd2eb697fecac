package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/tests/bench/report"
	"github.com/tent-engine/tent/tests/forked"
)

// wholeBytes is one request that begins before a fault and ends behind it.
const wholeBytes = 256 << 20

const (
	wholeCalm = "whole: calm"
	wholeCost = "whole: " // and the kind of the fault
)

// whole measures one long request while a rail is away for a time. Its cost is the time beyond that of a request
// without fault in the same round, and beyond the part that the other rails have to carry.
func whole(o options, f figures) error {
	w, err := newWorldOf(wholeBytes, nil, o.rate, o.rate, o.rate, o.rate)
	if err != nil {
		return err
	}
	defer w.close()
	for i := range few(o) {
		if err := undisturbed(o, f, func() error { return wholeRound(w, o, f, i) }); err != nil {
			return err
		}
	}
	return nil
}

func wholeRound(w *world, o options, f figures, i int) error {
	control, _, err := w.one(nil)
	if err != nil {
		return err
	}
	calm := control.End.Sub(control.Begin)
	costs := map[string]time.Duration{}
	for _, k := range kinds {
		if k.lasts == 0 {
			continue
		}
		rail := w.Rails[i%len(w.Rails)]
		trouble := &fault{after: before, lasts: k.lasts,
			make: func() (clock.Time, error) { return k.make(w, rail) },
			mend: func() error { return k.mend(w, rail) }}
		trace, at, err := w.one(trouble)
		if err != nil {
			return fmt.Errorf("%s: %w", k.name, err)
		}
		took := trace.End.Sub(trace.Begin)
		costs[k.name] = took - calm - at.mended.Sub(at.there)/time.Duration(len(w.Rails))
		if o.verbose {
			report.Progress("%s: %v, %v calm, %v without the rail", k.name, took, calm, at.mended.Sub(at.there))
			trace.tell(k.name, at)
		}
	}
	f.addTime(wholeCalm, calm)
	for name, cost := range costs {
		f.addTime(wholeCost+name, cost)
	}
	return nil
}

// one moves all of the region by one request while a fault comes and goes, and looks at every byte.
func (w *world) one(f *fault) (*Trace, faultTimes, error) {
	trace, at, err := w.traced("Load.Whole", forked.Nothing{}, f, nil)
	if err == nil {
		err = errors.Join(w.far.Call("Load.Check", w.seed, &forked.Nothing{}), w.awaitRails())
	}
	return trace, at, err
}

func wholeRows(_ options, f figures) (table []report.Row) {
	for _, k := range slices.DeleteFunc(slices.Clone(kinds), func(k kind) bool { return k.lasts == 0 }) {
		cost := f.median(wholeCost + k.name)
		table = append(table, report.Judge(
			fmt.Sprintf("%s for %v under a WRITE of 256 MiB: beyond the time of the other rails", k.name, k.lasts),
			fmt.Sprintf("%s median, %s most, of %s", milli(cost), milli(f.quantile(wholeCost+k.name, 1)),
				milli(f.median(wholeCalm))), "100 ms median", len(f[wholeCalm]) > 0 && cost <= 100e6))
	}
	return table
}
