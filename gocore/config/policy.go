package config

import (
	"cmp"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
)

// policyKey is the list of policies.
const policyKey = "policy"

// Policy is a rule that chooses and orders the routes of requests; upstream's TransportSelector has the same fields.
// Fields that are not given match everything. plan.Policies applies them.
type Policy struct {
	Name        string
	ID          uint64    // PolicyID of Name
	File        bool      // it is for file segments, else for memory
	SameMachine *bool     // nil: both
	Local       *mem.Kind // nil: all
	Remote      *mem.Kind // nil: all
	MinSize     uint64    // bytes, included
	MaxSize     uint64    // bytes, included; 0: no limit
	Class       int       // -1: all
	Intent      int       // -1: all

	Transports []string // names of transports, best first; none: all, in the order of the build
	Devices    []string // names of local NICs, or addresses of local ends; none: all
	DeviceMask uint64   // bit i is set for the i-th name of Config.Devices
	Idle       []string // keys that were given and have no effect yet

	label string
}

// Label names the policy for people.
func (p *Policy) Label() string { return p.label }

// PolicyID is the number by which a request names a policy across the border: the 64-bit FNV-1a hash of the name; 0 for
// "".
func PolicyID(name string) uint64 {
	if name == "" {
		return 0
	}
	h := fnv.New64a()
	h.Write([]byte(name)) // does not fail
	return h.Sum64()
}

// devicesMax is how many NICs policies can tell apart: a mask has as many bits.
const devicesMax = 64

// Devices lists the NICs that policies name, by their bit in Policy.DeviceMask.
func (c *Config) Devices() []string {
	var list []string
	for i := range c.Engine.Policies {
		for _, name := range c.Engine.Policies[i].Devices {
			if !slices.Contains(list, name) {
				list = append(list, name)
			}
		}
	}
	return list
}

// policyText is a policy as people write it.
type policyText struct {
	Name         string   `json:"name"`
	SegmentType  string   `json:"segment_type"`
	SameMachine  *bool    `json:"same_machine"`
	LocalMemory  string   `json:"local_memory"`
	RemoteMemory string   `json:"remote_memory"`
	MinSize      byteSize `json:"min_size"`
	MaxSize      byteSize `json:"max_size"`
	Priority     any      `json:"priority"`
	IntentType   any      `json:"intent_type"`
	Transports   []string `json:"transports"`
	Devices      []string `json:"devices"`
	QueuePairs   *string  `json:"qp_pool"`
	ServiceLevel *int     `json:"service_level"`
	TrafficClass *int     `json:"traffic_class"`
}

// byteSize is a size as people write it, a number or a text.
type byteSize uint64

// UnmarshalJSON implements json.Unmarshaler.
func (b *byteSize) UnmarshalJSON(data []byte) error {
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		return err
	}
	n, err := size(tebibyte).convert(v)
	if err == nil {
		*b = byteSize(n.(int64))
	}
	return err
}

// readPolicies turns the checked value of "policy" into policies.
func (c *Config) readPolicies() ([]Policy, error) {
	i := c.index[policyKey]
	if c.values[i] == nil {
		return nil, nil
	}
	data, err := json.Marshal(c.values[i])
	var written []policyText
	if err == nil {
		err = json.Unmarshal(data, &written)
	}
	if err != nil {
		return nil, errs.Wrap(errs.InvalidArgument, "config", fmt.Errorf("%s: %s: %w", c.origins[i], policyKey, err))
	}
	list := make([]Policy, len(written))
	var devices []string
	for n := range written {
		if list[n], err = c.readPolicy(&written[n], &devices); err != nil {
			return nil, errs.Wrap(errs.InvalidArgument, "config",
				fmt.Errorf("%s: %s: entry %d: %w", c.origins[i], policyKey, n, err))
		}
		if list[n].label = fmt.Sprintf("policy %q", list[n].Name); list[n].Name == "" {
			list[n].label = fmt.Sprintf("policy [%d]", n)
		}
	}
	return list, nil
}

func (c *Config) readPolicy(w *policyText, devices *[]string) (Policy, error) {
	p := Policy{Name: w.Name, ID: PolicyID(w.Name), File: w.SegmentType == "file", SameMachine: w.SameMachine,
		MinSize: uint64(w.MinSize), MaxSize: uint64(w.MaxSize), Local: kindOfMemory(w.LocalMemory),
		Remote: kindOfMemory(w.RemoteMemory),
		Class:  -1, Intent: -1, Devices: w.Devices}
	if p.MaxSize != 0 && p.MaxSize < p.MinSize {
		return p, fmt.Errorf("max_size %d is less than min_size %d", p.MaxSize, p.MinSize)
	}
	if err := c.readNames(w, &p); err != nil {
		return p, err
	}
	for _, name := range w.Devices {
		bit := slices.Index(*devices, name)
		if bit < 0 {
			bit = len(*devices)
			*devices = append(*devices, name)
		}
		if bit >= devicesMax {
			return p, fmt.Errorf("devices: all policies together name more than %d", devicesMax)
		}
		p.DeviceMask |= 1 << bit
	}
	for key, given := range map[string]bool{"qp_pool": w.QueuePairs != nil, "service_level": w.ServiceLevel != nil,
		"traffic_class": w.TrafficClass != nil} {
		if given {
			p.Idle = append(p.Idle, key)
		}
	}
	slices.Sort(p.Idle)
	return p, nil
}

// kindOfMemory returns a kind by its checked name, nil for all kinds.
func kindOfMemory(name string) *mem.Kind {
	if name == "" || name == "*" {
		return nil
	}
	kind, _, _ := mem.Location(cmp.Or(memoryKind.Spellings[name], name)).Parse() // the name was checked
	return &kind
}

// readNames looks up the class, the intent and the transports that a policy names.
func (c *Config) readNames(w *policyText, p *Policy) (err error) {
	if w.Priority != nil {
		if p.Class, err = numberOf(w.Priority, classes[:]); err != nil {
			return err
		}
	}
	if w.IntentType != nil {
		if p.Intent, err = numberOf(w.IntentType, intents[:]); err != nil {
			return err
		}
	}
	for _, name := range w.Transports {
		t := c.carrierOf(name)
		if t == nil {
			return fmt.Errorf("transports: no transport is called %s; known are %s", show(name),
				strings.Join(c.names(), ", "))
		}
		if slices.Contains(p.Transports, t.Name) {
			return fmt.Errorf("transports: %q is there twice; a failover leads from one to another", t.Name)
		}
		p.Transports = append(p.Transports, t.Name)
	}
	return nil
}

// names lists the transports of the table.
func (c *Config) names() []string {
	list := make([]string, len(c.carriers))
	for i := range c.carriers {
		list[i] = c.carriers[i].Name
	}
	return list
}

// idleInPolicies returns which parts of the policies have no effect, "" if all have one.
func (c *Config) idleInPolicies() string {
	var parts []string
	for i := range c.Engine.Policies {
		if idle := c.Engine.Policies[i].Idle; len(idle) > 0 {
			parts = append(parts, fmt.Sprintf("entry %d: %s", i, strings.Join(idle, ", ")))
		}
	}
	if parts == nil {
		return ""
	}
	return "parts of it have no effect, as settings of a transport divide its queue pairs among classes: " +
		strings.Join(parts, "; ")
}
