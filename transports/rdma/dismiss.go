package rdma

import (
	"sync"
	"time"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// The end of a guest: its queue pairs are closed, or cut off from memory by a reset. A device that does neither proves
// nothing, and nobody is told that the guest has ended. So the peer asks again, and a fence goes on to the keys.

// Disconnect implements transport.Disconnecter. A connection of the peer that is under way ends first.
func (t *Transport) Disconnect(peer transport.ID) {
	if !t.enter() {
		return
	}
	defer t.calls.Done()
	t.guests.banish(peer)
	var wait sync.WaitGroup
	for _, g := range t.guests.all(peer) {
		wait.Go(func() { t.expel(g) })
	}
	wait.Wait()
}

// expel dismisses a guest. Where its queue pairs do not end, it tries on by itself; the fences that follow close keys.
func (t *Transport) expel(g *guest) {
	if t.dismiss(g) == nil {
		return
	}
	g.mu.Lock()
	tried := g.tried
	g.tried = true
	g.mu.Unlock()
	if tried { // a peer may say goodbye as often as it likes
		return
	}
	t.life.Go(func() {
		for rest(t.ctx, endLimit/2) { // Close tries once more
			if t.dismiss(g) == nil {
				return
			}
		}
	})
}

// dismiss closes the queue pairs of a guest. Nothing of it moves when it returns. After an error something may, and the
// guest stays in the table.
func (t *Transport) dismiss(g *guest) error {
	g.mu.Lock()
	g.ended = true
	g.mu.Unlock()
	if err := g.close(func(*guestLane) bool { return true }); err != nil {
		return err
	}
	t.guests.mu.Lock()
	if t.guests.byKey[g.key] == g {
		delete(t.guests.byKey, g.key)
		if t.guests.count[g.key.id]--; t.guests.count[g.key.id] == 0 {
			delete(t.guests.count, g.key.id)
		}
	}
	t.guests.mu.Unlock()
	for _, r := range t.regions.All() {
		r.mu.Lock()
		delete(r.guests, g)
		r.mu.Unlock()
	}
	return nil
}

// exile is a peer that was disconnected. Its calls from before are refused, and it may come again by another handshake,
// as one does that had nothing open when its certificate ended. One that knows keys of regions that were taken from it
// meanwhile stays out: they kept their keys, since it has no queue pair.
type exile struct {
	since time.Time
	knows bool
}

// exileLeast is how long a call of a peer from before its end may still come: the control plane ends its calls before.
const exileLeast = 10 * time.Second

// refusal is the answer to a call of the peer. An engine that wants to attach asks again, unless it stays out.
func (e *exile) refusal(attaches bool) *errs.Error {
	code := errs.PeerNotAdmitted
	if attaches && !e.knows {
		code = errs.Timeout
	}
	return errs.New(code, "rdma.serve", "the owner has disconnected this engine").
		WithScope(errs.ScopeLink, errs.SideRemote)
}

func (t *guests) banish(peer transport.ID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.out[peer]
	t.out[peer] = &exile{since: time.Now(), knows: before != nil && before.knows}
}

// isOutLocked reports whether a peer is kept out, and forgets that when it may come again.
func (t *guests) isOutLocked(peer transport.ID) bool {
	e := t.out[peer]
	if e != nil && !e.knows && time.Since(e.since) > exileLeast {
		delete(t.out, peer)
		e = nil
	}
	return e != nil
}

// disconnected reports whether a peer is kept out and has no queue pair left. A region that is taken from it may keep
// its keys then, and the peer stays out.
func (t *guests) disconnected(peer transport.ID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.out[peer]
	if e == nil || t.count[peer] != 0 {
		return false
	}
	e.knows = true
	return true
}

// close closes pairs of a guest, each after the connection that is under way on its rail.
func (g *guest) close(which func(*guestLane) bool) (failed error) {
	for _, r := range g.list() {
		r.busy <- struct{}{}
		if err := g.closeLanes(r, which); err != nil {
			failed = err
		}
		<-r.busy
	}
	return failed
}

// closeLanes closes pairs of a rail. Those that do not end are kept. The caller holds its token.
func (g *guest) closeLanes(r *guestRail, which func(*guestLane) bool) (failed error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for number, l := range r.lanes {
		if !which(l) {
			continue
		}
		if err := l.device.endGuestPair(l, g.key.id); err != nil {
			failed = err
			continue
		}
		delete(r.lanes, number)
	}
	return failed
}

// cut ends the access of a guest that did not answer. Its queue pairs leave the state in which they receive, until it
// connects anew and hears the news. An error says that one may still receive.
func (g *guest) cut(n news) (failed error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	known := g.unheard[n.region]
	known.join(n)
	g.unheard[n.region] = known
	for _, r := range g.rails {
		for _, l := range r.lanes { // one that is being connected fails, or its peer hears the news with the answer
			if err := l.pair.Reset(); err != nil && !l.device.pulled(err) {
				failed = l.device.notEnded(l.pair, err)
			} else {
				l.device.endedAfterAll(l.pair)
			}
		}
	}
	return failed
}
