package engine

import (
	"strconv"
	"strings"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/plan"
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
	Staged    string   `json:"staged,omitempty"`  // how it goes through memory of the host, if it does
	Keys      string   `json:"keys,omitempty"`    // on which rails this memory can be used, and why not on others
	Near      string   `json:"near,omitempty"`    // which rails are near the memory of an end, where some are not
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
	c, err := e.Begin(r.Terms)
	if err != nil {
		return nil, err
	}
	defer c.Discard()
	if err := c.AddRange(r.Source, r.Remote, r.Length); err != nil {
		return nil, err
	}
	out := e.explainPlan(c)
	links := *c.peer.links.Load()
	for i := range out.Routes {
		port := e.portNamed(out.Routes[i].Transport)
		if x, is := transport.Find[transport.Explainer](port.transport); is {
			out.Routes[i].Detail = x.Explain(links[port.index].link)
		}
		out.Routes[i].Sharing = e.shared.explain(port.name, int(port.index), clock.Now())
	}
	return out, nil
}

// explainPlan describes the plan of a call as the core would use it now. A link that will not come up by itself,
// because of a setting, a permission or another kind of peer, is a reason rather than a route.
func (e *Engine) explainPlan(c *Call) *Explanation {
	out := &Explanation{Policy: c.plan.Policy, Routes: []ExplainedRoute{}, Rejected: []ExplainedRejected{}}
	if policy := e.policies.Get(c.want.policy); policy != nil {
		out.Devices = policy.Devices
	}
	e.mu.Lock()
	defer e.unlockAndDrain()
	taken := e.core.FirstRoute(&c.specs[0])
	for i := range c.plan.Routes {
		r := &c.plan.Routes[i]
		route := ExplainedRoute{Transport: e.ports[r.Transport].name, Hops: len(r.Hops), Rails: []string{},
			Staged: e.stagedBy(r)}
		var down *errs.Error
		for _, h := range r.Hops {
			link := e.core.Link(h.Link)
			route.Rails = append(route.Rails, link.Rails...)
			route.State = link.State
			route.Keys, route.Near = keysOf(&h), nearOf(&h)
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

// nearOf says in words how far rails are from the memory of both ends, "" where no rail is farther than another.
func nearOf(h *plan.Hop) string {
	here, there := ranksOf("this memory", h.Near), ranksOf("the peer's memory", h.There)
	if here != "" && there != "" {
		return here + "; " + there
	}
	return here + there
}

func ranksOf(memory string, ranks []uint8) string {
	var rails [transport.Farthest + 1][]string
	for i, rank := range ranks {
		rank = min(rank, transport.Farthest)
		rails[rank] = append(rails[rank], strconv.Itoa(i))
	}
	var words []string
	for rank, name := range [...]string{"near", "far", "farthest"} {
		if len(rails[rank]) > 0 {
			words = append(words, name+": rails "+strings.Join(rails[rank], ", "))
		}
	}
	if len(words) < 2 {
		return ""
	}
	return "from " + memory + ", " + strings.Join(words, "; ")
}

// keysOf says in words on which rails a hop's keys work, "" for all.
func keysOf(h *plan.Hop) string {
	if h.Rails == 0 {
		return ""
	}
	var rails []string
	for i := range 64 {
		if h.Rails>>i&1 != 0 {
			rails = append(rails, strconv.Itoa(i))
		}
	}
	words := "this memory can be used on rails " + strings.Join(rails, ", ") + " alone"
	if h.Why != "" {
		words += ": " + h.Why
	}
	return words
}
