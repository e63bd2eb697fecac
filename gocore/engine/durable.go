package engine

import (
	"container/heap"
	"slices"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// The end of a batch after its last byte, in this order:
//
//	PENDING --last task COMPLETED--> files synced --> notification taken --> final
//	             |                      '--failed, deadline, cancel: FAILED, TIMEOUT, CANCELED
//	             '--task not COMPLETED: final at once, nothing is promised of the disk
//
// A sync that was asked for cannot be taken back: the batch ends without waiting for it. It touches no memory.

// tails are the ends of batches that wait for something behind the last byte, or have left something behind. Guarded by
// the engine's mutex.
type tails struct {
	syncs     syncing
	notes     noteLimits
	lingering []lingering
	beat      clock.Time // the last look at the clock while a batch waits; 0 while none does
}

// beatEvery is the pause between two looks at the clock while a batch waits for its files or its notification. By them
// a stop of this process is seen, which puts the limits off that are no deadlines: as in the core, where a batch that
// has all of its bytes has nothing due.
const beatEvery = 100 * time.Millisecond

// wait reports whether a batch waits.
func (t *tails) wait() bool { return len(t.notes.waiting)+len(t.syncs.batches) > 0 }

// syncing are the batches that wait for their files, few at a time.
type syncing struct {
	batches []dispatch.BatchID
	limit   clock.Time // the earliest of them ends as TIMEOUT
	tickets uint64
}

// syncOrder is a sync that a batch waits for. transports says which have moved its bytes, bit by index: each of them
// syncs its own descriptor, because the kernel reports a failed write-back once a descriptor.
type syncOrder struct {
	batch      dispatch.BatchID
	ticket     uint64
	peer       *peer
	transports uint32
}

// hasTail reports whether something comes behind the last byte of a batch.
func (b *batch) hasTail() bool {
	return b.note != nil || slices.ContainsFunc(b.files, func(u fileUse) bool { return u.sync })
}

// tail returns the state of a batch from the sum of its tasks, its syncs and notification included. The caller holds
// e.mu.
func (e *Engine) tail(b *batch, sum *dispatch.Summary, now clock.Time) dispatch.State {
	switch {
	case b.failure != nil:
		return endOf(b.failure)
	case sum.State != dispatch.Completed:
		return sum.State
	case b.forgoesSyncs():
		b.failure, b.unsure = unsynced(), true
		return dispatch.Canceled
	case !e.durable(b, sum.Transports, now):
		return dispatch.Pending
	case b.note != nil && !b.note.taken:
		if b.note.canceled && !b.note.queued {
			b.failure = unsent()
			return dispatch.Canceled
		}
		if !b.note.queued {
			e.expect(b.note)
		}
		return dispatch.Pending
	}
	return dispatch.Completed
}

// endOf is the state of a batch that failed behind its last byte.
func endOf(cause *errs.Error) dispatch.State {
	switch cause.Code {
	case errs.Timeout:
		return dispatch.TimedOut
	case errs.Canceled:
		return dispatch.Canceled
	}
	return dispatch.Failed
}

// limit is when a batch ends next without its sync or its notification. While one waits, it is the next look at the
// clock at the latest.
func (t *tails) limit() clock.Time {
	next := min(t.syncs.limit, t.notes.next)
	if t.wait() {
		next = min(next, t.beat.Add(beatEvery))
	}
	return next
}

// lateTails ends the batches with syncs and notifications that are too late. The caller holds e.mu.
func (e *Engine) lateTails(now clock.Time) {
	e.putOffTails(now)
	if e.tails.syncs.limit <= now {
		e.lateSyncs(now)
	}
	if e.tails.notes.next <= now {
		e.lateNotes(now)
	}
}

// putOffLimits is putOffTails for a goroutine that holds no lock.
func (e *Engine) putOffLimits() bool {
	e.mu.Lock()
	defer e.unlockAndDrain()
	return e.putOffTails(clock.Now())
}

// putOffTails puts the limits of batches that wait off by a stop of this process, and reports whether there was one.
// The caller holds e.mu.
func (e *Engine) putOffTails(now clock.Time) bool {
	t := &e.tails
	late := now - t.beat - clock.Time(beatEvery)
	began := t.beat == 0
	if t.beat = now; !t.wait() {
		t.beat = 0
	}
	if began || late < clock.Time(beatEvery) { // the usual lateness of a timer
		return false
	}
	e.notifier.putOff(t.notes.waiting, late)
	heap.Init(&t.notes.waiting)
	for _, id := range t.syncs.batches {
		if b, err := e.lookup(id); err == nil {
			for i := range b.files {
				u := &b.files[i]
				u.limit = min(u.limit+late, u.deadline)
			}
		}
	}
	t.notes.next, t.syncs.limit = min(t.notes.next, now), min(t.syncs.limit, now) // both are looked for anew
	return true
}

// cancelTail ends a batch that waits for its files or its notification alone, and reports whether it did. The caller
// holds e.mu.
func (e *Engine) cancelTail(b *batch) bool { return e.cancelSyncs(b) || e.cancelNote(b) }

// durable reports whether all syncs are done, and orders those that were not ordered yet. The caller holds e.mu.
func (e *Engine) durable(b *batch, transports uint32, now clock.Time) bool {
	done := true
	for i := range b.files {
		u := &b.files[i]
		if !u.sync || u.synced {
			continue
		}
		done = false
		if u.ticket != 0 {
			continue
		}
		s := &e.tails.syncs
		s.tickets++
		u.ticket, u.limit = s.tickets, min(u.deadline, now.Add(e.config.Engine.TransferSyncTimeout))
		s.limit = min(s.limit, u.limit)
		e.rearm(s.limit)
		if !slices.Contains(s.batches, b.id) {
			s.batches = append(s.batches, b.id)
		}
		e.deferred.syncs = append(e.deferred.syncs, syncOrder{b.id, u.ticket, u.peer, transports})
	}
	return done
}

// carryOut asks the transports of an order, one after the other, from an index on, to sync. It reports the outcome;
// asked is true when one has synced. The caller holds no lock.
func (o syncOrder) carryOut(e *Engine, from int, asked bool) {
	for i := from; i < len(e.ports); i++ {
		link, key, open := o.peer.openIn(i)
		if !open || o.transports>>i&1 == 0 {
			continue
		}
		e.ports[i].filer.Sync(link, key, func(err *errs.Error) {
			if err != nil {
				e.answer(o, err)
				return
			}
			o.carryOut(e, i+1, true)
		})
		return
	}
	if !asked {
		e.answer(o, errs.New(errs.Stale, "sync",
			"the transport that wrote to it has left the file").OfPeer(o.peer.identity.Address))
		return
	}
	e.answer(o, nil)
}

func (e *Engine) answer(o syncOrder, cause *errs.Error) {
	e.notice(notice{kind: noticeSynced, batch: o.batch, ticket: o.ticket, cause: cause})
}

// openIn returns the link and the key by which a transport has the file open.
func (p *peer) openIn(i int) (transport.Link, transport.RemoteKey, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	links := *p.links.Load()
	r := p.regions.Load().byID[fileRegion]
	if p.engine.ports[i].filer == nil || i >= len(links) || links[i].id == 0 || r.keys[i] == 0 {
		return 0, 0, false
	}
	return links[i].link, r.keys[i], true
}

// synced takes the answer to a sync. One that nobody waits for any more is ignored. The caller holds e.mu.
func (e *Engine) synced(id dispatch.BatchID, ticket uint64, cause *errs.Error, now clock.Time) {
	b, err := e.lookup(id)
	if err != nil {
		return
	}
	i := slices.IndexFunc(b.files, func(u fileUse) bool { return u.ticket == ticket && !u.synced })
	if i < 0 {
		return
	}
	if cause != nil {
		e.forgo(b, cause, now)
		return
	}
	b.files[i].synced = true
	if !b.syncs() {
		e.unwait(id)
	}
	e.mirror(id, now)
}

// syncs reports whether a sync of the batch was asked for and not answered.
func (b *batch) syncs() bool {
	return slices.ContainsFunc(b.files, func(u fileUse) bool { return u.ticket != 0 && !u.synced })
}

// forgo ends a batch and leaves its files without a sync. The caller holds e.mu.
func (e *Engine) forgo(b *batch, cause *errs.Error, now clock.Time) {
	e.unwait(b.id)
	b.failure, b.unsure = cause, true
	e.mirror(b.id, now)
}

// cancelSyncs ends a batch that waits for its files alone, and reports whether it did. One that has bytes under way
// will not wait for them: all of its tasks may complete, because the cancel came too late for them. The caller holds
// e.mu.
func (e *Engine) cancelSyncs(b *batch) bool {
	switch {
	case b.ended || b.failure != nil:
		return false
	case !b.syncs():
		for i := range b.files {
			b.files[i].canceled = true
		}
		return false
	}
	e.forgo(b, unsynced(), clock.Now())
	return true
}

// forgoesSyncs reports whether a batch was canceled before a sync that it wants was asked for.
func (b *batch) forgoesSyncs() bool {
	return slices.ContainsFunc(b.files, func(u fileUse) bool { return u.canceled && u.sync && u.ticket == 0 })
}

// unsynced is the error of a batch that was canceled, and has all its bytes nevertheless.
func unsynced() *errs.Error {
	return errs.New(errs.Canceled, "sync",
		"canceled by the user: the bytes are in the file, but perhaps not on stable storage")
}

// unwait takes a batch out of those that wait for their files.
func (e *Engine) unwait(id dispatch.BatchID) {
	s := &e.tails.syncs
	s.batches = slices.DeleteFunc(s.batches, func(other dispatch.BatchID) bool { return other == id })
	if len(s.batches) == 0 {
		s.limit = clock.Never
	}
}

// lateSyncs ends the batches that have waited for their files for too long. The caller holds e.mu.
func (e *Engine) lateSyncs(now clock.Time) {
	next := clock.Never
	for _, id := range slices.Clone(e.tails.syncs.batches) {
		b, err := e.lookup(id)
		if err != nil {
			e.unwait(id)
			continue
		}
		limit := clock.Never
		for _, u := range b.files {
			if u.ticket != 0 && !u.synced {
				limit = min(limit, u.limit)
			}
		}
		if limit <= now {
			e.forgo(b, errs.New(errs.Timeout, "sync",
				"the bytes are in the file, but were not on stable storage in time").
				WithHint("transfer_sync_timeout is the limit of a transfer without a deadline"), now)
			continue
		}
		next = min(next, limit)
	}
	e.tails.syncs.limit = next
}

// lingering are the regions and files of a batch that ended dirty. A driver or a kernel that has not given an operation
// back may still use them; they are let go when it has.
type lingering struct {
	remains *dispatch.Remains
	regions []*region
	files   []fileUse
}

// linger keeps the regions and files of a dirty batch, if they may still be used. The caller holds e.mu.
func (e *Engine) linger(b *batch) {
	remains := e.core.Remains(b.id)
	if remains == nil || !remains.Out() {
		return
	}
	e.tails.lingering = append(e.tails.lingering, lingering{remains, slices.Clone(b.uses), slices.Clone(b.files)})
	clear(b.uses)
	clear(b.files)
	b.uses, b.files = b.uses[:0], b.files[:0]
}

// letGo releases regions and files that came back. The caller holds e.mu.
func (e *Engine) letGo() {
	e.tails.lingering = slices.DeleteFunc(e.tails.lingering, func(l lingering) bool {
		if l.remains.Out() {
			return false
		}
		unuse(l.regions)
		e.dropFiles(l.files)
		return true
	})
}

// Lingers reports whether a driver or the kernel may still use the memory of a region, although the transfers that gave
// it have ended, dirty. The owner of memory that is not tent's asks before it frees that memory.
func (e *Engine) Lingers(id mem.RegionID) bool {
	e.mu.Lock()
	defer e.unlockAndDrain()
	for _, l := range e.tails.lingering {
		for _, r := range l.regions {
			if r.belongsTo(id) {
				return true
			}
		}
	}
	return false
}
