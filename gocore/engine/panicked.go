package engine

import (
	"fmt"
	"os"
	"runtime/debug"
	"time"
)

// A panic under the engine's mutex leaves books that agree with nothing, and the mutex locked: each later call would
// wait for ever, and nobody could say which bytes still move. So it ends the process, with a text for a report. A
// transport or a face that recovers from panics must not hide it. Decision 0194.

// issues is where defects are reported.
const issues = "https://github.com/tent-engine/tent/issues"

// endOnPanic is deferred by all that the core does on behalf of transports and goroutines.
func endOnPanic() {
	if p := recover(); p != nil {
		endProcess(p)
	}
}

// EndIfStuck ends the process if a panic that its caller has recovered from left the engine's mutex locked. Nobody else
// holds it for long.
func (e *Engine) EndIfStuck(panicked any) {
	for looks := 0; !e.mu.TryLock(); looks++ {
		if looks == 1000 {
			endProcess(panicked)
		}
		time.Sleep(time.Millisecond)
	}
	e.unlockAndDrain()
}

// endProcess reports a panic with its stack, and ends the process although a caller recovers.
func endProcess(panicked any) {
	fmt.Fprintf(os.Stderr, "tent %s: a defect of the engine ends this process: %v\nPlease report it at %s with these "+
		"lines:\n\n%s\n", Release, panicked, issues, debug.Stack())
	go panic("tent: the engine cannot go on")
	select {}
}
