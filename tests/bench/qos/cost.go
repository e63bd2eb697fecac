package main

import (
	"fmt"
	"os"
	"time"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/bench/report"
	"github.com/tent-engine/tent/tests/netbed"
)

// cost measures the price of classes for a program that uses only one. It compares an engine that takes part in
// everything, one without slots and without the filter of NICs, and another like that one, which shows the error of
// such a comparison.
func cost(o options, p place) (rows []report.Row, err error) {
	path := fmt.Sprintf("/tent_bench_%d", os.Getpid())
	defer func() { _ = os.Remove("/dev/shm" + path) }() // is not there if nobody got as far
	off := map[string]string{"transports/tcp/enable_priority_filtering": "false"}
	var worlds [3]*world
	for i, settings := range []map[string]string{{"transports/tcp/shared_quota_shm_path": fmt.Sprintf("%q", path)}, off,
		off} {
		if worlds[i], err = newWorld(p, 1, settings); err != nil {
			return nil, err
		}
		defer worlds[i].close()
	}
	for _, work := range []struct {
		name string
		args netbed.PingArgs
	}{{"4 KiB", netbed.PingArgs{Op: transport.Write, Bytes: 4096, Count: 2000}},
		{"64 MiB", netbed.PingArgs{Op: transport.Write, Bytes: floodBytes, Count: 8}}} {
		var with, same []float64
		for round := range 4*o.rounds + 1 {
			var p50 [len(worlds)]float64
			for n := range worlds {
				i := (n + round) % len(worlds) // nobody always follows the same
				var took []time.Duration
				if err := worlds[i].pairs[0].near.Call("Load.Ping", work.args, &took); err != nil {
					return nil, err
				}
				p50[i] = float64(report.Median(took))
			}
			if round > 0 { // the first one warms up
				with, same = append(with, p50[0]/p50[1]), append(same, p50[2]/p50[1])
			}
		}
		more := report.Median(with) - 1
		rows = append(rows, report.Judge(fmt.Sprintf("one class, %s, %s: with slots and filter against without", p.name,
			work.name),
			fmt.Sprintf("%+.1f %% (two alike: %+.1f %%)", 100*more, 100*(report.Median(same)-1)), "at most 1 %",
			more <= 0.01))
	}
	return rows, nil
}
