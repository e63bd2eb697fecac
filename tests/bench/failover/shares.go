package main

import (
	"errors"
	"fmt"
	"time"
)

// slow measures four rails of which one has a tenth of the rate of the others.
func slow(o options) ([]line, error) {
	tenth, err := newWorld(o.rate, o.rate/10, o.rate, o.rate)
	if err != nil {
		return nil, err
	}
	defer tenth.close()
	one, err := calibrate(o)
	if err != nil {
		return nil, err
	}
	var ratio []float64
	var smalls []time.Duration
	for range few(o) {
		trace, _, err := tenth.run(runFor, nil, nil)
		if err != nil {
			return nil, err
		}
		ratio = append(ratio, rateOf(trace)/(one*3.1))
		smalls = append(smalls, trace.latencies()...)
	}
	figure := quantile(ratio, 0.5)
	return []line{
		judge("one of four rails at a tenth: against the sum of the rates", fmt.Sprintf("%.1f %%", 100*figure), "at least 95 %", figure >= 0.95),
		{"the same: 64 KiB requests beside it", fmt.Sprintf("%s median, %s p99", milli(quantile(smalls, 0.5)), milli(quantile(smalls, 0.99))), "", ""},
	}, nil
}

// rates measures rails of rates 1:2:4.
func rates(o options) ([]line, error) {
	w, err := newWorld(o.rate/2, o.rate, o.rate*2)
	if err != nil {
		return nil, err
	}
	defer w.close()
	one, err := calibrate(o)
	if err != nil {
		return nil, err
	}
	var ratio []float64
	for range few(o) {
		trace, _, err := w.run(runFor, nil, nil)
		if err != nil {
			return nil, err
		}
		ratio = append(ratio, rateOf(trace)/(one*3.5))
	}
	figure := quantile(ratio, 0.5)
	return []line{judge("rails of rates 1:2:4: against the sum", fmt.Sprintf("%.1f %%", 100*figure), "at least 98 %", figure >= 0.98)}, nil
}

// few is how often rows are measured that have no tail worth looking at.
func few(o options) int { return max(3, min(o.runs/10, 20)) }

// calibrate returns what one rail alone carries, in bytes/s.
func calibrate(o options) (float64, error) {
	w, err := newWorld(o.rate)
	if err != nil {
		return 0, err
	}
	defer w.close()
	var list []float64
	for range few(o) {
		trace, _, err := w.run(runFor, nil, nil)
		if err != nil {
			return 0, err
		}
		list = append(list, rateOf(trace))
	}
	return quantile(list, 0.5), nil
}

// rateOf is the rate of a run without its beginning, in bytes/s.
func rateOf(t *Trace) float64 {
	from := t.Begin.Add(settle)
	return float64(t.bytes(from, t.End)) / t.End.Sub(from).Seconds()
}

// hogs measures healthy rails beside two threads that use all the processor they get.
func hogs(o options) ([]line, error) {
	w, err := newWorld(o.rate, o.rate, o.rate, o.rate)
	if err != nil {
		return nil, err
	}
	defer w.close()
	var calm, busy []float64
	suspicions, seconds := 0, 0.0
	for range few(o) {
		trace, _, err := w.run(runFor, nil, nil)
		if err != nil {
			return nil, err
		}
		calm = append(calm, rateOf(trace))
		stop := hog(2)
		trace, _, err = w.run(runFor, nil, nil)
		if err = errors.Join(err, stop()); err != nil {
			return nil, err
		}
		busy = append(busy, rateOf(trace))
		suspicions += trace.count("rail_suspected")
		seconds += trace.End.Sub(trace.Begin).Seconds()
	}
	each := float64(suspicions) / seconds
	return []line{
		judge("two hogs beside healthy rails: suspicions", fmt.Sprintf("%.2f a second", each), "at most 1 a second", each <= 1),
		{"the same: goodput against that without hogs", fmt.Sprintf("%.1f %%", 100*quantile(busy, 0.5)/quantile(calm, 0.5)), "", ""},
	}, nil
}
