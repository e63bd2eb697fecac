package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/tests/netbed"
)

const (
	before = 250 * time.Millisecond // a fault comes this long after the begin of the traffic
	runFor = 1200 * time.Millisecond
	settle = 60 * time.Millisecond // of the begin of a run that does not count
)

// kind is a fault of the table.
type kind struct {
	name  string
	lasts time.Duration
	make  func(*world, *netbed.Rail) error
	mend  func(*world, *netbed.Rail) error
}

var (
	silent = kind{"silent loss", 400 * time.Millisecond,
		func(_ *world, r *netbed.Rail) error { return r.Drop(netbed.Both) }, func(_ *world, r *netbed.Rail) error { return r.Heal() }}
	reset = kind{"reset", 20 * time.Millisecond, func(w *world, r *netbed.Rail) error {
		n, err := r.Abort(w.A)
		if err == nil && n == 0 {
			err = errors.New("no connection was there to be aborted")
		}
		return err
	}, func(*world, *netbed.Rail) error { return nil }}
	linkDown = kind{"own link down", 400 * time.Millisecond,
		func(w *world, r *netbed.Rail) error { return r.Down(w.A) }, func(w *world, r *netbed.Rail) error { return r.Up(w.A) }}
)

// series are the figures of all runs of one kind of fault.
type series struct {
	stall   []time.Duration // beyond the control run beside it
	reroute []time.Duration // slowest small request, from the fault on
	back    []time.Duration // from the mending until the rail carries half of its share
	goodput []float64       // against the rails that were up
	control []time.Duration // slowest small request without fault
}

// faults measures the rows about rails that break.
func faults(o options) (table []line, err error) {
	w, err := newWorld(o.rate, o.rate, o.rate, o.rate)
	if err != nil {
		return nil, err
	}
	defer w.close()
	done, bad := 0, 0
	all := map[string]*series{}
	for _, k := range []kind{silent, reset, linkDown} {
		s := &series{}
		all[k.name] = s
		for i := range o.runs {
			err := s.add(w, o, k, i%len(w.Rails))
			done++
			var bytes wrong
			if errors.As(err, &bytes) {
				progress("%s, run %d: %v", k.name, i, err)
				bad++
			} else if err != nil {
				return nil, fmt.Errorf("%s, run %d: %w", k.name, i, err)
			}
		}
		progress("%s: %d runs", k.name, o.runs)
	}
	s := all[silent.name]
	table = append(table, two("silent loss: longest time without a new acknowledged byte, beyond control", s.stall, 5, 20),
		two("silent loss: until a 64 KiB request has ended over another rail", s.reroute, 20, 50))
	for _, k := range []kind{reset, linkDown} {
		table = append(table, two(k.name+": the same", all[k.name].reroute, 2, 10))
	}
	table = append(table, line{"for comparison, slowest 64 KiB request without fault", spread(s.control), "", ""})
	for _, k := range []kind{silent, linkDown} {
		back := all[k.name].back
		figure := fmt.Sprintf("%s, most %s", spread(back), milli(quantile(back, 1)))
		table = append(table, judge(k.name+": rail good again until it carries half of its share", figure, "30 ms median, never above 1 s",
			quantile(back, 0.5) <= 30*time.Millisecond && quantile(back, 1) <= time.Second))
	}
	for _, k := range []kind{silent, reset, linkDown} {
		g := all[k.name].goodput
		table = append(table, judge(k.name+": goodput against the rails that were up", fmt.Sprintf("%.1f %% median", 100*quantile(g, 0.5)), "at least 95 %",
			quantile(g, 0.5) >= 0.95))
	}
	return append(table, judge("runs with wrong, lost or late bytes", fmt.Sprintf("%d of %d", bad, done), "0", bad == 0)), nil
}

// add makes a control run and a run with the fault.
func (s *series) add(w *world, o options, k kind, rail int) error {
	control, _, err := w.run(runFor, nil, nil)
	if err != nil {
		return err
	}
	var back clock.Time
	f := &fault{after: before, lasts: k.lasts, make: func() error { return k.make(w, w.Rails[rail]) }, mend: func() error { return k.mend(w, w.Rails[rail]) }}
	trace, at, err := w.run(runFor, f, func(_ faultTimes, over func() bool) (err error) {
		back, err = w.share(rail, o.rate, over)
		return err
	})
	if err != nil {
		return err
	}
	from := at.asked
	if k.name == linkDown.name && len(trace.News) > 0 {
		from = trace.News[0]
	}
	window := runFor - before - 100*time.Millisecond
	s.stall = append(s.stall, trace.stall(from, from.Add(window))-control.stall(control.Begin.Add(before), control.Begin.Add(before+window)))
	s.reroute = append(s.reroute, trace.slowest(from))
	s.control = append(s.control, control.slowest(control.Begin.Add(before)))
	if k.name != reset.name {
		if back == 0 {
			back = trace.End // it has not
		}
		s.back = append(s.back, back.Sub(at.mended))
	}
	s.goodput = append(s.goodput, goodput(control, trace, at))
	return nil
}

// goodput compares the bytes of a run with what the control run says that the rails which were up could carry.
func goodput(control, trace *Trace, at faultTimes) float64 {
	of := func(t *Trace) (bytes, seconds float64) {
		from := t.Begin.Add(settle)
		return float64(t.bytes(from, t.End)), t.End.Sub(from).Seconds()
	}
	could, long := of(control)
	had, ran := of(trace)
	up := ran - at.mended.Sub(at.there).Seconds()/4
	return had / (could / long * up)
}

// two is a row with a median and a 99th percentile, in ms.
func two(name string, list []time.Duration, median, p99 float64) line {
	ms := func(v float64) time.Duration { return time.Duration(v * 1e6) }
	return judge(name, spread(list), fmt.Sprintf("%g ms median, %g ms p99", median, p99),
		quantile(list, 0.5) <= ms(median) && quantile(list, 0.99) <= ms(p99))
}

func spread(list []time.Duration) string {
	return fmt.Sprintf("%s median, %s p99", milli(quantile(list, 0.5)), milli(quantile(list, 0.99)))
}
