package engine

import (
	"context"
	"time"

	"github.com/tent-engine/tent/gocore/traps"
)

// trapsEvery is the longest time for which a handler that another library installs may stay in front of Go's.
const trapsEvery = time.Second

// keepTraps keeps memory that is gone an error, also after another library has installed a handler of memory faults.
// Two system calls a second are its cost.
func (e *Engine) keepTraps(ctx context.Context) {
	every := time.NewTicker(trapsEvery)
	defer every.Stop()
	for e.lookAtTraps() {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
	}
}

// lookAtTraps repairs the handlers if need be. It returns false when it cannot any more.
func (e *Engine) lookAtTraps() bool {
	repaired, err := traps.Keep()
	if err != nil {
		e.log.Warn("memory faults", "err", err)
	} else if repaired {
		e.log.Info("memory faults: a handler of another library was put behind ours; it gets the faults of other code")
	}
	return err == nil
}
