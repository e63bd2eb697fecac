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
	if near != nil {
		defer near.Kill()
	}
	if err != nil {
		return nil, err
	}
	idle, _, err := start(1)
	if idle != nil {
		defer idle.Kill()
	}
	if err != nil {
		return nil, err
	}
	awake, address, err := start(1)
	if awake != nil {
		defer awake.Kill()
	}
	if err != nil {
		return nil, err
	}
	asleep, other, err := start(1)
	if asleep != nil {
		defer asleep.Kill()
	}
	if err != nil {
		return nil, err
	}
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
		beside, alone, err := inTurn(near, idle, o.rounds)
		if err != nil {
			return nil, err
		}
		if firstSubmit == 0 {
			firstSubmit = submit
		}
		times := float64(beside) / float64(alone)
		o.note("4 KiB, p50, by pending requests", max(n, 1), times)
		table = append(table, report.Judge(fmt.Sprintf("WRITE 4 KiB, p50, with %d requests pending elsewhere", n),
			fmt.Sprintf("%v: %.2f times that with none", report.Short(beside), times), "1.1 times", times <= 1.1))
		if submit > 0 {
			ratio := float64(submit) / float64(firstSubmit)
			table = append(table, report.Judge(fmt.Sprintf("submit, each, up to %d pending", n),
				fmt.Sprintf("%d ns: %.2f times the first", submit.Nanoseconds(), ratio), "1.5 times", ratio <= 1.5))
		}
	}
	return table, nil
}

// inTurn returns the median of the rounds' p50 of each of two initiators.
func inTurn(first, second *forked.Child, rounds int) (_, _ time.Duration, err error) {
	var p50 [2][]time.Duration
	for round := range 2 * rounds {
		for i := range 2 {
			which := (i + round) % 2 // neither always comes second
			var took []time.Duration
			if err := [2]*forked.Child{first, second}[which].Call("Crowd.Small", smalls, &took); err != nil {
				return 0, 0, err
			}
			p50[which] = append(p50[which], report.Median(took))
		}
	}
	return report.Median(p50[0]), report.Median(p50[1]), nil
}
