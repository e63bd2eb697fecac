package tcp

import (
	"context"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// Revoke is the owner's fence. On every lane by which the peer (or any) reaches us it refuses the region's slices from
// now on, waits for a piece under way into the region, and copies its bytes that are being sent, so that at its return
// nothing that began before reads or writes the bytes. It waits for no peer.
//
// With keep, slices that the peer accepts later work again: the lane gets a barrier, which the initiator passes back
// behind everything that it had accepted before.
func (t *Transport) Revoke(_ context.Context, key transport.LocalKey, peer *transport.Peer, keep bool) error {
	r := t.regions.Lookup(uint64(key))
	if r == nil {
		return kit.NoRegion("tcp.revoke", key)
	}
	barrier := uint64(0) // a region that is closed to everybody needs none: it is not found any more
	switch {
	case keep:
		barrier = t.barriers.Add(1)
	case peer != nil:
		barrier = forever
	default:
		r.revoked.Store(true)
	}
	if barrier != 0 {
		r.barred.Store(true)
	}
	for _, a := range t.attachments.ofPeer(peer) {
		if barrier == forever {
			a.deny(r.key)
		}
		for _, l := range a.openLanes() {
			l.revoke(r.key, barrier)
		}
	}
	return nil
}

// deny closes a region for a peer's future lanes.
func (a *attachment) deny(key uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.denied == nil {
		a.denied = map[uint64]bool{}
	}
	a.denied[key] = true
}

// unbar forgets the bars of a region that is not registered any more. Its key is not used again.
func (a *attachment) unbar(key uint64) {
	a.mu.Lock()
	delete(a.denied, key)
	a.mu.Unlock()
	for _, l := range a.openLanes() {
		l.copyMu.Lock()
		delete(l.in.bars, key)
		l.copyMu.Unlock()
	}
}

func (l *responderLane) revoke(key, barrier uint64) {
	l.copyMu.Lock() // waits for the piece under way
	if barrier != 0 {
		l.in.bar(key, barrier)
	}
	l.changed = true
	l.mu.Lock()
	l.reads.refuse(func(j *readJob) bool { return j.key == key })
	if barrier != 0 && barrier != forever {
		l.postLocked(header{kind: kindBarrier, seq: barrier})
	}
	l.mu.Unlock()
	l.copyMu.Unlock()
	l.writeMu.Lock() // waits for the call under way
	l.quietenRegion(key)
	l.writeMu.Unlock()
	l.pump(submitBudget)
}
