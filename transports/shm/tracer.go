package shm

import (
	"slices"
	"sync"

	"github.com/tent-engine/tent/transports/host/access"
	"github.com/tent-engine/tent/transports/host/vm"
)

// tracerList keeps for this process to whom it gives itself under Yama's scope 1. Yama knows one tracer a process,
// whichever engine names it, so this is the one thing that engines of a process share. The first peer has it; when that
// one has left, the next.
type tracerList struct {
	mu    sync.Mutex
	named *access.Grant
	any   bool
	wait  []*access.Grant
}

var tracers tracerList

// admit names the peer if nobody is named, or everybody if that is wanted, and returns the process that is named now.
func (l *tracerList) admit(a *access.Grant, everybody bool) int32 {
	if a.Own() || vm.TraceScope() != vm.ScopeRelation {
		return vm.AnyTracer
	}
	return l.enter(a, everybody)
}

func (l *tracerList) enter(a *access.Grant, everybody bool) int32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if everybody && !l.any {
		l.any = vm.AllowTracer(vm.AnyTracer) == nil
	}
	switch {
	case l.any:
		return vm.AnyTracer
	case l.named == a || slices.Contains(l.wait, a): // its greeting came twice
	case a.Ended(): // while it was answered: release has come before
	case l.named == nil:
		l.nameLocked(a)
	default:
		l.wait = append(l.wait, a)
	}
	if l.named == nil {
		return 0
	}
	return int32(l.named.PID)
}

func (l *tracerList) nameLocked(a *access.Grant) {
	if vm.AllowTracer(int(a.PID)) == nil {
		l.named = a
	}
}

// release forgets a peer that has left. Another link of its process keeps its place; else the next peer gets it, and
// uses it from its next greeting on.
func (l *tracerList) release(a *access.Grant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wait = slices.DeleteFunc(l.wait, func(other *access.Grant) bool { return other == a })
	if l.named != a {
		return
	}
	l.named = nil
	slices.SortStableFunc(l.wait, func(x, y *access.Grant) int { return rank(y, a) - rank(x, a) })
	for len(l.wait) > 0 && l.named == nil {
		next := l.wait[0]
		l.wait = l.wait[1:]
		l.nameLocked(next)
	}
}

// rank is higher for links of the process that had the place.
func rank(of, last *access.Grant) int {
	if of.PID == last.PID {
		return 1
	}
	return 0
}
