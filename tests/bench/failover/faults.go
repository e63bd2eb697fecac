package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/tests/bench/report"
	"github.com/tent-engine/tent/tests/netbed"
)

const (
	before = 250 * time.Millisecond // a fault comes this long after the begin of the traffic
	behind = 250 * time.Millisecond // no measurement behind a fault takes longer
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

// kinds of faults. One that cannot be seen from outside begins when it was asked for.
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

// Names of figures of one kind of fault, behind its own name; calmSmall and those of runs stand alone.
const (
	stall     = ": stall"    // longest time without a new byte, beyond the control run beside it
	moved     = ": moved"    // slowest of the small requests that were on the rail, in runs that have any
	all       = ": small"    // slowest of all small requests of that time
	noticed   = ": noticed"  // from the fault until the engine said so
	back      = ": back"     // from the mending until the rail carries half of its share
	goodputOf = ": goodput"  // against the rails that were up
	calmSmall = "calm small" // slowest small request of as long a time without fault
	calmRate  = "calm rate"  // of all rails together, in bytes/s
	badRuns   = "wrong bytes"
)

// faults measures the rows about rails that break.
func faults(o options, f figures) error {
	w, err := newWorld(nil, o.rate, o.rate, o.rate, o.rate)
	if err != nil {
		return err
	}
	defer w.close()
	w.load.SmallEvery /= 2 // so that more often than not one is on the rail when that breaks
	for i := range o.runs {
		if err := roundOf(w, o, f, i); err != nil {
			return fmt.Errorf("run %d: %w", i, err)
		}
		if (i+1)%10 == 0 {
			report.Progress("%d of %d runs", i+1, o.runs)
		}
	}
	return nil
}

// roundOf makes a run without fault and one with each.
func roundOf(w *world, o options, f figures, i int) error {
	var control *Trace
	if err := undisturbed(o, f, func() (err error) {
		control, _, err = w.run(before+behind, nil, nil)
		return err
	}); err != nil {
		return err
	}
	f.add(calmRate, rateOf(control))
	f.addTime(calmSmall, control.slowest(control.Begin.Add(before), false))
	for _, k := range kinds {
		var seen sight
		bad := 0.0
		err := undisturbed(o, f, func() (err error) {
			seen, err = k.run(w, i%len(w.Rails), control)
			return err
		})
		var bytes wrong
		if errors.As(err, &bytes) {
			report.Progress("%s, run %d: %v", k.name, i, err)
			bad = 1
		} else if err != nil {
			return fmt.Errorf("%s: %w", k.name, err)
		}
		if f.add(badRuns, bad); bad == 0 {
			k.enter(o, f, &seen, control)
		}
	}
	return nil
}

func faultRows(_ options, f figures) []report.Row {
	if len(f[badRuns]) == 0 {
		return nil
	}
	until := func(k string, median, p99 float64) report.Row {
		return f.two(fmt.Sprintf("%s: until a 64 KiB request that was on the rail has ended (%d runs have one)", k,
			len(f[k+moved])),
			k+moved, median, p99)
	}
	table := []report.Row{
		f.two("silent loss: longest time without a new acknowledged byte, beyond control", silent+stall, 5, 20),
		until(silent, 20, 50), until(reset, 2, 10), until(linkDown, 2, 10),
	}
	for _, k := range kinds {
		table = append(table, report.Beside(k.name+": slowest of all 64 KiB requests of these 30 ms",
			f.spread(k.name+all)))
	}
	table = append(table, report.Beside("for comparison: the same at a moment without fault", f.spread(calmSmall)),
		report.Beside("for comparison: bytes of requests, all rails together, without fault",
			fmt.Sprintf("%.0f MB/s median", f.median(calmRate)/1e6)))
	for _, k := range kinds {
		table = append(table, report.Beside(k.name+": until the engine says so", f.spread(k.name+noticed)))
	}
	for _, name := range []string{silent, linkDown} {
		most := f.quantile(name+back, 1)
		table = append(table, report.Judge(name+": rail good again until it carries half of its share",
			fmt.Sprintf("%s, most %s", f.spread(name+back), milli(most)), "30 ms median, never above 1 s",
			f.median(name+back) <= 30e6 && most <= 1e9).Of(f[name+back]))
	}
	for _, k := range kinds {
		g := f.median(k.name + goodputOf)
		table = append(table, report.Judge(k.name+": goodput against the rails that were up",
			fmt.Sprintf("%.1f %% median", 100*g), "at least 95 %", g >= 0.95).Of(f[k.name+goodputOf]))
	}
	bad := f.sum(badRuns)
	return append(table, report.Judge("runs with wrong, lost or late bytes",
		fmt.Sprintf("%.0f of %d", bad, len(f[badRuns])), "0", bad == 0))
}

// sight is the result of a run with a fault.
type sight struct {
	trace *Trace
	at    faultTimes
	rail  int
	again clock.Time // when the rail had half of its share again, 0 if it had not
}

// run makes a run with the fault.
func (k kind) run(w *world, rail int, control *Trace) (s sight, err error) {
	s.rail = rail
	trouble := &fault{after: before, lasts: k.lasts,
		make: func() (clock.Time, error) { return k.make(w, w.Rails[rail]) },
		mend: func() error { return k.mend(w, w.Rails[rail]) }}
	s.trace, s.at, err = w.run(before+k.lasts+behind, trouble, func(_ faultTimes, over func() bool) (err error) {
		s.again, err = w.share(rail, rateOf(control)/float64(len(w.Rails)), over)
		return err
	})
	return s, err
}

// enter adds the result to the figures, beside that of the control run.
func (k kind) enter(o options, f figures, s *sight, control *Trace) {
	trace, at := s.trace, s.at
	if o.verbose {
		trace.tell(k.name, at)
	}
	from := at.began
	if i, _ := slices.BinarySearch(trace.News, at.began); k.name == linkDown && i < len(trace.News) {
		from = trace.News[i]
	}
	window := behind - 20*time.Millisecond
	calm := control.Begin.Add(before)
	f.addTime(k.name+stall, trace.stall(from, from.Add(window))-control.stall(calm, calm.Add(window)))
	f.addTime(k.name+all, trace.slowest(from, false))
	if took := trace.slowest(from, true); took > 0 {
		f.addTime(k.name+moved, took)
	}
	if first := trace.first(at.began, "rail_suspected", "rail_down"); first != 0 {
		f.addTime(k.name+noticed, max(0, first.Sub(from))) // the engine may hear the kernel's news before us
	}
	if s.again == 0 {
		s.again = trace.End // it is not back
		if o.verbose {
			report.Progress("%s, rail %d: not back", k.name, s.rail)
		}
	}
	f.addTime(k.name+back, s.again.Sub(at.mended))
	f.add(k.name+goodputOf, goodput(control, trace, at, k.lasts > 0))
}

// goodput compares the bytes of a run with the capacity of the rails that were up, by the control run.
func goodput(control, trace *Trace, at faultTimes, out bool) float64 {
	up := trace.End.Sub(trace.Begin.Add(settle)).Seconds()
	could := rateOf(control) * up
	if out {
		could -= rateOf(control) / 4 * at.mended.Sub(at.there).Seconds()
	}
	return rateOf(trace) * up / could
}
