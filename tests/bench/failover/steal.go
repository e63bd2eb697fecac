package main

import (
	"fmt"
	"os"
	"time"
)

// stolen is the processor time that the hypervisor has given to other guests instead of us, since the machine began
// (proc(5), /proc/stat); 0 on real hardware. A guest that is stopped for 50 ms sees rails that are silent for 50 ms: what
// was measured meanwhile says nothing about tent.
func stolen() time.Duration {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	var user, nice, system, idle, wait, irq, soft, steal int64
	if _, err := fmt.Sscanf(string(text), "cpu %d %d %d %d %d %d %d %d", &user, &nice, &system, &idle, &wait, &irq, &soft, &steal); err != nil {
		return 0
	}
	const tick = 10 * time.Millisecond // USER_HZ
	return time.Duration(steal) * tick
}

const (
	kept      = "runs that count"
	disturbed = "runs made again"

	// patience bounds how many runs are made for one that counts.
	patience = 10
)

// undisturbed repeats measure until it has run with at most o.steal stolen, and counts those that had more.
func undisturbed(o options, f figures, measure func() error) error {
	for range patience {
		before := stolen()
		if err := measure(); err != nil {
			return err
		}
		if lost := stolen() - before; lost <= o.steal {
			f.add(kept, 1)
			return nil
		} else if o.verbose {
			progress("the hypervisor took %v away: again", lost)
		}
		f.add(disturbed, 1)
	}
	return errDisturbed
}

var errDisturbed = fmt.Errorf("the hypervisor took the processor away in %d runs in a row", patience)
