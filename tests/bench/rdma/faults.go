package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/bench/report"
	"github.com/tent-engine/tent/tests/forked"
	"github.com/tent-engine/tent/tests/roce"
)

// breaks are the faults of the table, by their names in tests/roce.
var breaks = []string{"silent", "own-cable-pulled"}

const (
	calm     = 60 * time.Millisecond  // between the begin of traffic and its fault
	traffic  = 250 * time.Millisecond // of a run
	patience = 30 * time.Second
)

// faults breaks one of two rails under small moves, and waits for those that were on their way. A plain program says in
// turns when it hears of the same fault: by an event of the kernel, and by the first error of a queue pair.
func faults(o *options, name string, pairs []pair) (rows []report.Row, err error) {
	fault, err := named(name)
	if err != nil {
		return nil, err
	}
	t, err := startTent(pairs, usual)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	var back, before, event, failed []time.Duration
	for i := range o.runs {
		ours, calm, err := t.lost(fault)
		if err != nil {
			return nil, fmt.Errorf("run %d: %w", i, err)
		}
		heard, broken, err := knows(o, fault, pairs)
		if err != nil {
			return nil, fmt.Errorf("run %d, the C program: %w", i, err)
		}
		back, before, failed = append(back, ours), append(before, calm), append(failed, broken)
		if heard > 0 {
			event = append(event, heard)
		}
		if (i+1)%25 == 0 {
			report.Progress("%d of %d runs", i+1, o.runs)
		}
	}
	return faultRows(name, back, before, event, failed), nil
}

func faultRows(name string, back, before, event, failed []time.Duration) []report.Row {
	first := report.Median(failed)
	words := report.Milli(first) + " median by the first error of a queue pair"
	if len(event) > 0 {
		first = min(first, report.Median(event))
		words += ", " + report.Milli(report.Median(event)) + " by an event of the kernel"
	}
	median, p99 := report.Median(back), report.Quantile(back, 0.99)
	return []report.Row{
		report.Judge(name+": until moves of 64 KiB that were on their way have ended",
			fmt.Sprintf("%s median, %s p99", report.Milli(median), report.Milli(p99)),
			"10 ms median, 30 ms p99 beyond the first word of the fault",
			median <= first+10*time.Millisecond && p99 <= first+30*time.Millisecond),
		report.Beside(name+": the same, at a moment without fault", fmt.Sprintf("%s median, %s p99",
			report.Milli(report.Median(before)), report.Milli(report.Quantile(before, 0.99)))),
		report.Beside(name+": until the plain C program hears of it", words),
	}
}

func named(name string) (roce.Fault, error) {
	for _, f := range roce.Faults() {
		if f.Name == name {
			return f, nil
		}
	}
	return roce.Fault{}, fmt.Errorf("no fault %q", name)
}

// lost breaks rail 0 under traffic, and mends it. It returns how long the moves of that moment took from then on, and
// the same of a moment before.
func (t *tent) lost(f roce.Fault) (back, before time.Duration, err error) {
	flows := several(2, Flow{Op: transport.Write, Class: 1, Bytes: smallBytes})
	var list [][]Span
	call := t.near.Begin("Load.Run", Work{flows, traffic}, &list)
	pause(calm)
	at := clock.Now()
	err = f.Make(0)
	err = errors.Join(err, t.near.End(call), f.Mend(0))
	for _, spans := range list {
		for _, s := range spans {
			for moment, longest := range map[clock.Time]*time.Duration{at: &back, at.Add(-calm / 3): &before} {
				if s.Begin < moment && s.End > moment {
					*longest = max(*longest, s.End.Sub(moment))
				}
			}
		}
	}
	if err == nil {
		err = t.awaitRails(2)
	}
	return back, before, err
}

// awaitRails waits until that number of rails is up.
func (t *tent) awaitRails(n float64) error {
	for late := clock.Now().Add(patience); ; pause(time.Millisecond) {
		var m map[string]float64
		if err := t.near.Call("Load.Metrics", forked.Nothing{}, &m); err != nil {
			return err
		}
		if m[`tent_rails{transport="rdma",state="up"}`] >= n {
			return nil
		}
		if clock.Now() > late {
			return fmt.Errorf("a rail was not back within %v", patience)
		}
	}
}

// knows makes the same fault under the plain program's traffic. It returns when that had an event of its own device, 0
// if it had none before the first error of a queue pair, and when it had that error.
func knows(o *options, f roce.Fault, pairs []pair) (event, failed time.Duration, err error) {
	c, err := launch(o.flow, pairs, lanes, 1, depth, block, 1<<20, usual, retries)
	if err != nil {
		return 0, 0, err
	}
	defer func() {
		_ = c.input.Close() // which ends it
		err = errors.Join(err, f.Mend(0), c.command.Wait())
	}()
	if _, err := fmt.Fprintln(c.input, "flow write"); err != nil {
		return 0, 0, err
	}
	var at clock.Time
	for failed == 0 {
		if !c.lines.Scan() {
			return 0, 0, fmt.Errorf("it has ended: %w", c.lines.Err())
		}
		words := strings.Fields(c.lines.Text())
		ns, _ := strconv.ParseInt(words[len(words)-1], 10, 64)
		switch since := clock.Time(ns).Sub(at); {
		case words[0] == "first" && words[1] == "0":
			pause(calm)
			at = clock.Now()
			if err := f.Make(0); err != nil {
				return 0, 0, err
			}
		case words[0] == "event" && words[2] == "a" && at != 0 && event == 0:
			event = since
		case words[0] == "failed" && words[1] == "0":
			failed = since
		}
	}
	return event, failed, nil
}
