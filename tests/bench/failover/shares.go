package main

import (
	"fmt"
	"time"
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
	return quantile(list, 0.5), smalls, nil
}

// alone measures what one rail carries that has no other beside it, in bytes/s.
func alone(o options) (float64, error) {
	w, err := newWorld(nil, o.rate)
	if err != nil {
		return 0, err
	}
	defer w.close()
	rate, _, err := w.rates(few(o), runFor)
	return rate, err
}

// sum measures rails of several rates against the sum of what they carry alone.
func sum(o options, name string, least float64, rates ...uint64) (line, error) {
	one, err := alone(o)
	if err != nil {
		return line{}, err
	}
	w, err := newWorld(nil, rates...)
	if err != nil {
		return line{}, err
	}
	defer w.close()
	have, _, err := w.rates(few(o), runFor)
	ideal := 0.0
	for _, rate := range rates {
		ideal += one * float64(rate) / float64(o.rate)
	}
	return judge(name+": against the sum of the rails", fmt.Sprintf("%.1f %%", 100*have/ideal), fmt.Sprintf("at least %g %%", 100*least),
		have >= least*ideal), err
}

// rates measures rails of rates 1:2:4.
func rates(o options) ([]line, error) {
	row, err := sum(o, "rails of rates 1:2:4", 0.98, o.rate/2, o.rate, o.rate*2)
	return []line{row}, err
}

// slow measures four rails of which one has a tenth of the rate of the others: all the bytes, and small requests alone,
// beside a program that sends them to its four connections in turn.
func slow(o options) ([]line, error) {
	whole, err := sum(o, "one of four rails at a tenth", 0.95, o.rate, o.rate/10, o.rate, o.rate)
	if err != nil {
		return nil, err
	}
	w, err := newWorld(nil, o.rate, o.rate/10, o.rate, o.rate)
	if err != nil {
		return nil, err
	}
	defer w.close()
	w.load.Bulk, w.load.SmallBurst = 0, 4
	w.load.SmallEvery = time.Duration(4 * smallBytes * float64(time.Second) / (0.2 * 3.1 * float64(o.rate))) // a fifth of what all can carry
	var ours, theirs []time.Duration
	for range few(o) {
		_, smalls, err := w.rates(1, 3*runFor)
		if err != nil {
			return nil, err
		}
		ours = append(ours, smalls...)
		in, err := w.inTurn(3 * runFor)
		if err != nil {
			return nil, err
		}
		theirs = append(theirs, in...)
	}
	a, b := quantile(ours, 0.99), quantile(theirs, 0.99)
	return []line{whole, judge("the same: p99 of 64 KiB requests, beside connections that are used in turn",
		fmt.Sprintf("%s beside %s: %.1f times", milli(a), milli(b), float64(b)/float64(a)), "5 times better", b >= 5*a)}, nil
}

// without are settings of an engine that suspects nobody for as long as anything here takes.
var without = map[string]string{"rail_suspect_ms": "9000", "rail_condemn_ms": "9500"}

// hogs measures healthy rails beside two threads that use all the processor they get, with detection and without.
func hogs(o options) ([]line, error) {
	var worlds [2]*world
	for i, settings := range []map[string]string{nil, without} {
		var err error
		if worlds[i], err = newWorld(settings, o.rate, o.rate, o.rate, o.rate); err != nil {
			return nil, err
		}
		defer worlds[i].close()
	}
	stop, err := hog(2)
	defer stop()
	if err != nil {
		return nil, err
	}
	var ratio []float64
	suspicions, seconds := 0, 0.0
	for range few(o) {
		var rate [2]float64
		for i, w := range worlds {
			trace, _, err := w.run(3*runFor, nil, nil)
			if err != nil {
				return nil, err
			}
			if rate[i] = rateOf(trace); i == 0 {
				suspicions += trace.count("rail_suspected")
				seconds += trace.End.Sub(trace.Begin).Seconds()
			}
		}
		ratio = append(ratio, rate[0]/rate[1])
	}
	each, share := float64(suspicions)/seconds, quantile(ratio, 0.5)
	return []line{
		judge("two hogs beside healthy rails: suspicions", fmt.Sprintf("%.2f a second", each), "at most 1 a second", each <= 1),
		judge("the same: goodput against that without detection", fmt.Sprintf("%.1f %%", 100*share), "at least 97 %", share >= 0.97),
	}, nil
}

// cost measures one rail, as fast as the machine is, with detection and without.
func cost(o options) (table []line, err error) {
	var worlds [2]*world
	for i, settings := range []map[string]string{nil, without} {
		if worlds[i], err = newWorld(settings, 0); err != nil {
			return nil, err
		}
		defer worlds[i].close()
	}
	for _, work := range []struct {
		name string
		args PingArgs
	}{{"4 KiB", PingArgs{4096, 2000}}, {"32 MiB", PingArgs{bulkCount * bulkBytes, 8}}} {
		var ratio []float64
		for round := range 2*few(o) + 1 {
			var p50 [2]time.Duration
			for n := range worlds {
				i := (n + round) % 2 // nobody always comes second
				var took []time.Duration
				if err := worlds[i].near.Call("Load.Ping", work.args, &took); err != nil {
					return nil, err
				}
				p50[i] = quantile(took, 0.5)
			}
			if round > 0 {
				ratio = append(ratio, float64(p50[0])/float64(p50[1]))
			}
		}
		more := quantile(ratio, 0.5) - 1
		table = append(table, judge("nothing fails, one rail, "+work.name+": against an engine without detection", fmt.Sprintf("%+.1f %%", 100*more),
			"at most 2 %", more <= 0.02))
	}
	return table, nil
}
