package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// Build orders the ways in which a request between two ends may travel. candidates are in the order of the policy, best
// first; a hint names the transport that goes to the front. Transports whose link is down come last instead of being left
// out, because the link may be back when the others have failed. Build is pure; the result is shared and never changed.
//
// Errors: InvalidArgument when the hint names no candidate, or one that cannot carry this request; NoRoute when nothing can,
// with the reason of each.
func Build(op transport.Op, local, remote End, candidates []Candidate, hint string) (*Plan, *errs.Error) {
	made := &Plan{Node: local.Node}
	if op > transport.Write {
		return nil, errs.New(errs.InvalidArgument, "plan", "operation %d is neither READ nor WRITE", op)
	}
	var down []Route
	var names []string
	for i := range candidates {
		c := &candidates[i]
		names = append(names, c.Info.Name)
		if reason := c.reject(local, remote); reason != "" {
			if hint == c.Info.Name {
				return nil, errs.New(errs.InvalidArgument, "plan", "transport %q was asked for and cannot carry this: %s", hint, reason)
			}
			made.Rejected = append(made.Rejected, Rejected{c.Info.Name, reason})
			continue
		}
		switch {
		case hint == c.Info.Name:
			made.Routes = append([]Route{c.route(op)}, made.Routes...)
		case c.Down != nil:
			down = append(down, c.route(op))
		default:
			made.Routes = append(made.Routes, c.route(op))
		}
	}
	if hint != "" && !slices.Contains(names, hint) {
		return nil, errs.New(errs.InvalidArgument, "plan", "no transport is called %q", hint).
			WithHint("known here: %s", strings.Join(names, ", "))
	}
	made.Routes = append(made.Routes, down...)
	if len(made.Routes) == 0 {
		return nil, noRoute(op, local, remote, made.Rejected)
	}
	return made, nil
}

// reject says in words why a candidate cannot carry the request, or "". A link that is down is no reason.
func (c *Candidate) reject(local, remote End) string {
	switch {
	case c.Disabled != "":
		return c.Disabled
	case !c.Info.Pairs[local.Kind][remote.Kind]:
		return fmt.Sprintf("it does not move bytes between %s and %s", local.Kind, remote.Kind)
	case c.Info.SameHost && !c.SameHost && !c.Self:
		return "the peer is on another host"
	case c.LocalKey == 0:
		return "the local region is not registered with it"
	case c.RemoteKey == 0:
		return "the peer does not offer the region over it"
	case c.Link == 0 && c.Down != nil:
		return "no link to the peer: " + c.Down.Error()
	case c.Link == 0:
		return "no link to the peer"
	}
	return ""
}

// route is the straight way over one candidate.
func (c *Candidate) route(op transport.Op) Route {
	r := Route{
		Transport: c.Transport,
		Hops:      []Hop{{Link: c.Link, Op: op, LocalKey: c.LocalKey, RemoteKey: c.RemoteKey}},
		SliceMax:  c.Info.SliceMax,
		SliceBest: c.Info.SliceBest,
		Alignment: max(c.Info.Alignment, 1),
	}
	if r.SliceBest == 0 || (r.SliceMax != 0 && r.SliceBest > r.SliceMax) {
		r.SliceBest = r.SliceMax
	}
	return r
}

func noRoute(op transport.Op, local, remote End, rejected []Rejected) *errs.Error {
	if len(rejected) == 0 {
		return errs.New(errs.NoRoute, "plan", "no transport is open").
			WithHint("enable one: transports/<name>/enable")
	}
	reasons := make([]string, len(rejected))
	for i, r := range rejected {
		reasons[i] = r.Transport + ": " + r.Reason
	}
	return errs.New(errs.NoRoute, "plan", "no transport can carry a %s between %s and %s: %s",
		op, where(local), where(remote), strings.Join(reasons, "; "))
}

func where(e End) string {
	if e.Location != "" && e.Location != mem.Wildcard {
		return string(e.Location)
	}
	return e.Kind.String()
}
