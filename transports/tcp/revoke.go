package tcp

import (
	"context"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// Revoke is the owner's fence. It raises the region's floor, waits for a piece under way into the region on every lane
// by which the peer (or any) reaches us, and copies its bytes that are being sent, so that at its return no slice of an
// older epoch reads or writes the bytes, however late it comes.
//
// That needs nobody. Then it announces the epoch to the peers, and waits until those that answer have heard of it.
func (t *Transport) Revoke(ctx context.Context, key transport.LocalKey, peer *transport.Peer,
	epoch transport.Epoch) error {
	r := t.regions.Lookup(uint64(key))
	if r == nil {
		return kit.NoRegion("tcp.revoke", key)
	}
	r.door.Shut(peer, epoch)
	for _, a := range t.attachments.ofPeer(peer) {
		for _, l := range a.allLanes() {
			l.quieten(r.key)
		}
	}
	if epoch == transport.ForGood {
		return nil
	}
	t.raise(uint64(epoch)) // before the list: an attachment that comes later finds it
	ctx, cancel := context.WithTimeout(ctx, transport.HearingLimit)
	defer cancel()
	told := t.attachments.ofPeer(peer)
	for _, a := range told {
		for _, l := range a.allLanes() {
			l.tell(uint64(epoch), record{id: r.key})
		}
	}
	for _, a := range told {
		a.awaitHearing(ctx, uint64(epoch))
	}
	return nil
}

// raise makes an epoch the one that new lanes and refused slices hear of.
func (t *Transport) raise(epoch uint64) {
	for {
		now := t.epoch.Load()
		if now >= epoch || t.epoch.CompareAndSwap(now, epoch) {
			return
		}
	}
}

// quieten makes slices under way look at the region's door again, and waits for the pieces of those that had looked
// before.
func (l *responderLane) quieten(key uint64) {
	l.copyMu.Lock() // waits for the piece under way
	l.changed = true
	l.copyMu.Unlock()
	l.writeMu.Lock() // waits for the call under way
	l.quietenRegion(key)
	l.writeMu.Unlock()
	l.dirty.Store(true) // READs that wait are refused now
	l.pump(submitBudget)
}

// tell sends an epoch to the initiator, with the region that was fenced in it if there is one.
func (l *responderLane) tell(epoch uint64, fenced ...record) {
	l.post(header{kind: kindRaised, seq: epoch}, fenced...)
	l.pump(submitBudget)
}

// hears notes that the initiator begins its tasks in an epoch, or a later one.
func (a *attachment) hears(epoch uint64) {
	a.t.attachments.mu.Lock()
	defer a.t.attachments.mu.Unlock()
	if epoch > a.heard {
		a.heard = epoch
		a.newsLocked()
	}
}

// newsLocked wakes fences that wait for the initiator to hear.
func (a *attachment) newsLocked() {
	if a.news != nil {
		close(a.news)
		a.news = nil
	}
}

// connectingLocked reports whether the initiator is about to open its first lane, where it hears of the newest epoch.
func (a *attachment) connectingLocked() bool {
	return len(a.old) == 0 && clock.Now().Sub(a.since) < transport.HearingLimit
}

// awaitHearing returns when the initiator has heard of an epoch, when it has no lane left to say so, or with ctx.
func (a *attachment) awaitHearing(ctx context.Context, epoch uint64) {
	for {
		a.t.attachments.mu.Lock()
		if a.heard >= epoch || a.left || len(a.lanes) == 0 && !a.connectingLocked() {
			a.t.attachments.mu.Unlock()
			return
		}
		if a.news == nil {
			a.news = make(chan struct{})
		}
		news := a.news
		a.t.attachments.mu.Unlock()
		select {
		case <-news:
		case <-ctx.Done():
			return
		}
	}
}
