package engine

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/tent-engine/tent/gocore/audit"
	"github.com/tent-engine/tent/gocore/clock"
)

// closeGrace is the time that each of three steps of Close may take beyond the caller's. They are the last ends of
// transfers, the fences of the regions, and the goodbyes of the transports.
const closeGrace = 3 * time.Second

// Close ends the engine and returns when it is quiescent. Otherwise held names the memory that a kernel, a driver or a
// peer did not give back. With cancel, transfers under way are cancelled at once; without, they have until timeout. A
// later call returns the same when the first one has ended, or at the end of its own time.
//
// Each step below would break something if it came elsewhere:
//
//  1. Nothing new is taken, or the end would never come. The name is withdrawn: nobody finds us any more.
//  2. Transfers end or are cancelled; their tasks' ends need live links. Streams that wait for one go on: a driver
//     frees no memory before they have.
//  3. Notifications end: they belong to transfers, and need the control plane. So do reports of traced ones,
//     and talk about descriptors. Leases end no more by themselves, but with their regions.
//  4. Regions are revoked while our readers still serve, so that peers are refused instead of cut off.
//  5. Links are detached, transports closed side by side: no thread of theirs touches memory any more.
//  6. The control plane ends: until here peers can ask for withdrawals.
//  7. The progress goroutine ends, then the memory shared with other processes, which steps of the core used. The page
//     stays until Forget, since Python still reads it.
//  8. The audit file has its last line, and the log the number of those that its disk did not take in auditGrace.
func (e *Engine) Close(timeout time.Duration, cancel bool) (held []string) {
	if e.closed.Swap(true) {
		return e.awaitEnd(timeout)
	}
	defer close(e.ended)
	e.Refuse()
	e.held = e.end(timeout, cancel)
	return e.held
}

// Refuse ends the submits of the engine: later ones fail as those of a closed engine do, and the page shows all others.
// Nothing else changes. Close does it first. Python does so earlier, since it settles its transfers before it closes.
func (e *Engine) Refuse() {
	e.mu.Lock()
	defer e.unlockAndDrain()
	e.refuses = true
	e.show()
}

// awaitEnd waits for the call of Close that came first, for as long as a call with this timeout may take itself.
func (e *Engine) awaitEnd(timeout time.Duration) (held []string) {
	timer := time.NewTimer(max(timeout, timeout+3*closeGrace)) // max: the sum may overflow
	defer timer.Stop()
	select {
	case <-e.ended:
		return e.held
	case <-timer.C:
		return []string{"another call is still closing the engine"}
	}
}

// end takes the steps of Close.
func (e *Engine) end(timeout time.Duration, cancel bool) (held []string) {
	until := clock.Now().Add(timeout)
	_ = e.store.Close() // a name that the service does not take back ends with its lease
	if !cancel {
		e.drained(timeout)
	}
	e.cancelAll()
	grace := max(closeGrace, until.Sub(clock.Now()))
	e.drained(closeGrace)
	e.closeAllHolds()
	e.notifier.close()
	e.endTalk()

	held = append(held, e.endMemory(grace)...)
	if len(held) == 0 {
		e.freeStaging()
	}
	e.served.close()
	e.closeServer()
	e.client.Close()
	e.routines.close()
	e.mu.Lock()
	e.step()
	left := e.core.Outstanding()
	e.gone = true
	e.endRest()
	e.waiters.close()
	e.unlockAndDrain()
	e.shared.close()
	if left > 0 {
		held = append(held, fmt.Sprintf("%d slices whose completion never came", left))
	}
	e.audit.Note(audit.Entry{Engine: e.name, Event: "engine_closed"})
	e.closeAudit()
	_ = e.signal.close()
	e.notes.close()
	e.history.close()
	return held
}

// endTalk ends the calls to peers that no transfer waits for.
func (e *Engine) endTalk() {
	e.reporter.close()
	e.changes.close()
	e.renewals.close()
	e.leases.close()
}

// drained waits until no batch is under way.
func (e *Engine) drained(timeout time.Duration) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		e.mu.Lock()
		n := e.active
		e.unlockAndDrain()
		if n == 0 {
			return
		}
		select {
		case <-e.idle:
		case <-timer.C:
			return
		}
	}
}

func (e *Engine) cancelAll() {
	e.mu.Lock()
	for _, b := range e.batches {
		if !b.isPending() {
			continue
		}
		if _, err := e.cancel(b, -1); err != nil {
			e.log.Error("cancel at close", "err", err)
		}
	}
	e.step()
	e.unlockAndDrain()
}

// endRest ends the batches with slices that never came back, for their waiters. Their memory is held. The caller holds
// e.mu.
func (e *Engine) endRest() {
	for _, b := range e.batches {
		if !b.isPending() {
			continue
		}
		b.failure = cmp.Or(b.failure, closedError())
		sum, _ := e.core.Summary(b.id)
		e.page.publish(b.id, endOf(b.failure), sum.Bytes, 0, int64(max(1, clock.Now()-b.started)))
		for _, w := range b.waiters {
			w.wakeUp()
		}
	}
}

// endMemory ends the regions, within grace, and then the links and transports. Those have a limit of their own, since
// a driver that hangs with the memory of one keeps no other from its end.
func (e *Engine) endMemory(grace time.Duration) (held []string) {
	ctx, done := context.WithTimeout(context.Background(), grace)
	held = e.closeRegions(ctx)
	done()
	ctx, done = context.WithTimeout(context.Background(), closeGrace)
	defer done()
	return append(held, e.closeLinks(ctx)...)
}

// closingAtOnce bounds the regions and pools that are closed at the same time.
const closingAtOnce = 256

// closeRegions closes all regions and pools side by side: a peer that does not let one go keeps none of the others.
func (e *Engine) closeRegions(ctx context.Context) (held []string) {
	var mu sync.Mutex
	failed := make(map[*region]error)
	var staging error
	var closing sync.WaitGroup
	closing.Go(func() { staging = e.closeStaging(ctx) })
	list := e.regions.all()
	sideBySide(list, closingAtOnce, func(r *region) {
		if err := e.CloseRegion(ctx, r.ID); err != nil {
			mu.Lock()
			failed[r] = err
			mu.Unlock()
		}
	})
	closing.Wait()
	for _, r := range list {
		if err := failed[r]; err != nil {
			held = append(held, fmt.Sprintf("region %s: %v", r.label(), err))
		}
	}
	for _, r := range e.regions.retire.wait(ctx) {
		if failed[r] == nil {
			held = append(held, fmt.Sprintf("region %s: a driver has not let it go", r.label()))
		}
	}
	if staging != nil {
		held = append(held, fmt.Sprintf("staging: %v", staging))
	}
	return held
}

func (e *Engine) closeLinks(ctx context.Context) (held []string) {
	for _, p := range e.segments.where(func(*peer) bool { return true }) {
		p.detach(closedSegment())
	}
	return e.closeTransports(ctx)
}

// closeTransports closes all side by side: one that takes the whole time keeps no other from its end.
func (e *Engine) closeTransports(ctx context.Context) (held []string) {
	failures := make([]error, len(e.ports))
	var closing sync.WaitGroup
	for i, p := range e.ports {
		if p.transport != nil {
			closing.Go(func() { failures[i] = p.transport.Close(ctx) })
		}
	}
	closing.Wait()
	for i, err := range failures {
		if err != nil {
			held = append(held, fmt.Sprintf("transport %s: %v", e.ports[i].name, err))
		}
	}
	return held
}
