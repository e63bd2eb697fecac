package engine

import (
	"bytes"
	"maps"
	"slices"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/transport"
)

// A peer that replaces descriptors is asked for its description again: it called (Changed), or a slice was refused as
// Replaced (dispatch.Effects.Stale), or by an address that another region has now (astray.go). Regions that were
// imported are imported again, and the core gives running tasks the new keys (dispatch.Core.Rekey). It hands the old
// ones back when no slice carries them; only then does the transport forget them.

// Questions to one peer are renewEvery apart. A peer may ask for them without end, and each costs both sides a
// description. So they are paid from a token bucket: renewBurst at once, and one each renewRefill.
const (
	renewEvery  = 5 * time.Millisecond
	renewRefill = 100 * time.Millisecond
	renewBurst  = 50
)

// askPace is the token bucket of the questions to one peer (GCRA, ITU-T I.371). The goroutine of its renewal owns it.
type askPace struct{ paid clock.Time } // until when the bucket is empty, if renewBurst more are asked

// pause is the time between a question that was asked now and the next one.
func (p *askPace) pause(now clock.Time) time.Duration {
	p.paid = max(p.paid, now).Add(renewRefill)
	return max(renewEvery, p.paid.Sub(now)-renewBurst*renewRefill)
}

// renewals asks peers again, one goroutine a peer at most.
type renewals struct {
	background
	wanted map[*peer]*renewal // with a goroutine each
}

// renewal is the work for a peer that its goroutine has not begun.
type renewal struct {
	ask     bool
	retired []dispatch.Retired
	astray  []dispatch.Astray
}

func newRenewals() *renewals {
	r := &renewals{wanted: make(map[*peer]*renewal)}
	r.init()
	return r
}

// refresh makes the peers' descriptions new.
func (r *renewals) refresh(peers []*peer) {
	for _, p := range peers {
		r.add(p, func(w *renewal) { w.ask = true })
	}
}

// add notes work for a peer. Behind close it is left undone: no task is under way any more.
func (r *renewals) add(p *peer, note func(*renewal)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	w := r.wanted[p]
	if w == nil {
		w = &renewal{}
		r.wanted[p] = w
		r.running.Go(func() { r.run(p) })
	}
	note(w)
}

func (r *renewals) run(p *peer) {
	for {
		r.mu.Lock()
		w := r.wanted[p]
		if r.ctx.Err() != nil || (!w.ask && len(w.retired) == 0) {
			delete(r.wanted, p)
			r.mu.Unlock()
			return
		}
		now := *w
		*w = renewal{}
		r.mu.Unlock()
		p.forgetKeys(now.retired)
		if !now.ask {
			continue
		}
		if err := p.refresh(r.ctx); err != nil {
			p.engine.log.Debug("descriptors", "peer", p.identity.Address, "err", err)
		}
		p.relocate(now.astray)
		p.engine.notice(notice{kind: noticeRefreshed, peer: p.number})
		select {
		case <-r.ctx.Done():
		case <-time.After(p.asking.pause(clock.Now())):
		}
	}
}

// changed hears from a peer that its description has an epoch.
func (e *Engine) changed(from transport.ID, epoch uint64) {
	e.renewals.refresh(slices.DeleteFunc(e.segments.peersWith(from), func(p *peer) bool {
		t := p.regions.Load()
		return t == nil || !t.known || t.description.Epoch >= epoch
	}))
}

// keepStale takes over the orders of a step about keys. The caller holds e.mu.
func (e *Engine) keepStale(effects *dispatch.Effects) {
	e.deferred.stale = append(e.deferred.stale, effects.Stale...)
	e.deferred.retired = append(e.deferred.retired, effects.Retired...)
	e.deferred.astray = append(e.deferred.astray, effects.Astray...)
}

// renewStale carries out the orders that keepStale took. The caller holds no lock.
func (e *Engine) renewStale(stale []uint32, retired []dispatch.Retired) {
	if len(stale) > 0 {
		e.renewals.refresh(e.segments.numbered(stale))
	}
	for _, k := range retired {
		if of := e.ports[k.Transport].peerOf(k.Link); of != nil {
			e.renewals.add(of, func(w *renewal) { w.retired = append(w.retired, k) })
		}
	}
}

// rekey is a remote region's change of keys on a link.
type rekey struct {
	link     plan.LinkID
	old, key transport.RemoteKey
	matches  plan.Matches
}

// adoption is the consequences of a new description.
type adoption struct {
	rekeys  []rekey
	changed bool // plans are to be made anew
	failed  bool // an import has failed
}

