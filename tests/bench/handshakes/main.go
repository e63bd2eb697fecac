// Command handshakes measures the harm of strangers to invited peers. One processor begins handshakes with an engine as
// fast as it can, while that engine receives a stream of bytes and others open it. `make bench-handshakes`.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/tests/bench/report"
	"github.com/tent-engine/tent/tests/forked"
)

// options of a run of the benchmark.
type options struct {
	seconds, rounds int
	only, json      string
}

func main() {
	report.UseProcessors()
	if forked.RunChild(new(Side)) {
		return
	}
	var o options
	flag.IntVar(&o.seconds, "seconds", 60, "seconds of each attack")
	flag.IntVar(&o.rounds, "rounds", 1, "measurements of each attack, with an engine and with plain sockets in turn")
	flag.StringVar(&o.only, "only", "", "measure attacks with this in their names")
	flag.StringVar(&o.json, "json", "", "file for the table, as docs/performance has it")
	flag.Parse()
	if err := measure(&o); err != nil {
		fmt.Fprintln(os.Stderr, "handshakes:", err)
		os.Exit(1)
	}
}

func measure(o *options) error {
	steal := &report.Steal{}
	steal.Share()
	var table []report.Row
	for _, act := range acts {
		if !strings.Contains(act.name, o.only) {
			continue
		}
		var engines, floors []result
		for round := range o.rounds {
			report.Progress("%s, %d s with an engine and as long with plain sockets, %d of %d", act.name, o.seconds,
				round+1, o.rounds)
			engine, floor, err := attackBoth(o, act, round%2 == 1)
			if err != nil {
				return fmt.Errorf("%s: %w", act.name, err)
			}
			engines, floors = append(engines, engine), append(floors, floor)
		}
		table = append(table, rows(act.name, engines, floors)...)
	}
	machine := fmt.Sprintf("%s, %d s an attack, %d times, %s", report.Machine(), o.seconds, o.rounds, steal)
	return report.Show(os.Stdout, "bench-handshakes", machine, o.json, table)
}

const (
	calm       = 3 * time.Second // of the stream alone
	admittance = 2 * time.Second // an honest open takes at most this long
	growthMost = 64 << 20        // bytes that the attacked engine may grow by
	shareLeast = 0.8             // of the share that plain sockets keep
)

// ends are the two ends of a stream, by the methods that begin them.
type ends struct{ open, stream string }

var (
	engineEnds = ends{"Side.Open", "Side.Stream"}
	plainEnds  = ends{"Side.OpenPlain", "Side.StreamPlain"}
)

// attackBoth measures one attack on an engine and on plain sockets, or in the other order.
func attackBoth(o *options, a act, plainFirst bool) (engine, floor result, err error) {
	if plainFirst {
		floor, err = attack(o, a, plainEnds)
	}
	if err == nil {
		engine, err = attack(o, a, engineEnds)
	}
	if err == nil && !plainFirst {
		floor, err = attack(o, a, plainEnds)
	}
	return engine, floor, err
}

// cast is the processes of one attack.
type cast struct{ victim, friend, guest, stranger *forked.Child }

func (c *cast) kill() {
	for _, one := range []*forked.Child{c.victim, c.friend, c.guest, c.stranger} {
		if one != nil {
			one.Kill()
		}
	}
}

func begin(e ends) (c *cast, at Ends, err error) {
	c = &cast{}
	for _, one := range []**forked.Child{&c.victim, &c.friend, &c.guest, &c.stranger} {
		if *one, err = forked.Start(); err != nil {
			return c, at, err
		}
	}
	if err = c.victim.Call(e.open, forked.Nothing{}, &at); err != nil {
		return c, at, err
	}
	return c, at, c.friend.Call(e.stream, at.Streamed, &forked.Nothing{})
}

// result of one attack.
type result struct {
	alone, beside load
	left          float64 // processors that strangers and guests have left to the stream
	share         float64 // of its own rate, for the processors that are left
	begun         float64 // connections a second
	opens         []time.Duration
	grown         int64
}

