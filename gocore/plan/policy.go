package plan

import (
	"slices"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
)

// NoPolicy is the index that stands for none.
const NoPolicy = -1

// Ask holds the facts that a policy looks at: upstream's TransportSelector has the same fields.
type Ask struct {
	Local, Remote mem.Kind
	SameMachine   bool
	Length        uint64
	Class         uint8
	Intent        uint8
	Name          uint64 // config.PolicyID of the policy that the request names; 0: the first that matches
}

// Policies are the rules of an engine, in order. They are immutable.
type Policies struct {
	list  []config.Policy
	sized bool
}

// NewPolicies takes the rules of the settings.
func NewPolicies(list []config.Policy) Policies {
	sized := slices.ContainsFunc(list, func(p config.Policy) bool { return p.MinSize != 0 || p.MaxSize != 0 })
	return Policies{list, sized}
}

// None reports whether there are no policies.
func (p *Policies) None() bool { return len(p.list) == 0 }

// Sized reports whether the length of a request may matter.
func (p *Policies) Sized() bool { return p.sized }

// Get returns a policy; nil for NoPolicy.
func (p *Policies) Get(i int) *config.Policy {
	if i == NoPolicy {
		return nil
	}
	return &p.list[i]
}

// Match returns the index of the policy that counts: the first one with fields that all match, or NoPolicy. A request
// that names a policy gets the first of that name for its type of segment; its other fields do not count then.
// InvalidArgument means that there is none.
func (p *Policies) Match(ask *Ask) (int, *errs.Error) {
	for i := range p.list {
		rule := &p.list[i]
		switch {
		case rule.File != (ask.Remote == mem.File):
		case ask.Name != 0 && ask.Name == rule.ID, ask.Name == 0 && matches(rule, ask):
			return i, nil
		}
	}
	if ask.Name != 0 {
		return NoPolicy, errs.New(errs.InvalidArgument, "plan",
			"no policy for %s segments has the policy_name that was given",
			segmentType(ask.Remote)).WithHint("the setting policy lists them")
	}
	return NoPolicy, nil
}

func matches(rule *config.Policy, ask *Ask) bool {
	return (rule.SameMachine == nil || *rule.SameMachine == ask.SameMachine) &&
		(rule.Local == nil || *rule.Local == ask.Local) && (rule.Remote == nil || *rule.Remote == ask.Remote) &&
		ask.Length >= rule.MinSize && (rule.MaxSize == 0 || ask.Length <= rule.MaxSize) &&
		(rule.Class < 0 || rule.Class == int(ask.Class)) && (rule.Intent < 0 || rule.Intent == int(ask.Intent))
}

func segmentType(remote mem.Kind) string {
	if remote == mem.File {
		return "file"
	}
	return "memory"
}

// listed returns the candidates that a policy lists, in its order, and why it leaves the others out. Names that are
// listed and no candidate are left out too.
func listed(policy *config.Policy, candidates []Candidate) ([]Candidate, []Rejected) {
	if policy == nil || len(policy.Transports) == 0 {
		return candidates, nil
	}
	var list []Candidate
	var rejected []Rejected
	for _, name := range policy.Transports {
		i := slices.IndexFunc(candidates, func(c Candidate) bool { return c.Info.Name == name })
		if i < 0 {
			rejected = append(rejected, Rejected{name, policy.Label() + " lists it, and it is not part of this build"})
			continue
		}
		list = append(list, candidates[i])
	}
	for i := range candidates {
		if name := candidates[i].Info.Name; !slices.Contains(policy.Transports, name) {
			rejected = append(rejected, Rejected{name, policy.Label() + " does not list it"})
		}
	}
	return list, rejected
}
