package engine

import (
	"sync"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/control"
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
	refusalsMax     = 25          // events a second: two such seconds in one of security/audit are half of its lines
	strangerTextMax = 255         // bytes of a text of a peer in an event
)

// refusals counts the refusals to peers. It announces each (network, reason) at most once a second, with the number
// since the last time, and refusalsMax of all: an attacker fills neither the log nor memory, and keeps no event about
// others out. Any goroutine may use it.
type refusals struct {
	engine *Engine

	mu     sync.Mutex
	planes []metrics.Refusals
	told   map[refusalKey]*toldRefusal

	announced, admissions perSecond
}

type refusalKey struct {
	plane, from string // the latter by networks: a host has as many addresses of its own as it likes
	reason      transport.Refusal
}

type toldRefusal struct {
	at    clock.Time // of the last event, or of the first refusal without one
	told  bool
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
	n := r.due(refusalKey{plane, control.NetworkOf(from), reason}, clock.Now())
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
	t := r.told[key]
	if t == nil {
		if len(r.told) >= refusalPeers && !r.forget(now) {
			return 0
		}
		t = &toldRefusal{at: now}
		r.told[key] = t
	}
	t.quiet++
	if t.told && now.Sub(t.at) < refusalEvery || r.announced.take(1, refusalsMax, now) == 0 {
		return 0
	}
	n := t.quiet
	*t = toldRefusal{at: now, told: true}
	return n
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
