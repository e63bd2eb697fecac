package main

import (
	"fmt"
	"math"
	"time"

	"github.com/tent-engine/tent/tests/bench/report"
	"github.com/tent-engine/tent/tests/forked"
)

const (
	smalls    = 2000            // WRITEs of 4 KiB for one figure
	closed    = 3 * time.Minute // longer than unused connections of the control plane live
	startMost = 50              // engines that one call starts
)

// start starts a process with a number of engines. After an error there is none.
func start(engines int) (c *forked.Child, addresses []string, err error) {
	if c, err = forked.Start(); err != nil {
		return nil, nil, err
	}
	for n := 0; n < engines && err == nil; {
		n, addresses = min(engines, n+startMost), nil
		err = c.Call("Crowd.Start", n, &addresses)
	}
	if err != nil {
		c.Kill()
		return nil, nil, err
	}
	return c, addresses, nil
}

func used(c *forked.Child) (u Use, err error) {
	err = c.Call("Crowd.Used", forked.Nothing{}, &u)
	return u, err
}

// links measures small WRITEs to one peer beside more and more links to others, which are idle. An engine with one link
// does the same in turn.
func links(o *options) ([]report.Row, error) {
	far, addresses, err := start(o.peers)
	if err != nil {
		return nil, err
	}
	defer far.Kill()
	near, _, err := start(1)
	if err != nil {
		return nil, err
	}
	defer near.Kill()
	alone, _, err := start(1)
	if err != nil {
		return nil, err
	}
	defer alone.Kill()
	if err := alone.Call("Crowd.Connect", addresses[:1], &Opened{}); err != nil {
		return nil, err
	}
	var table []report.Row
	there := 0
	for _, n := range steps(1, o.peers) {
		if err := near.Call("Crowd.Connect", addresses[there:n], &Opened{}); err != nil {
			return nil, err
		}
		there = n
		row, times, err := o.inTurn(near, alone, fmt.Sprintf("%d links open", n), "one")
		if err != nil {
			return nil, err
		}
		o.note("4 KiB, p50, by links", n, times)
		table = append(table, row)
	}
	return table, nil
}

// opens measures the time, memory and descriptors of peers that are opened side by side, at both ends.
func opens(o *options) ([]report.Row, error) {
	table, err := grown(o, "that we open", 1, o.peers, func(near, _ *forked.Child, _, far []string,
		o *Opened) error {
		return near.Call("Crowd.Connect", far, o)
	})
	if err != nil {
		return nil, err
	}
	more, err := grown(o, "that opens us", 1, o.peers+1, func(_, far *forked.Child, near, _ []string,
		o *Opened) error {
		return far.Call("Crowd.Reach", near[0], o)
	})
	return append(table, more...), err
}

func grown(o *options, which string, here, there int,
	open func(near, far *forked.Child, nearAt, farAt []string, o *Opened) error) ([]report.Row, error) {
	far, farAt, err := start(there)
	if err != nil {
		return nil, err
	}
	defer far.Kill()
	near, nearAt, err := start(here)
	if err != nil {
		return nil, err
	}
	defer near.Kill()
	before, err := used(near)
	if err != nil {
		return nil, err
	}
	other, err := used(far)
	if err != nil {
		return nil, err
	}
	var opening Opened
	if err := open(near, far, nearAt, farAt, &opening); err != nil {
		return nil, err
	}
	with, err := used(near)
	if err != nil {
		return nil, err
	}
	others, err := used(far)
	if err != nil {
		return nil, err
	}
	without := with
	for begin := time.Now(); time.Since(begin) < closed && without.Connections > before.Connections; {
		<-time.After(time.Second)
		if without, err = used(near); err != nil {
			return nil, err
		}
	}
	cpu := with.CPU - before.CPU + others.CPU - other.CPU
	prefix := fmt.Sprintf("%d peers %s: ", o.peers, which)
	memory := each(without.Resident-before.Resident, o.peers)
	descriptors := each(int64(without.Descriptors-before.Descriptors), o.peers)
	figure := fmt.Sprintf("%s, %d opens repeated", report.Short(opening.Took), opening.Repeated)
	opened := report.Judge(prefix+"opened side by side", figure, "2 s and the CPU of both, none repeated",
		opening.Took <= 2*time.Second+cpu && opening.Repeated == 0)
	if there > o.peers { // of several processes, see Reach
		opened = report.Beside(prefix+"opened, 16 at a time", report.Short(opening.Took))
	}
	return []report.Row{opened,
		report.Beside(prefix+"CPU of both ends, each", report.Short(cpu/time.Duration(o.peers))),
		report.Judge(prefix+"memory of each, idle", fmt.Sprintf("%.0f KB", memory/1e3), "64 KB", memory <= 64e3),
		report.Judge(prefix+"descriptors of each, idle", fmt.Sprintf("%.1f", descriptors), "3",
			math.Round(descriptors) <= 3), // the engine itself takes one or two meanwhile
		report.Beside(prefix+"beside these, its control connection in use",
			fmt.Sprintf("%.0f KB, %.1f descriptors", each(with.Resident-without.Resident, o.peers)/1e3,
				each(int64(with.Descriptors-without.Descriptors), o.peers))),
	}, nil
}

func each(sum int64, n int) float64 { return float64(sum) / float64(n) }
