package main

import (
	"fmt"
	"time"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/bench/report"
	"github.com/tent-engine/tent/tests/netbed"
)

// The cost of detection while nothing fails. An engine with it takes turns with one that suspects no rail for the whole
// run, and with a third one that has it too, which shows how far two equal engines differ here.
const (
	detects = iota
	suspectsNobody
	detectsToo
	engines
)

var without = map[string]string{"rail_suspect_ms": "9000", "rail_condemn_ms": "9500"}

const (
	hogGoodput   = "hogs: goodput"
	hogSeconds   = "hogs: seconds"
	hogSuspected = "hogs: suspicions"
	costOf       = "cost: "
	control      = ", the same engine twice" // behind names of figures
)

// trio makes three worlds with the same rails.
func trio(bytes int, rates ...uint64) (worlds [engines]*world, end func(), err error) {
	end = func() {
		for _, w := range worlds {
			if w != nil {
				w.close()
			}
		}
	}
	for i := range worlds {
		var settings map[string]string
		if i == suspectsNobody {
			settings = without
		}
		if worlds[i], err = newWorldOf(bytes, settings, rates...); err != nil {
			end()
			return worlds, nil, err
		}
	}
	return worlds, end, nil
}

// inTurns has each world measure, beginning with another one each time.
func inTurns(worlds [engines]*world, round int, measure func(i int, w *world) error) error {
	for n := range worlds {
		i := (n + round) % len(worlds)
		if err := measure(i, worlds[i]); err != nil {
			return err
		}
	}
	return nil
}

// hogRounds is how often each world has its turn in a run.
const hogRounds = 2

// hogs measures healthy rails beside two programs that use all the processor they get. The memory that an engine
// happens to get makes a difference of its own, in these rows and in those of cost, so every run has new engines and
// counts once.
func hogs(o options, f figures) error {
	for range max(1, o.runs/4) {
		if err := hogRun(o, f); err != nil {
			return err
		}
	}
	return nil
}

func hogRun(o options, f figures) error {
	worlds, end, err := trio(regionBytes, o.rate, o.rate, o.rate, o.rate)
	if err != nil {
		return err
	}
	defer end()
	stop, err := hog(2)
	defer stop()
	if err != nil {
		return err
	}
	var ratio, same []float64
	for round := range hogRounds {
		var rate [engines]float64
		if err := inTurns(worlds, round, func(i int, w *world) error {
			trace, _, err := w.run(runFor, nil, nil)
			if err != nil {
				return err
			}
			if rate[i] = rateOf(trace); o.verbose {
				trace.tell(fmt.Sprintf("engine %d, %.1f MB/s", i, rate[i]/1e6), faultTimes{began: trace.Begin})
			}
			if i != suspectsNobody {
				f.add(hogSuspected, float64(trace.count("rail_suspected")))
				f.add(hogSeconds, trace.End.Sub(trace.Begin).Seconds())
			}
			return nil
		}); err != nil {
			return err
		}
		ratio = append(ratio, rate[detects]/rate[suspectsNobody])
		same = append(same, rate[detects]/rate[detectsToo])
	}
	f.add(hogGoodput, report.Quantile(ratio, 0.5))
	f.add(hogGoodput+control, report.Quantile(same, 0.5))
	return nil
}

func hogRows(_ options, f figures) []report.Row {
	each, share := f.sum(hogSuspected)/f.sum(hogSeconds), f.median(hogGoodput)
	return []report.Row{
		report.Judge("two hogs beside healthy rails: suspicions", fmt.Sprintf("%.2f a second", each),
			"at most 1 a second", each <= 1),
		report.Judge("the same: goodput against that without detection",
			fmt.Sprintf("%.1f %%, half within %s", 100*share, f.half(hogGoodput)),
			"at least 97 %", share >= 0.97),
		report.Beside("the same: one engine with detection against another one",
			fmt.Sprintf("%.1f %%, half within %s", 100*f.median(hogGoodput+control),
				f.half(hogGoodput+control))),
	}
}

// half is the range of the middle half of a list of ratios.
func (f figures) half(name string) string {
	return fmt.Sprintf("%.1f to %.1f %%", 100*f.quantile(name, 0.25), 100*f.quantile(name, 0.75))
}

// costBytes is the size of the region of the rows about cost.
const costBytes = 64 << 20

// works are the requests of these rows: the round trips of each turn, and the turns.
var works = []struct {
	name  string
	args  netbed.PingArgs
	turns int
}{{"4 KiB", netbed.PingArgs{Op: transport.Write, Bytes: 4096, Count: 250}, 40},
	{"64 MiB", netbed.PingArgs{Op: transport.Write, Bytes: costBytes, Count: 4}, 12}}

// cost measures one rail, as fast as the machine is.
func cost(o options, f figures) error {
	for range o.runs {
		if err := costRun(f); err != nil {
			return err
		}
	}
	return nil
}

func costRun(f figures) error {
	worlds, end, err := trio(costBytes, 0)
	if err != nil {
		return err
	}
	defer end()
	for _, work := range works {
		var ratio, same []float64
		for round := range work.turns {
			var p50 [engines]time.Duration
			if err := inTurns(worlds, round, func(i int, w *world) error {
				var took []time.Duration
				err := w.near.Call("Load.Ping", work.args, &took)
				p50[i] = report.Quantile(took, 0.5)
				return err
			}); err != nil {
				return err
			}
			if round > 0 { // the first warms up
				ratio = append(ratio, float64(p50[detects])/float64(p50[suspectsNobody]))
				same = append(same, float64(p50[detects])/float64(p50[detectsToo]))
			}
		}
		f.add(costOf+work.name, report.Quantile(ratio, 0.5))
		f.add(costOf+work.name+control, report.Quantile(same, 0.5))
	}
	return nil
}

func costRows(_ options, f figures) (table []report.Row) {
	for _, work := range works {
		name := costOf + work.name
		more := f.median(name) - 1
		table = append(table,
			report.Judge("nothing fails, one rail, "+work.name+": against an engine without detection",
				fmt.Sprintf("%+.1f %%, half within %s", 100*more, f.half(name)), "at most 2 %", more <= 0.02),
			report.Beside("the same: one engine with detection against another one",
				fmt.Sprintf("%+.1f %%, half within %s", 100*(f.median(name+control)-1), f.half(name+control))))
	}
	return table
}
