package main

import (
	"fmt"
	"time"

	"github.com/tent-engine/tent/tests/bench/report"
)

// pending measures small WRITEs of HIGH to one peer while more and more of LOW wait for another, which is stopped.
func pending(o *options) ([]report.Row, error) {
	near, _, err := start(1)
	if near != nil {
		defer near.Kill()
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
	if err := asleep.Stop(); err != nil {
		return nil, err
	}
	var table []report.Row
	var first, firstSubmit time.Duration
	there := 0
	for _, n := range append([]int{0}, steps(10_000, o.pending-pileBatch)...) {
		var submit time.Duration
		if n > there {
			if err := near.Call("Crowd.Pile", n-there, &submit); err != nil {
				return nil, err
			}
			there = n
		}
		best := time.Duration(0)
		for range o.rounds {
			var took []time.Duration
			if err := near.Call("Crowd.Small", smalls, &took); err != nil {
				return nil, err
			}
			if p50 := report.Median(took); best == 0 || p50 < best {
				best = p50
			}
		}
		if first == 0 {
			first = best
		}
		if firstSubmit == 0 {
			firstSubmit = submit
		}
		times := float64(best) / float64(first)
		o.note("4 KiB, p50, by pending requests", max(n, 1), times)
		table = append(table, report.Judge(fmt.Sprintf("WRITE 4 KiB, p50, with %d requests pending elsewhere", n),
			fmt.Sprintf("%v: %.2f times that with none", report.Short(best), times), "1.1 times", times <= 1.1))
		if submit > 0 {
			ratio := float64(submit) / float64(firstSubmit)
			table = append(table, report.Judge(fmt.Sprintf("submit, each, up to %d pending", n),
				fmt.Sprintf("%d ns: %.2f times the first", submit.Nanoseconds(), ratio), "1.5 times", ratio <= 1.5))
		}
	}
	return table, nil
}
