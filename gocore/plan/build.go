package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// Request describes the requests that a plan is made for.
type Request struct {
	Op            transport.Op
	Local, Remote End
	Region        string         // name of the remote region, "" if it has none
	Hint          string         // name of the transport that goes to the front, "" for none
	Policy        *config.Policy // chooses and orders the transports; nil leaves all of them in their order
}

// Ordered reports whether the user has put the transports in order, by a hint or by a policy.
func (r *Request) Ordered() bool {
	return r.Hint != "" || r.Policy != nil && len(r.Policy.Transports) > 0
}

// Build orders the ways in which a request between two ends may travel. candidates are in the order of preference; a
// policy that lists transports leaves only these, in its order, and a hint names the one that goes to the front. Links
// that are down do not matter here: the core passes them over. Build is pure; the result is shared and never changed.
//
// Errors: InvalidArgument when the hint names no candidate, or one that cannot carry this request or that the policy
// leaves out; NoRoute when nothing can carry it, with the reason of each. The plan has these reasons then, and no
// routes.
func Build(r *Request, candidates []Candidate) (*Plan, *errs.Error) {
	if r.Op > transport.Write {
		return nil, errs.New(errs.InvalidArgument, "plan", "operation %d is neither READ nor WRITE", r.Op)
	}
	made := &Plan{Node: r.Local.Node, Region: r.Region}
	usable, rejected := listed(r.Policy, candidates)
	if r.Policy != nil {
		made.Policy, made.Devices = r.Policy.Label(), r.Policy.DeviceMask
	}
	var hinted, others []Route
	for i := range usable {
		c := &usable[i]
		switch reason := c.reject(r.Local, r.Remote); {
		case reason != "":
			rejected = append(rejected, Rejected{c.Info.Name, reason})
		case r.Hint == c.Info.Name:
			hinted = append(hinted, c.route(r.Op))
		default:
			others = append(others, c.route(r.Op))
		}
	}
	if r.Hint != "" && hinted == nil {
		return nil, noHint(r.Hint, rejected, candidates)
	}
	made.Rejected = rejected
	if made.Routes = slices.Concat(hinted, others); len(made.Routes) == 0 {
		return made, noRoute(r, made.Rejected)
	}
	return made, nil
}

// noHint is the error of a request that asks for a transport which cannot carry it, or which is not open.
func noHint(hint string, rejected []Rejected, candidates []Candidate) *errs.Error {
	for _, r := range rejected {
		if r.Transport == hint {
			return errs.New(errs.InvalidArgument, "plan", "transport %q was asked for and cannot carry this: %s", hint,
				r.Reason)
		}
	}
	names := make([]string, len(candidates))
	for i := range candidates {
		names[i] = candidates[i].Info.Name
	}
	return errs.New(errs.InvalidArgument, "plan", "transport %q is not open in this engine", hint).
		WithHint("open are %s", strings.Join(names, ", "))
}

// reject returns in words why a candidate cannot carry the request, or "".
func (c *Candidate) reject(local, remote End) string {
	switch {
	case c.Disabled != "":
		return c.Disabled
	case !c.Info.Pairs[local.Kind][remote.Kind]:
		return fmt.Sprintf("it does not move bytes between %s and %s", local.Kind, remote.Kind)
	case c.Info.SameHost && !c.SameHost && !c.Self:
		return "the peer is on another host"
	case c.Info.OtherHost && (c.SameHost || c.Self):
		return "the peer is on this host"
	case c.LocalKey == 0 && c.NotHere != "":
		return "the local region is not registered with it: " + c.NotHere
	case c.LocalKey == 0:
		return "the local region is not registered with it"
	case c.RemoteKey == 0:
		return "the peer does not offer the region over it"
	case c.Link == 0:
		return "no link to the peer"
	}
	return ""
}

// route is the straight way over one candidate.
func (c *Candidate) route(op transport.Op) Route {
	r := Route{
		Transport: c.Transport,
		Vectors:   c.Info.Vectors,
		Bounces:   c.Info.Bounces,
		Hops:      []Hop{{Link: c.Link, Op: op, LocalKey: c.LocalKey, RemoteKey: c.RemoteKey}},
		SliceMax:  c.Info.SliceMax,
		SliceBest: c.Info.SliceBest,
		Alignment: max(c.Info.Alignment, 1),
		PiecesMax: uint64(max(c.Info.PiecesMax, 0)),
	}
	r.Hops[0].match(c.Match)
	if most := c.Match.SliceMax; most != 0 && (r.SliceMax == 0 || most < r.SliceMax) {
		r.SliceMax = most
	}
	r.SliceLow = c.Match.SliceLow
	if r.SliceBest == 0 || (r.SliceMax != 0 && r.SliceBest > r.SliceMax) {
		r.SliceBest = r.SliceMax
	}
	return r
}

func noRoute(r *Request, rejected []Rejected) *errs.Error {
	if len(rejected) == 0 {
		return errs.New(errs.NoRoute, "plan", "no transport is open").
			WithHint("enable one: transports/<name>/enable")
	}
	reasons := make([]string, len(rejected))
	for i, way := range rejected {
		reasons[i] = way.Transport + ": " + way.Reason
	}
	return errs.New(errs.NoRoute, "plan", "no transport can carry a %s between %s and %s: %s",
		r.Op, where(r.Local), where(r.Remote), strings.Join(reasons, "; "))
}

func where(e End) string {
	if e.Location != "" && e.Location != mem.Wildcard {
		return string(e.Location)
	}
	return e.Kind.String()
}
