package main

import (
	"fmt"
	"os"
	"time"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/bench/report"
)

// slot is the interval of slots, the default.
const slot = 2 * time.Millisecond

// process measures small requests of HIGH in one process beside a flood of LOW in another, with slots and without.
func process(o options, p place, op transport.Op) ([]report.Row, error) {
	path := fmt.Sprintf("/tent_bench_%d", os.Getpid())
	defer func() { _ = os.Remove("/dev/shm" + path) }() // is not there if nobody got as far
	var worlds [2]*world
	var found [2]map[string]*figures
	for i, settings := range []map[string]string{{"transports/tcp/shared_quota_shm_path": fmt.Sprintf("%q", path)},
		nil} {
		var err error
		if worlds[i], err = newWorld(p, 2, settings); err != nil {
			return nil, err
		}
		defer worlds[i].close()
		found[i] = map[string]*figures{alone.name: {}, lowAlone.name: {}, both.name: {}}
	}
	for round := range o.rounds {
		for n := range worlds {
			i := (n + round) % 2 // nobody always comes second
			report.Progress("%s %s round %d, slots %s", p.name, label(op), round, []string{"on", "off"}[i])
			if err := worlds[i].apart(o, op, round, found[i]); err != nil {
				return nil, fmt.Errorf("round %d: %w", round, err)
			}
		}
	}
	isCalm := onlyCalm(found[0])
	isCalm = onlyCalm(found[1]) && isCalm
	return doubted(processRows(fmt.Sprintf("flood in another process, %s, %s: ", p.name, label(op)), found), isCalm),
		nil
}

// apart is one round: HIGH alone in the first process, LOW alone in the second, and both.
func (w *world) apart(o options, op transport.Op, round int, found map[string]*figures) error {
	for _, p := range w.pairs {
		if err := p.fill(); err != nil {
			return err
		}
	}
	done := make([][]Place, 2)
	arms := []arm{alone, lowAlone, both}
	for i := range arms {
		a := arms[(i+round)%len(arms)]
		high, low := a, a
		high.flood, low.smalls = -1, false
		seed := o.seed + uint64(round)
		seen, err := w.together(o.long, done, high.work(w.place, op, seed), low.work(w.place, op, seed))
		if err != nil {
			return fmt.Errorf("%s: %w", a.name, err)
		}
		sum := *seen[0]
		sum.Flooded = seen[1].Flooded
		found[a.name].add(&sum, o.long)
		found[a.name].tell(a.name)
	}
	for i, p := range w.pairs {
		if err := p.verify(op, done[i]); err != nil {
			return err
		}
	}
	return nil
}

func processRows(prefix string, found [2]map[string]*figures) (rows []report.Row) {
	for i, f := range found {
		longer := ratios(f[both.name].p99, f[alone.name].p99) // before they are sorted
		p99, beside := report.Median(f[alone.name].p99), report.Median(f[both.name].p99)
		lows := ratios(f[both.name].flood, f[lowAlone.name].flood)
		low := report.Median(lows)
		if i == 0 {
			rows = append(rows,
				report.Judge(prefix+"p99 of HIGH beside LOW against alone", times(beside, p99),
					"2 times and one slot of 2 ms", beside <= 2*p99+slot).Of(longer),
				report.Judge(prefix+"LOW against LOW alone", fmt.Sprintf("%.1f %%", 100*low), "at least 60 %",
					low >= 0.6).Of(lows))
			continue
		}
		rows = append(rows, report.Beside(prefix+"p99 without slots", times(beside, p99)),
			report.Beside(prefix+"LOW without slots", fmt.Sprintf("%.1f %%", 100*low)))
	}
	return rows
}
