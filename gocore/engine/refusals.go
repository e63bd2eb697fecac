package engine

import (
	"sync"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/metrics"
	"github.com/tent-engine/tent/gocore/transport"
)

// planeControl is the plane of refusals by the control plane; those of a transport have its name.
const planeControl = "control"

const (
	refusalEvery    = time.Second // between two events about one peer and reason
	refusalPeers    = 256         // peers and reasons that are remembered; the counters take the rest
	strangerTextMax = 255         // bytes of a text of a peer in an event
)

// refusals counts the refusals to peers. It announces each (peer, reason) at most once a second, with the number
// since the last time: an attacker fills neither the log nor memory. Any goroutine may use it.
type refusals struct {
	engine *Engine

	mu     sync.Mutex
	planes []metrics.Refusals
	told   map[refusalKey]*toldRefusal

	admissions perSecond
}

type refusalKey struct {
	plane, from string
	reason      transport.Refusal
}

type toldRefusal struct {
	at    clock.Time
	quiet int // refused since then
}

func newRefusals(e *Engine, plugs []Plug) *refusals {
	r := &refusals{engine: e, told: make(map[refusalKey]*toldRefusal)}
	r.planes = append(r.planes, metrics.Refusals{Plane: planeControl})
	for _, plug := range plugs {
		r.planes = append(r.planes, metrics.Refusals{Plane: plug.Factory.Name()})
	}
	return r
}

// count counts one refusal, and announces it when it is time to.
func (r *refusals) count(plane string, reason transport.Refusal, from string, cause error) {
	from = errs.Printable(from, strangerTextMax)
	n := r.due(refusalKey{plane, from, reason}, clock.Now())
	if n == 0 {
		return
	}
	kind := event.AccessRefused
	if reason == transport.RefusedIdentity || reason == transport.RefusedVersion {
		kind = event.PeerRefused
	}
	e := *errs.From(plane, cause)
	e.Cause = errs.Printable(e.Cause, strangerTextMax)
	r.engine.announce(&event.Event{Kind: kind, Peer: from, Transport: plane, Note: reason.String(), N: n, Err: &e})
}

// due returns the refusals that an event is to report now, 0 for no event.
func (r *refusals) due(key refusalKey, now clock.Time) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.planes {
		if r.planes[i].Plane == key.plane {
			r.planes[i].Counts[key.reason]++
		}
	}
	if t := r.told[key]; t != nil {
		t.quiet++
		if now.Sub(t.at) < refusalEvery {
			return 0
		}
		n := t.quiet
		*t = toldRefusal{at: now}
		return n
	}
	if len(r.told) >= refusalPeers && !r.forget(now) {
		return 0
	}
	r.told[key] = &toldRefusal{at: now}
	return 1
}

// forget makes room by dropping the peers that nothing was refused to for a while. It reports whether there is room.
func (r *refusals) forget(now clock.Time) bool {
	for key, t := range r.told {
		if now.Sub(t.at) >= refusalEvery {
			delete(r.told, key)
		}
	}
	return len(r.told) < refusalPeers
}

func (r *refusals) snapshot() []metrics.Refusals {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]metrics.Refusals(nil), r.planes...)
}
