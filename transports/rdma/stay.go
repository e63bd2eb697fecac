package rdma

import (
	"math/rand/v2"
	"time"
)

// A peer that is killed says no goodbye, and a queue pair that only receives does not notice: it would stay for as long
// as its owner runs. So links keep in touch, and a guest that has said nothing for long is dismissed, unless requests
// have come by its queue pairs: its calls may be lost while its bytes are not.

const (
	keepDefault  = time.Minute      // between two words of a link
	quietDefault = 10 * time.Minute // without one, until its queue pairs are looked at
)

// stay keeps in touch with the peers of links. The goroutine of scan calls it, which alone uses link.due.
func (t *Transport) stay() {
	now := time.Now()
	for _, l := range t.links.All() {
		switch {
		case l.over.Load() || !l.isReady():
		case l.due.IsZero():
			l.due = now.Add(rand.N(t.settings.Keep)) // links that came together do not speak together
		case !now.Before(l.due):
			l.due = now.Add(t.settings.Keep)
			t.life.Go(func() { _, _ = l.call(l.hello(), t.settings.DialLimit) }) // lanes say whether it is well
		}
	}
}

// sweep dismisses the guests that have left without a word.
func (t *Transport) sweep() {
	now := time.Now()
	for _, g := range t.guests.silent(now.Add(-t.settings.Quiet)) {
		t.guests.hear(g, now) // the next look, or the next try to dismiss it, comes as late
		if g.moved() {
			continue
		}
		t.host.Log().Info("rdma: a peer has left without a word, and its queue pairs end", "peer", g.peer.Address)
		t.life.Go(func() { t.expel(g) })
	}
}

// silent returns the guests of other engines that were heard last before a moment.
func (t *guests) silent(before time.Time) (list []*guest) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, g := range t.byKey {
		if !g.peer.Self && g.heard.Before(before) {
			list = append(list, g)
		}
	}
	return list
}

func (t *guests) hear(g *guest, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	g.heard = now
}

// moved reports whether requests have come by a queue pair of the guest since the last look. The first look finds some.
func (g *guest) moved() (any bool) {
	for _, r := range g.list() {
		select {
		case r.busy <- struct{}{}:
		default:
			return true // it connects
		}
		for _, l := range r.lanes {
			if a, err := l.pair.Query(); err == nil && a.Received != l.received {
				l.received, any = a.Received, true
			}
		}
		<-r.busy
	}
	return any
}
