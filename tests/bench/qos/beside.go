package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/bench/report"
)

// figures are those of several rounds of one kind of run.
type figures struct {
	p50, p99, late []time.Duration // of small requests
	usual, slowest []Parts         // means of the middle tenth, and of those at and beyond the p99
	flood, small   []float64       // bytes/s
	stolen         []float64       // share of the time that the host of this machine gave to others
}

// add takes the record of one run. It is not the last one to look at the lists, so it sorts copies.
func (f *figures) add(s *Seen, long time.Duration) {
	took := append([]time.Duration(nil), s.Took...)
	f.p50 = append(f.p50, report.Median(took))
	f.p99 = append(f.p99, report.Quantile(took, 0.99))
	late := make([]time.Duration, len(s.Parts))
	for i := range s.Parts {
		late[i] = s.Parts[i].Late
	}
	f.late = append(f.late, report.Quantile(late, 0.99))
	f.usual = append(f.usual, s.mean(report.Quantile(took, 0.45), report.Quantile(took, 0.55)))
	f.slowest = append(f.slowest, s.mean(report.Quantile(took, 0.99), report.Quantile(took, 1)))
	bytes := uint64(0)
	for _, n := range s.Flooded {
		bytes += n
	}
	f.flood = append(f.flood, float64(bytes)/long.Seconds())
	f.small = append(f.small, float64(len(s.Took))*smallBytes/long.Seconds())
	f.stolen = append(f.stolen, s.Stolen)
}

// mean is that of the parts of those small requests that took so long.
func (s *Seen) mean(least, most time.Duration) (mean Parts) {
	n := time.Duration(0)
	for i, took := range s.Took {
		if p := &s.Parts[i]; took >= least && took <= most {
			n++
			mean.Late, mean.Call = mean.Late+p.Late, mean.Call+p.Call
			mean.Way, mean.Wake = mean.Way+p.Way, mean.Wake+p.Wake
		}
	}
	n = max(n, 1)
	return Parts{mean.Late / n, mean.Call / n, mean.Way / n, mean.Wake / n}
}

func (p Parts) String() string {
	return fmt.Sprintf("late %s, call %s, way %s, wake-up %s", report.Short(p.Late), report.Short(p.Call),
		report.Short(p.Way), report.Short(p.Wake))
}

// middle is the list's element of the median time.
func middle(list []Parts) Parts {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b Parts) int {
		return cmp.Compare(a.Late+a.Call+a.Way+a.Wake, b.Late+b.Call+b.Way+b.Wake)
	})
	return list[len(list)/2]
}

// onlyCalm leaves the rounds in which the machine had its time in every run, and reports whether there are any; if not,
// all stay.
func onlyCalm(found map[string]*figures) bool {
	disturbed := map[int]bool{}
	var rounds []int
	for _, f := range found {
		for round, stolen := range f.stolen {
			disturbed[round] = disturbed[round] || stolen > calm
		}
	}
	for round := range len(disturbed) {
		if !disturbed[round] {
			rounds = append(rounds, round)
		}
	}
	if len(rounds) == 0 {
		return false
	}
	for _, f := range found {
		f.p50, f.p99, f.late = pick(f.p50, rounds), pick(f.p99, rounds), pick(f.late, rounds)
		f.usual, f.slowest = pick(f.usual, rounds), pick(f.slowest, rounds)
		f.flood, f.small, f.stolen = pick(f.flood, rounds), pick(f.small, rounds), pick(f.stolen, rounds)
	}
	return true
}

func pick[T any](list []T, at []int) (some []T) {
	for _, i := range at {
		some = append(some, list[i])
	}
	return some
}

// doubted are rows of which no round was calm: nothing can be said.
func doubted(rows []report.Row, isCalm bool) []report.Row {
	for i := range rows {
		if !isCalm && rows[i].Reached != "" {
			rows[i].Reached = "not said: no round was calm"
		}
	}
	return rows
}