// attack measures the stream alone, beside an attack, and alone again: machines drift.
func attack(o *options, a act, e ends) (r result, err error) {
	c, at, err := begin(e)
	defer c.kill()
	if err != nil {
		return r, err
	}
	rest := func() error { <-time.After(calm); return nil }
	if r.alone, err = c.during(rest); err != nil {
		return r, err
	}
	var heap, begun int64
	if err := c.victim.Call("Side.Heap", forked.Nothing{}, &heap); err != nil {
		return r, err
	}
	if err := c.stranger.Call("Side.Attack", Attack{at.Attacked, a.name}, &forked.Nothing{}); err != nil {
		return r, err
	}
	r.beside, err = c.during(func() error {
		until := time.Now().Add(time.Duration(o.seconds) * time.Second)
		if e != engineEnds {
			<-time.After(time.Until(until))
			return nil
		}
		r.opens, err = c.visit(at.Attacked, until)
		return err
	})
	if err != nil {
		return r, err
	}
	if err := c.victim.Call("Side.Heap", forked.Nothing{}, &r.grown); err != nil {
		return r, err
	}
	if err := c.stranger.Call("Side.Begun", forked.Nothing{}, &begun); err != nil {
		return r, err
	}
	c.stranger.Kill()
	again, err := c.during(rest)
	if err != nil {
		return r, err
	}
	r.alone.rate, r.alone.own = (r.alone.rate+again.rate)/2, (r.alone.own+again.own)/2
	r.grown -= heap
	r.begun = float64(begun) / r.beside.wall.Seconds()
	r.left = float64(runtime.NumCPU()) - r.beside.others
	r.share = r.beside.rate / (r.alone.rate * min(1, r.left/r.alone.own))
	return r, nil
}

// visit has new engines open the attacked one until a time, and returns how long each took.
func (c *cast) visit(address string, until time.Time) (opens []time.Duration, err error) {
	for time.Now().Before(until) {
		var took time.Duration
		if err := c.guest.Call("Side.Visit", address, &took); err != nil {
			return opens, err
		}
		opens = append(opens, took)
		<-time.After(100 * time.Millisecond)
	}
	return opens, nil
}

// rows sets the results of an attack on engines beside those on plain sockets.
func rows(name string, engines, floors []result) []report.Row {
	var opens []time.Duration
	var grown int64
	var ratios []float64
	for i := range engines {
		opens = append(opens, engines[i].opens...)
		grown = max(grown, engines[i].grown)
		ratios = append(ratios, engines[i].share/floors[i].share)
	}
	longest, ratio := report.Quantile(opens, 1), report.Median(ratios)
	engine, floor := middle(engines), middle(floors)
	return []report.Row{
		report.Beside(name+": connections begun", fmt.Sprintf("%.0f a second, %.0f with plain sockets", engine.begun,
			floor.begun)),
		report.Judge(name+": an honest open", fmt.Sprintf("%s median, %s the longest of %d", report.Milli(
			report.Median(opens)), report.Milli(longest), len(opens)), "at most 2 s", longest <= admittance),
		report.Beside(name+": a stream, against its share of the processors that are left", engine.String()),
		report.Beside(name+": the same of plain sockets, whose listener closes at once", floor.String()),
		report.Judge(name+": the share of the stream, against that of plain sockets", fmt.Sprintf("%.0f %%", 100*ratio),
			"at least 80 %", ratio >= shareLeast).Of(ratios),
		report.Judge(name+": memory of the attacked engine", fmt.Sprintf("%+.1f MiB", float64(grown)/(1<<20)),
			"at most 64 MiB more", grown <= growthMost),
	}
}

// middle returns the result with the median share.
func middle(list []result) result {
	sorted := slices.SortedFunc(slices.Values(list), func(a, b result) int { return cmp.Compare(a.share, b.share) })
	return sorted[len(sorted)/2]
}

// String says the share of the stream, and where it comes from.
func (r result) String() string {
	return fmt.Sprintf("%.0f %%: %.2f GB/s with %.2f processors, %.2f alone with %.2f, %.2f are left", 100*r.share,
		r.beside.rate/1e9, r.beside.own, r.alone.rate/1e9, r.alone.own, r.left)
}

// load is a time in which the stream ran.
type load struct {
	wall        time.Duration
	rate        float64 // bytes/s of the stream
	own, others float64 // processors of the two ends of the stream, and of all other processes
}

// during measures the stream while a function runs.
func (c *cast) during(run func() error) (l load, err error) {
	var before, after int64
	if err := c.friend.Call("Side.Moved", forked.Nothing{}, &before); err != nil {
		return l, err
	}
	begun, own, others := time.Now(), processors(c.victim, c.friend), processors(c.guest, c.stranger)
	if err := run(); err != nil {
		return l, err
	}
	l.wall = time.Since(begun)
	l.own = float64(processors(c.victim, c.friend)-own) / float64(l.wall)
	l.others = float64(processors(c.guest, c.stranger)-others) / float64(l.wall)
	if err := c.friend.Call("Side.Moved", forked.Nothing{}, &after); err != nil {
		return l, err
	}
	l.rate = float64(after-before) / l.wall.Seconds()
	return l, nil
}

// processors is the processor time of some processes so far (the clock id of clock_getcpuclockid(3)).
func processors(of ...*forked.Child) (sum time.Duration) {
	for _, c := range of {
		var t unix.Timespec
		if unix.ClockGettime(int32(^c.Pid()<<3|2), &t) == nil {
			sum += time.Duration(t.Nano())
		}
	}
	return sum
}
