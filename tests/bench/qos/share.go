package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/rpc"
	"os"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/qos"
	"github.com/tent-engine/tent/gocore/share"
	"github.com/tent-engine/tent/tests/bench/report"
	"github.com/tent-engine/tent/tests/forked"
)

// PartArgs say where to take part, and for how long.
type PartArgs struct {
	Name string
	For  time.Duration
}

// TakePart repeats the core's work for slots and shared quota for slice after slice, and returns ns a slice.
// The clock is read once for 16 of them, as for those of one step.
func (l *Load) TakePart(args PartArgs, ns *float64) error {
	m, err := share.Open(context.Background(), share.Options{Name: args.Name, Branch: "transports/tcp", Interval: slot,
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer m.Close()
	d := m.Device("tcp", "lo")
	slots := qos.Slots{Interval: slot, Borrow: true}
	begin := clock.Now()
	now, bytes, count := begin, uint64(0), 0
	for end := begin.Add(args.For); now < end; now = clock.Now() {
		for range 16 {
			d.Claim(dispatch.Low, now.Add(slot), now)
			slots.May(dispatch.Low, d, now)
			d.Carries(uint64(count)%64*smallBytes, now)
			bytes += d.Others(now)
			count++
		}
	}
	*ns = float64(now.Sub(begin)) / float64(count)
	return nil
}

// takePart measures that alone and while another process does the same.
func takePart(o options) (rows []report.Row, err error) {
	path := fmt.Sprintf("/tent_bench_%d", os.Getpid())
	defer func() { _ = os.Remove("/dev/shm" + path) }() // is not there if nobody got as far
	var children [2]*forked.Child
	for i := range children {
		if children[i], err = forked.Start(); err != nil {
			return nil, err
		}
		defer func() { _ = children[i].Close() }()
	}
	var found [len(children)][]float64
	for round := range o.rounds {
		for n := range children {
			var ns [len(children)]float64
			var calls []*rpc.Call
			for i := range n + 1 {
				calls = append(calls, children[i].Begin("Load.TakePart", PartArgs{path, 200 * time.Millisecond},
					&ns[i]))
			}
			for i, call := range calls {
				if err := children[i].End(call); err != nil {
					return nil, err
				}
			}
			found[n] = append(found[n], ns[0])
			report.Progress("taking part, round %d, %d others: %.1f ns a slice", round, n, ns[0])
		}
	}
	for n, name := range []string{"alone", "beside another process that does nothing else"} {
		ns := report.Median(found[n])
		rows = append(rows, report.Judge("taking part in slots and shared quota, a slice, "+name,
			fmt.Sprintf("%.0f ns", ns), "at most 50 ns", ns <= 50))
	}
	return rows, nil
}
