package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/tests/bench/report"
)

const (
	regionBytes = 4 << 10
	regionBatch = 200 // registered and closed for one figure
)

// regions measures a registration and a close beside more and more other regions. They lie side by side in one mapping,
// and are registered in a random order.
func regions(o *options) ([]report.Row, error) {
	e, err := open(nil)
	if err != nil {
		return nil, err
	}
	defer e.Close(limit, true)
	start, err := unix.MmapPtr(-1, 0, nil, uintptr(o.regions+regionBatch)*regionBytes, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, err
	}
	order := rand.New(rand.NewPCG(o.seed, 0)).Perm(o.regions + regionBatch)
	register := func() (mem.RegionID, error) {
		at := order[0]
		order = order[1:]
		return e.Register(engine.Memory{Addr: uintptr(start) + uintptr(at)*regionBytes, Size: regionBytes,
			Location: "cpu:0", Permission: mem.GlobalReadWrite})
	}
	var table []report.Row
	var first [2]time.Duration
	there := 0
	for _, n := range steps(100, o.regions) {
		for ; there < n; there++ {
			if _, err := register(); err != nil {
				return nil, err
			}
		}
		var cost [2][]time.Duration
		for range 5 * o.rounds {
			from := order
			opened, closed, err := comeAndGo(e, register)
			if err != nil {
				return nil, err
			}
			cost[0], cost[1] = append(cost[0], opened), append(cost[1], closed)
			order = from
		}
		for i, verb := range []string{"register", "close"} {
			least := slices.Min(cost[i]) // a busy machine only adds
			if first[i] == 0 {
				first[i] = least
			}
			times := float64(least) / float64(first[i])
			o.note(verb+" a region, by regions", n, times)
			table = append(table, report.Judge(fmt.Sprintf("%s a region beside %d others", verb, n),
				fmt.Sprintf("%v: %.2f times the first", report.Short(least), times), "1.5 times", times <= 1.5))
		}
	}
	return table, nil
}

// comeAndGo registers a batch of regions and closes them, and returns the time of each one's registration and close.
func comeAndGo(e *engine.Engine, register func() (mem.RegionID, error)) (registered, closed time.Duration, err error) {
	var ids [regionBatch]mem.RegionID
	begin := time.Now()
	for i := range ids {
		if ids[i], err = register(); err != nil {
			return 0, 0, err
		}
	}
	middle := time.Now()
	for _, id := range ids {
		if err := e.CloseRegion(context.Background(), id); err != nil {
			return 0, 0, err
		}
	}
	return middle.Sub(begin) / regionBatch, time.Since(middle) / regionBatch, nil
}
