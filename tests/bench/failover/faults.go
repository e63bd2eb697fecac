package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/tests/netbed"
)

const (
	before = 250 * time.Millisecond // a fault comes this long after the begin of the traffic
	behind = 250 * time.Millisecond // what is measured behind a fault takes no longer
	runFor = before + 400*time.Millisecond + behind
	settle = 60 * time.Millisecond // of the begin of a run that does not count
)

// kind is a fault of the table.
type kind struct {
	name  string
	lasts time.Duration
	make  func(*world, *netbed.Rail) (clock.Time, error)
	mend  func(*world, *netbed.Rail) error
}

// kinds of faults. What nobody can see from outside begins when it was asked for.
var kinds = []kind{
	{silent, 400 * time.Millisecond, func(_ *world, r *netbed.Rail) (clock.Time, error) {
		return clock.Now(), r.Drop(netbed.Both)
	}, func(_ *world, r *netbed.Rail) error { return r.Heal() }},
	{reset, 0, func(w *world, r *netbed.Rail) (clock.Time, error) {
		n, first, err := r.Abort(w.A)
		if err == nil && n == 0 {
			err = errors.New("no connection was there to be aborted")
		}
		return first, err
	}, func(*world, *netbed.Rail) error { return nil }},
	{linkDown, 400 * time.Millisecond, func(w *world, r *netbed.Rail) (clock.Time, error) {
		return clock.Now(), r.Down(w.A)
	}, func(w *world, r *netbed.Rail) error { return r.Up(w.A) }},
}

const (
	silent   = "silent loss"
	reset    = "reset"
	linkDown = "own link down"
)

// series are the figures of all runs of one kind of fault.
type series struct {
	stall   []time.Duration // beyond the control run beside it
	reroute []time.Duration // slowest small request of those that the fault may have hit, from the fault on
	noticed []time.Duration // from the fault until the engine said so
	back    []time.Duration // from the mending until the rail carries half of its share
	goodput []float64       // against the rails that were up
}

// faults measures the rows about rails that break.
func faults(o options) (table []line, err error) {
	w, err := newWorld(nil, o.rate, o.rate, o.rate, o.rate)
	if err != nil {
		return nil, err
	}
	defer w.close()
	done, bad := 0, 0
	var calm []time.Duration
	all := map[string]*series{}
	for i := range o.runs {
		control, _, err := w.run(before+behind, nil, nil)
		if err != nil {
			return nil, fmt.Errorf("control run %d: %w", i, err)
		}
		calm = append(calm, control.slowest(control.Begin.Add(before)))
		for _, k := range kinds {
			if all[k.name] == nil {
				all[k.name] = &series{}
			}
			err := all[k.name].add(w, o, k, i%len(w.Rails), control)
			done++
			var bytes wrong
			if errors.As(err, &bytes) {
				progress("%s, run %d: %v", k.name, i, err)
				bad++
			} else if err != nil {
				return nil, fmt.Errorf("%s, run %d: %w", k.name, i, err)
			}
		}
		if (i+1)%10 == 0 {
			progress("%d of %d runs", i+1, o.runs)
		}
	}
	return append(summary(all, calm), judge("runs with wrong, lost or late bytes", fmt.Sprintf("%d of %d", bad, done), "0", bad == 0)), nil
}

func summary(all map[string]*series, calm []time.Duration) []line {
	s := all[silent]
	table := []line{
		two("silent loss: longest time without a new acknowledged byte, beyond control", s.stall, 5, 20),
		two("silent loss: until a 64 KiB request has ended over another rail", s.reroute, 20, 50),
		two("reset: the same", all[reset].reroute, 2, 10),
		two("own link down, from the kernel's news on: the same", all[linkDown].reroute, 2, 10),
		{"for comparison: the same at a moment without fault", spread(calm), "", ""},
	}
	for _, k := range kinds {
		table = append(table, line{k.name + ": until the engine says so", spread(all[k.name].noticed), "", ""})
	}
	for _, name := range []string{silent, linkDown} {
		back := all[name].back
		table = append(table, judge(name+": rail good again until it carries half of its share",
			fmt.Sprintf("%s, most %s", spread(back), milli(quantile(back, 1))), "30 ms median, never above 1 s",
			quantile(back, 0.5) <= 30*time.Millisecond && quantile(back, 1) <= time.Second))
	}
	for _, k := range kinds {
		g := quantile(all[k.name].goodput, 0.5)
		table = append(table, judge(k.name+": goodput against the rails that were up", fmt.Sprintf("%.1f %% median", 100*g), "at least 95 %", g >= 0.95))
	}
	return table
}

// add makes a run with the fault and compares it with a control run.
func (s *series) add(w *world, o options, k kind, rail int, control *Trace) error {
	var back clock.Time
	f := &fault{after: before, lasts: k.lasts, make: func() (clock.Time, error) { return k.make(w, w.Rails[rail]) },
		mend: func() error { return k.mend(w, w.Rails[rail]) }}
	trace, at, err := w.run(before+k.lasts+behind, f, func(_ faultTimes, over func() bool) (err error) {
		back, err = w.share(rail, rateOf(control)/float64(len(w.Rails)), over)
		return err
	})
	if err != nil {
		return err
	}
	if o.verbose {
		trace.tell(k.name, at)
	}
	from := at.began
	if i, _ := slices.BinarySearch(trace.News, at.began); k.name == linkDown && i < len(trace.News) {
		from = trace.News[i]
	}
	window := behind - 20*time.Millisecond
	calm := control.Begin.Add(before)
	s.stall = append(s.stall, trace.stall(from, from.Add(window))-control.stall(calm, calm.Add(window)))
	s.reroute = append(s.reroute, trace.slowest(from))
	if noticed := trace.first(from, "rail_suspected", "rail_down"); noticed != 0 {
		s.noticed = append(s.noticed, noticed.Sub(from))
	}
	if back == 0 {
		back = trace.End // it has not
		if o.verbose {
			progress("%s, rail %d: not back", k.name, rail)
		}
	}
	s.back = append(s.back, back.Sub(at.mended))
	s.goodput = append(s.goodput, goodput(control, trace, at, k.lasts > 0))
	return nil
}

// goodput compares the bytes of a run with what the control run says that the rails which were up could carry.
func goodput(control, trace *Trace, at faultTimes, out bool) float64 {
	up := trace.End.Sub(trace.Begin.Add(settle)).Seconds()
	could := rateOf(control) * up
	if out {
		could -= rateOf(control) / 4 * at.mended.Sub(at.there).Seconds()
	}
	return rateOf(trace) * up / could
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