// tell prints the last run.
func (f *figures) tell(name string) {
	n := len(f.p99) - 1
	report.Progress("  %-15s  flood %7.1f MB/s, stolen %.0f %%, HIGH p50 %s (%v), p99 %s (%v)", name,
		f.flood[n]/1e6, 100*f.stolen[n], report.Short(f.p50[n]), f.usual[n], report.Short(f.p99[n]), f.slowest[n])
}

// ratios are those within each round.
func ratios[T ~int64 | ~float64](a, b []T) []float64 {
	list := make([]float64, len(a))
	for i := range a {
		list[i] = float64(a[i]) / float64(b[i])
	}
	return list
}

func plus(a, b []float64) []float64 {
	sum := make([]float64, len(a))
	for i := range a {
		sum[i] = a[i] + b[i]
	}
	return sum
}

// arm is a kind of run: small requests, a flood, or both, by engines or over plain sockets.
type arm struct {
	name   string
	flood  int // class, -1 for none
	smalls bool
	plain  bool
}

// The arms of a round. The rate of the link is that of a flood that no class holds back.
var (
	alone    = arm{"HIGH alone", -1, true, false}
	lowAlone = arm{"LOW alone", dispatch.Low, false, false}
	both     = arm{"HIGH beside LOW", dispatch.Low, true, false}
	link     = arm{"the link", dispatch.High, false, false}
	oneClass = arm{"all HIGH", dispatch.High, true, false}

	plainAlone = arm{"plain small", -1, true, true}
	plainFlood = arm{"plain flood", dispatch.Low, false, true}
	plainBoth  = arm{"plain, both", dispatch.Low, true, true}
)

func (a arm) work(p place, op transport.Op, seed uint64) Work {
	w := Work{Op: op, SmallClass: dispatch.High, Seed: seed}
	if a.flood >= 0 {
		w.Floods = []Flood{{uint8(a.flood), floodBytes, floodDepth}}
	}
	if a.smalls {
		w.SmallEvery = p.every()
	}
	return w
}

// beside measures small requests of HIGH beside a flood of LOW in the same process.
func beside(o options, p place, op transport.Op) (rows []report.Row, err error) {
	w, err := newWorld(p, 1, nil)
	if err != nil {
		return nil, err
	}
	defer w.close()
	sockets, err := w.newPlain()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, sockets.close()) }()
	arms := []arm{alone, lowAlone, both, link, oneClass}
	if p.fast {
		arms = append(arms, plainAlone, plainFlood, plainBoth)
	}
	found := map[string]*figures{}
	for round := range o.rounds {
		report.Progress("%s %s round %d", p.name, label(op), round)
		if err := w.pairs[0].fill(); err != nil {
			return nil, err
		}
		done := make([][]Place, 1)
		for i := range arms {
			a := arms[(i+round)%len(arms)] // nobody always follows the same
			work := a.work(p, op, o.seed+uint64(round))
			once := func() ([]*Seen, error) { return w.once(o.long, done, work) }
			if a.plain {
				once = func() ([]*Seen, error) { return sockets.once(o.long, work) }
			}
			seen, err := calmly(once)
			if err != nil {
				return nil, fmt.Errorf("%s, round %d: %w", a.name, round, err)
			}
			if found[a.name] == nil {
				found[a.name] = &figures{}
			}
			found[a.name].add(seen[0], o.long)
			found[a.name].tell(a.name)
		}
		if err := w.pairs[0].verify(op, done[0]); err != nil {
			return nil, err
		}
	}
	isCalm := onlyCalm(found)
	return doubted(besideRows(fmt.Sprintf("%s, %s: ", p.name, label(op)), found), isCalm), nil
}