// adopt takes over the regions of a description. Those that are known keep their records, and are imported again where
// their descriptors changed. The caller has the turn of p.fetch.
func (p *peer) adopt(t *remoteTable, old map[mem.RegionID]*remoteRegion) {
	var news adoption
	p.mu.Lock()
	for i := range t.description.Regions {
		listed := &t.description.Regions[i]
		r := old[listed.ID]
		if r == nil {
			r = &remoteRegion{Region: listed, keys: make([]transport.RemoteKey, len(p.engine.ports)),
				descriptors: listed.Descriptors}
		} else if len(listed.Descriptors) > 0 || len(r.descriptors) == 0 { // else a blob, which has none
			p.renew(r, listed.Descriptors, &news)
		}
		t.known = t.known || len(r.descriptors) > 0
		t.byID[r.ID] = r
	}
	changed := news.changed
	for id, r := range old {
		if t.byID[id] == nil {
			p.renew(r, nil, &news)
		}
	}
	t.behind = news.failed
	p.regions.Store(t)
	p.mu.Unlock()
	e := p.engine
	if changed {
		p.replan()
	}
	if len(news.rekeys) > 0 {
		now := clock.Now()
		e.mu.Lock()
		for _, k := range news.rekeys {
			e.core.Rekey(k.link, k.old, k.key, k.matches, now)
		}
		e.step()
		e.unlockAndDrain()
	}
}

// replan makes plans of before anew: the links of the peer or the keys of its regions have changed. Plans to others
// stay, but links to ourselves are hops of plans to all peers.
func (p *peer) replan() {
	if p.identity.Self {
		p.engine.planEpoch.Add(1)
	} else {
		p.plans.Add(1)
	}
}

// renew replaces a region's descriptors. A key that was made with another one is made again, or given up where the peer
// does not offer the region any more, or nothing here can use it. Where the import fails otherwise, as that of a busy
// peer does, the old key stays with its descriptor. Running tasks need one, and when a slice is refused, the peer is
// asked again. The caller holds p.mu.
func (p *peer) renew(r *remoteRegion, fresh map[string]transport.Descriptor, news *adoption) {
	links := *p.links.Load()
	kept := fresh
	for i, port := range p.engine.ports {
		before, now := r.descriptors[port.name], fresh[port.name]
		if bytes.Equal(before, now) {
			continue
		}
		old, key := r.keys[i], transport.RemoteKey(0)
		if old != 0 && len(now) > 0 && links[i].id != 0 {
			var err error
			key, err = port.transport.Import(links[i].link, now)
			if mayPass(err) {
				p.engine.log.Debug("import", "peer", p.identity.Address, "transport", port.name, "err", err)
				kept = maps.Clone(kept) // it is the description's
				kept[port.name], news.failed = before, true
				continue
			}
		}
		r.keys[i], news.changed = key, true
		if key != old {
			news.rekeys = append(news.rekeys, rekey{links[i].id, old, key, port.rematch(r, links[i], old, key)})
		}
	}
	r.descriptors = kept
}

// mayPass reports whether an import failed by something that another try may not meet.
func mayPass(err error) bool {
	switch code := errs.CodeOf(err); code {
	case errs.OK, errs.NotHere:
		return false
	case errs.Timeout, errs.TooManyRequests:
		return true
	default:
		return !code.Permanent()
	}
}

// rematch asks on which rails a new key of a region works, with each local key that plans have beside the old one.
func (p *port) rematch(r *remoteRegion, on attachment, old, key transport.RemoteKey) plan.Matches {
	plans := r.plans.Load()
	if p.matcher == nil || plans == nil || key == 0 {
		return nil
	}
	matches := plan.Matches{}
	for i := range *plans {
		made := &(*plans)[i]
		if made.local.life.state() != regionOpen {
			continue
		}
		for _, route := range made.plan.Routes {
			for _, hop := range route.Hops {
				if hop.Link != on.id || hop.RemoteKey != old {
					continue
				}
				// where the two work nowhere, each rail says so
				if m, err := p.matcher.Match(on.link, hop.LocalKey, key); err == nil {
					matches[hop.LocalKey] = m
				}
			}
		}
	}
	return matches
}

// forgetKeys makes transports forget keys, unless an import has returned them again or the link has ended.
func (p *peer) forgetKeys(list []dispatch.Retired) {
	if len(list) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	alive := make(map[dispatch.Retired]bool)
	links := *p.links.Load()
	for i := range links {
		for _, r := range p.regions.Load().byID {
			alive[dispatch.Retired{Transport: uint8(i), Link: links[i].link, Key: r.keys[i]}] = true
		}
	}
	for _, k := range list {
		if int(k.Transport) < len(links) && links[k.Transport].link == k.Link && !alive[k] {
			p.engine.ports[k.Transport].transport.Forget(k.Link, k.Key)
		}
	}
}
