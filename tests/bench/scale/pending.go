package main

import (
	"fmt"
	"time"

	"github.com/tent-engine/tent/tests/bench/report"
	"github.com/tent-engine/tent/tests/forked"
)

// pending measures small WRITEs of HIGH to one peer while more and more of LOW wait for another, which is stopped. An
// engine without anything pending does the same in turn: the two differ by the pending requests, not by the machine's
// state.
func pending(o *options) ([]report.Row, error) {
	near, _, err := start(1)
	if err != nil {
		return nil, err
	}
	defer near.Kill()
	idle, _, err := start(1)
	if err != nil {
		return nil, err
	}
	defer idle.Kill()
	awake, address, err := start(1)
	if err != nil {
		return nil, err
	}
	defer awake.Kill()
	asleep, other, err := start(1)
	if err != nil {
		return nil, err
	}
	defer asleep.Kill()
	if err := near.Call("Crowd.Connect", append(address, other...), &Opened{}); err != nil {
		return nil, err
	}
	if err := idle.Call("Crowd.Connect", address, &Opened{}); err != nil {
		return nil, err
	}
	if err := asleep.Stop(); err != nil {
		return nil, err
	}
	var table []report.Row
	var firstSubmit time.Duration
	there := 0
	for _, n := range append([]int{0}, steps(10_000, o.pending-pileBatch)...) {
		var submit time.Duration
		if n > there {
			if err := near.Call("Crowd.Pile", n-there, &submit); err != nil {
				return nil, err
			}
			there = n
		}
		row, times, err := o.inTurn(near, idle, fmt.Sprintf("%d requests pending elsewhere", n), "none")
		if err != nil {
			return nil, err
		}
		if firstSubmit == 0 {
			firstSubmit = submit
		}
		o.note("4 KiB, p50, by pending requests", max(n, 1), times)
		table = append(table, row)
		if submit > 0 {
			ratio := float64(submit) / float64(firstSubmit)
			table = append(table, report.Judge(fmt.Sprintf("submit, each, up to %d pending", n),
				fmt.Sprintf("%d ns: %.2f times the first", submit.Nanoseconds(), ratio), "1.5 times", ratio <= 1.5))
		}
	}
	return table, nil
}

// inTurn lets two initiators make small WRITEs in turn. The row has the median of the rounds' p50 of the loaded one, in
// times of the other's.
func (o *options) inTurn(loaded, other *forked.Child, load, than string) (row report.Row, times float64, err error) {
	var p50 [2][]time.Duration
	for round := range 2 * o.rounds {
		for i := range 2 {
			which := (i + round) % 2 // neither always comes second
			var took []time.Duration
			if err := [2]*forked.Child{loaded, other}[which].Call("Crowd.Small", smalls, &took); err != nil {
				return row, 0, err
			}
			p50[which] = append(p50[which], report.Median(took))
		}
	}
	beside := report.Median(p50[0])
	times = float64(beside) / float64(report.Median(p50[1]))
	return report.Judge("WRITE 4 KiB, p50, with "+load, fmt.Sprintf("%v: %.2f times that with %s",
		report.Short(beside), times, than), "1.1 times", times <= 1.1), times, nil
}