// besideRows judges HIGH and LOW beside each other by their figures alone, or by those of plain sockets. These cannot
// do better with the processors that there are.
func besideRows(prefix string, found map[string]*figures) []report.Row {
	quiet, busy, same := found[alone.name], found[both.name], found[oneClass.name]
	longer := ratios(busy.p99, quiet.p99) // before they are sorted
	totals := ratios(plus(busy.flood, busy.small), found[link.name].flood)
	lows := ratios(busy.flood, found[lowAlone.name].flood)
	p99, beside := report.Median(quiet.p99), report.Median(busy.p99)
	most, least, floors := targets(prefix, 2*p99, found)
	total, low := report.Median(totals), report.Median(lows)
	rate := report.Median(append([]float64(nil), found[link.name].flood...))
	return append([]report.Row{
		report.Judge(prefix+"p99 of HIGH beside LOW against alone", times(beside, p99),
			most.words, beside <= most.time).Of(longer),
		report.Judge(prefix+"LOW and HIGH together against the link", fmt.Sprintf("%.1f %% of %.0f MB/s", 100*total,
			rate/1e6), least[0].words, total >= least[0].share).Of(totals),
		report.Judge(prefix+"LOW against LOW alone", fmt.Sprintf("%.1f %%", 100*low), least[1].words,
			low >= least[1].share).Of(lows),
		report.Beside(prefix+"the same p99 without classes, all HIGH", times(report.Median(same.p99), p99)),
		report.Beside(prefix+"p50 of HIGH beside LOW against alone",
			times(report.Median(busy.p50), report.Median(quiet.p50))),
		report.Beside(prefix+"of the p99s, until the call was made", fmt.Sprintf("%s beside, %s alone",
			report.Short(report.Median(busy.late)), report.Short(report.Median(quiet.late)))),
		report.Beside(prefix+"where the middle tenth of HIGH was, on average",
			fmt.Sprintf("%v beside; %v alone", middle(busy.usual), middle(quiet.usual))),
		report.Beside(prefix+"where the slowest hundredth was",
			fmt.Sprintf("%v beside; %v alone", middle(busy.slowest), middle(quiet.slowest))),
	}, floors...)
}

// longest and least are targets and their words.
type (
	longest struct {
		time  time.Duration
		words string
	}
	least struct {
		share float64
		words string
	}
)

// targets are those of the p99 of HIGH, of both classes together, and of LOW. Where plain sockets have missed one in
// the same rounds, their own figure is the target.
func targets(prefix string, twice time.Duration, found map[string]*figures) (longest, [2]least, []report.Row) {
	p99 := longest{twice, "2 times"}
	shares := [2]least{{0.95, "at least 95 %"}, {0.9, "at least 90 %"}}
	plain := found[plainBoth.name]
	if plain == nil {
		return p99, shares, nil
	}
	flood, busy := found[plainFlood.name].flood, report.Median(plain.p99)
	p99.words += fmt.Sprintf(", or 1.05 of plain sockets' %s", report.Short(busy))
	p99.time = max(twice, busy+busy/20)
	for i, reached := range [2]float64{report.Median(ratios(plus(plain.flood, plain.small), flood)),
		report.Median(ratios(plain.flood, flood))} {
		shares[i].words += fmt.Sprintf(", or the %.1f %% of plain sockets", 100*reached)
		shares[i].share = min(shares[i].share, reached)
	}
	return p99, shares, []report.Row{
		report.Beside(prefix+"p99 over plain sockets beside a plain flood against alone",
			times(busy, report.Median(found[plainAlone.name].p99))),
		report.Beside(prefix+"p50 over plain sockets beside a plain flood against alone",
			times(report.Median(plain.p50), report.Median(found[plainAlone.name].p50))),
		report.Beside(prefix+"the rate of the plain flood alone", fmt.Sprintf("%.0f MB/s", report.Median(flood)/1e6)),
	}
}

func times(a, b time.Duration) string {
	return fmt.Sprintf("%s against %s: %.2f times", report.Short(a), report.Short(b), float64(a)/float64(b))
}

func label(op transport.Op) string {
	if op == transport.Read {
		return "READ"
	}
	return "WRITE"
}
