package rdma

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// A fence of an owner. NICs of peers read and write its memory without asking, so it asks their engines first, and then
// closes the remote keys that the peers had (rekey.go). The answers keep transfers of honest peers whole, the keys keep
// out the others.
//
//	Revoke ── news to every guest that learned of the region ──answers: nothing of before is out──▶ old keys are closed
//	             └── no answer in time ──▶ its queue pairs are reset; it hears when it connects again ──▶ the same
//
// A NIC may give a closed key to other memory at once. An honest peer does not use it: one that answered refuses its
// slices, and one that did not has no queue pair. One that lies may guess keys of the owner's memory in any case.

// learn enters a guest as one that knows the region, and returns the news that hold for it.
func (r *region) learn(g *guest) news {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.guests[g] = true // dismiss takes it out; tell does where it was dismissed meanwhile
	n := news{region: uint64(r.key), version: r.keys.Load().version}
	n.floor, n.closed = r.door.Last(g.key.id)
	return n
}

// Revoke implements transport.Transport.
func (t *Transport) Revoke(ctx context.Context, key transport.LocalKey, peer *transport.Peer,
	epoch transport.Epoch) error {
	if !t.enter() {
		return kit.Closed("rdma.revoke")
	}
	defer t.calls.Done()
	r := t.regions.Lookup(key)
	if r == nil {
		return kit.NoRegion("rdma.revoke", key)
	}
	return t.revoke(ctx, r, peer, epoch)
}

func (t *Transport) revoke(ctx context.Context, r *region, peer *transport.Peer, epoch transport.Epoch) error {
	r.door.Shut(peer, epoch) // before the list of guests: one that learns of the region now sees it
	n := news{region: uint64(r.key), floor: epoch, closed: epoch == transport.ForGood}
	if peer != nil || !n.closed {
		return t.rekey(ctx, r, peer, n)
	}
	_ = t.tell(ctx, r, nil, n) // a queue pair that does not end opens nothing by keys that have ended
	r.mu.Lock()
	r.ended = true
	last := r.keys.Load()
	r.mu.Unlock()
	return r.endAll(last.remote)
}

// Visitors implements transport.Visited.
func (t *Transport) Visitors() []transport.ID {
	t.guests.mu.Lock()
	defer t.guests.mu.Unlock()
	return slices.Collect(maps.Keys(t.guests.count))
}

// tell brings news of a region to the guests that know it. Guests of others than a peer, nil for everybody, hear of the
// keys alone. When it returns, no slice that the news forbid is out, unless a peer lies. An error says that one may be.
func (t *Transport) tell(ctx context.Context, r *region, peer *transport.Peer, n news) error {
	r.mu.Lock()
	list := slices.Collect(maps.Keys(r.guests))
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	failed := make([]error, len(list))
	var wait sync.WaitGroup
	for i, g := range list {
		theirs := n
		if peer != nil && peer.ID != g.key.id {
			theirs.floor, theirs.closed = 0, false
		}
		if theirs.closed || theirs.floor != 0 || theirs.version != 0 {
			wait.Go(func() { failed[i] = t.tellOne(ctx, r, g, theirs) })
		}
	}
	wait.Wait()
	return errors.Join(failed...)
}

// tellOne brings news to a guest, or cuts it off.
func (t *Transport) tellOne(ctx context.Context, r *region, g *guest, n news) error {
	g.mu.Lock()
	ended := g.ended
	g.mu.Unlock()
	if ended {
		err := g.cut(n) // a connection that is under way may keep it from its end for seconds
		if err == nil {
			r.mu.Lock()
			delete(r.guests, g)
			r.mu.Unlock()
		}
		return err
	}
	if _, err := t.host.Call(ctx, g.peer, n.encode(message(kindNews, g.key.link))); err != nil {
		return g.cut(n)
	}
	return nil
}
