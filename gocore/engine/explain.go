package engine

import (
	"encoding/json"
	"runtime"
	"slices"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/metrics"
	"github.com/tent-engine/tent/gocore/topology"
	"github.com/tent-engine/tent/gocore/transport"
)

// Explanation says which route a request would take now, which are behind it, and why not the others.
type Explanation struct {
	Taken    string              `json:"taken"`             // the transport that a request begins with now, "" for none
	Policy   string              `json:"policy"`            // the policy that counts for the request, "" for none
	Devices  []string            `json:"devices,omitempty"` // the local NICs that the policy names
	Routes   []ExplainedRoute    `json:"routes"`            // in order of preference
	Rejected []ExplainedRejected `json:"rejected"`
}

// ExplainedRoute is one way, with its rails as they are now.
type ExplainedRoute struct {
	Transport string   `json:"transport"`
	Hops      int      `json:"hops"`
	Rails     []string `json:"rails"`
	State     string   `json:"state"`
	Why       string   `json:"why,omitempty"`     // why a request does not begin here
	Detail    string   `json:"detail,omitempty"`  // in the transport's own words
	Sharing   string   `json:"sharing,omitempty"` // with other processes: slot, their number, load
}

// ExplainedRejected is a way that is not taken.
type ExplainedRejected struct {
	Transport string `json:"transport"`
	Reason    string `json:"reason"`
}

// Explain plans a request without submitting it.
func (e *Engine) Explain(r *Request) (*Explanation, error) {
	if err := e.usable(); err != nil {
		return nil, err
	}
	c := newCall()
	defer c.free()
	if err := r.Terms.Check(); err != nil {
		return nil, err
	}
	if err := c.add(e, &r.Terms, r.Source, r.Remote, r.Length); err != nil {
		return nil, err
	}
	out := e.explainPlan(c)
	links := *c.peer.links.Load()
	for i := range out.Routes {
		port := e.portOf(out.Routes[i].Transport)
		if x, is := transport.Find[transport.Explainer](port.transport); is {
			out.Routes[i].Detail = x.Explain(links[port.index].link)
		}
		out.Routes[i].Sharing = e.shared.explain(port.name, int(port.index), clock.Now())
	}
	return out, nil
}

func (e *Engine) portOf(name string) *port {
	return e.ports[slices.IndexFunc(e.ports, func(p *port) bool { return p.name == name })]
}

// explainPlan describes the plan of a call as the core would use it now. A link that will not come up by itself,
// because of a setting, a permission or another kind of peer, is a reason rather than a route.
func (e *Engine) explainPlan(c *call) *Explanation {
	out := &Explanation{Policy: c.plan.Policy, Routes: []ExplainedRoute{}, Rejected: []ExplainedRejected{}}
	if policy := e.policies.Get(c.want.policy); policy != nil {
		out.Devices = policy.Devices
	}
	e.mu.Lock()
	defer e.unlockAndDrain()
	taken := e.core.FirstRoute(&c.specs[0])
	for i := range c.plan.Routes {
		r := &c.plan.Routes[i]
		route := ExplainedRoute{Transport: e.ports[r.Transport].name, Hops: len(r.Hops), Rails: []string{}}
		var down *errs.Error
		for _, h := range r.Hops {
			link := e.core.Link(h.Link)
			route.Rails = append(route.Rails, link.Rails...)
			route.State = link.State
			if link.Down != nil {
				down = link.Down
			}
		}
		switch {
		case down != nil && down.Permanent():
			out.Rejected = append(out.Rejected, ExplainedRejected{route.Transport,
				"no link to the peer: " + down.Error()})
			continue
		case i == taken:
			out.Taken = route.Transport
		case i > taken:
			route.Why = e.ports[c.plan.Routes[taken].Transport].name + " is preferred and can be used"
		case down != nil:
			route.Why = "its link is down: " + down.Error()
		default:
			route.Why = "it has no healthy rail now"
		}
		out.Routes = append(out.Routes, route)
	}
	for _, r := range c.plan.Rejected {
		out.Rejected = append(out.Rejected, ExplainedRejected{r.Transport, r.Reason})
	}
	return out
}

// Topology describes this machine, as JSON in upstream's shape.
func (e *Engine) Topology() (string, error) {
	text, err := json.Marshal(topology.Local())
	return string(text), err
}

// snapshot copies the counters; it holds the engine's mutex only for the copy.
func (e *Engine) snapshot() *metrics.Snapshot {
	s := &metrics.Snapshot{Version: Version, GoVersion: runtime.Version(),
		Transports: make([]metrics.Transport, len(e.ports))}
	for _, r := range e.regions.list() {
		s.Regions++
		s.RegisteredBytes += r.Size
	}
	if list := e.segments.open.Load(); list != nil {
		for _, h := range *list {
			if h != nil && h.id != Local {
				s.Segments++
			}
		}
	}
	e.segments.mu.Lock()
	for _, p := range e.segments.peers {
		if p.file == nil && p.ready.Load() && p.gone.Load() == nil {
			s.Peers++
		}
	}
	e.segments.mu.Unlock()
	e.notes.mu.Lock()
	s.Notifications = metrics.Notifications{Sent: e.notifier.sent.Load(), Received: e.notes.taken,
		Refused: e.notes.refused,
		Waiting: e.notes.waits()}
	e.notes.mu.Unlock()

	for i, p := range e.ports {
		s.Transports[i].Sharing = e.shared.view(p.name, i, clock.Now())
		if p.transport == nil {
			continue
		}
		if injector, is := transport.Outermost[transport.Injector](p.transport); is {
			s.Transports[i].Faults, s.Transports[i].Struck = injector.Injected()
		}
	}

	e.mu.Lock()
	defer e.unlockAndDrain()
	for _, r := range e.core.Rails() {
		s.Rails = append(s.Rails, metrics.Rail{Transport: e.ports[r.Transport].name, Peer: r.Peer, Local: r.Local,
			Remote: r.Remote,
			State:  r.State, Health: r.Health, Rate: r.Rate, Bytes: r.Carried, Errors: r.Errors, InFlight: r.InFlight})
	}
	s.Batches, s.PendingRequests = e.core.Batches(), e.core.Pending()
	for i, p := range e.ports {
		t := &s.Transports[i]
		t.Name = p.name
		for class := range t.Classes {
			t.Classes[class] = *e.core.Counters(uint8(i), class)
		}
		g := e.core.Gauges(uint8(i))
		t.QueuedBytes = g.QueuedBytes
		t.Queued, t.RailsUp, t.RailsDown, t.RailErrors, t.Condemned, t.InFlight =
			g.Queued, g.RailsUp, g.RailsDown, g.RailErrors, g.Condemned, g.InFlight
		for j, q := range e.ports {
			if n := e.core.Failovers(uint8(i), uint8(j)); n > 0 {
				s.Failovers = append(s.Failovers, metrics.Failover{From: p.name, To: q.name, Count: n})
			}
		}
	}
	return s
}

// Metrics returns counters and gauges by name.
func (e *Engine) Metrics() map[string]float64 { return metrics.Flat(e.snapshot()) }

// MetricsText returns them in Prometheus' text format.
func (e *Engine) MetricsText() (string, error) { return metrics.Text(e.snapshot()) }
