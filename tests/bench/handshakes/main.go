// Command handshakes measures the harm of strangers to invited peers. One processor begins handshakes with an engine as
// fast as it can, while that engine receives a stream of bytes and others open it. `make bench-handshakes`.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/tests/bench/report"
	"github.com/tent-engine/tent/tests/forked"
)

// options of a run of the benchmark.
type options struct {
	seconds int
	json    string
}

func main() {
	report.UseProcessors()
	if forked.RunChild(new(Side)) {
		return
	}
	var o options
	flag.IntVar(&o.seconds, "seconds", 60, "seconds of each attack")
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
		report.Progress("%s, %d s", act.name, o.seconds)
		rows, err := attack(o, act)
		if err != nil {
			return fmt.Errorf("%s: %w", act.name, err)
		}
		table = append(table, rows...)
	}
	machine := fmt.Sprintf("%s, %d s an attack, %s", report.Machine(), o.seconds, steal)
	return report.Show(os.Stdout, "bench-handshakes", machine, o.json, table)
}

const (
	calm       = 5 * time.Second // of the stream alone
	admittance = 2 * time.Second // an honest open takes at most this long
	growthMost = 64 << 20        // bytes that the attacked engine may grow by
	shareLeast = 0.8
)

// cast is the processes of one attack.
type cast struct{ victim, friend, guest, stranger *forked.Child }

func (c *cast) kill() {
	for _, one := range []*forked.Child{c.victim, c.friend, c.guest, c.stranger} {
		if one != nil {
			one.Kill()
		}
	}
}

func begin() (c *cast, address string, err error) {
	c = &cast{}
	for _, one := range []**forked.Child{&c.victim, &c.friend, &c.guest, &c.stranger} {
		if *one, err = forked.Start(); err != nil {
			return c, "", err
		}
	}
	if err = c.victim.Call("Side.Open", Nothing{}, &address); err != nil {
		return c, "", err
	}
	return c, address, c.friend.Call("Side.Stream", address, &Nothing{})
}

// attack measures the stream alone and then beside an attack.
func attack(o *options, a act) ([]report.Row, error) {
	c, address, err := begin()
	defer c.kill()
	if err != nil {
		return nil, err
	}
	alone, err := c.during(func() error { <-time.After(calm); return nil })
	if err != nil {
		return nil, err
	}
	var heap, grown, begun int64
	if err := c.victim.Call("Side.Heap", Nothing{}, &heap); err != nil {
		return nil, err
	}
	if err := c.stranger.Call("Side.Attack", Attack{address, a.name}, &Nothing{}); err != nil {
		return nil, err
	}
	var opens []time.Duration
	beside, err := c.during(func() error {
		for until := time.Now().Add(time.Duration(o.seconds) * time.Second); time.Now().Before(until); {
			var took time.Duration
			if err := c.guest.Call("Side.Visit", address, &took); err != nil {
				return err
			}
			opens = append(opens, took)
			<-time.After(100 * time.Millisecond)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := c.victim.Call("Side.Heap", Nothing{}, &grown); err != nil {
		return nil, err
	}
	if err := c.stranger.Call("Side.Begun", Nothing{}, &begun); err != nil {
		return nil, err
	}
	grown -= heap
	left := float64(runtime.NumCPU()) - beside.others // processors that strangers and guests have left to the stream
	share := beside.rate / (alone.rate * min(1, left/alone.own))
	longest := report.Quantile(opens, 1)
	return []report.Row{
		report.Beside(a.name+": handshakes begun", fmt.Sprintf("%.0f a second", float64(begun)/beside.wall.Seconds())),
		report.Judge(a.name+": an honest open", fmt.Sprintf("%s median, %s the longest of %d", report.Milli(
			report.Median(opens)), report.Milli(longest), len(opens)), "at most 2 s", longest <= admittance),
		report.Judge(a.name+": a stream, against its share of the processors that are left",
			fmt.Sprintf("%.0f %%: %.2f GB/s with %.2f processors, %.2f alone with %.2f, %.2f are left", 100*share,
				beside.rate/1e9, beside.own, alone.rate/1e9, alone.own, left), "at least 80 %", share >= shareLeast),
		report.Judge(a.name+": memory of the attacked engine", fmt.Sprintf("%+.1f MiB", float64(grown)/(1<<20)),
			"at most 64 MiB more", grown <= growthMost),
	}, nil
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
	if err := c.friend.Call("Side.Moved", Nothing{}, &before); err != nil {
		return l, err
	}
	begun, own, others := time.Now(), processors(c.victim, c.friend), processors(c.guest, c.stranger)
	if err := run(); err != nil {
		return l, err
	}
	l.wall = time.Since(begun)
	l.own = float64(processors(c.victim, c.friend)-own) / float64(l.wall)
	l.others = float64(processors(c.guest, c.stranger)-others) / float64(l.wall)
	if err := c.friend.Call("Side.Moved", Nothing{}, &after); err != nil {
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
