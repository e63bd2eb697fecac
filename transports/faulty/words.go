package faulty

import (
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// verb is one kind of fault.
type verb uint8

const (
	reject verb = iota + 1
	lose
	blackhole
	drop
	dropCompletion
	delay
	duplicate
	reorder
	truncate
	corrupt
	slow
	short
	down
	reset
	failInstall
	failRegister
	failAttach
	failSync
	controlDown
	heal
	seed
)

// Faults that meet a slice at its submission, and at its completion, in the order in which they are looked for. The
// fatal ones come first, so that a rail that is slow all the time can also be broken.
var (
	onTheWayOut  = [...]verb{reject, short, blackhole, drop, truncate, duplicate}
	onTheWayBack = [...]verb{blackhole, dropCompletion, lose, corrupt, delay, reorder, slow}
)

// ofSlices reports whether a fault can meet a slice.
func (v verb) ofSlices() bool { return v <= short }

// rule is one fault of a statement, with the statement's selectors and parameters. In a plan only its count changes.
type rule struct {
	verb               verb
	number             uint64 // of its chance under the plan's seed; no two rules in force share one
	text               string // as it was written, for Explain
	transport, peer    string // "" any
	rail, op, class    int    // -1 any
	nth, every         uint64 // 0 all
	rate               float64
	afterBytes         uint64
	afterSlices, count uint64
	delay              time.Duration
	behind             uint64 // reorder
	bytesPerSecond     uint64 // slow
	code               errs.Code
	scope              errs.Scope
	side               errs.Side
	collateral, silent bool
	ambient, unusedOK  bool
	hits               *atomic.Uint64 // times that it has struck, anywhere
	scoped             bool           // scope was given
	seed               uint64
}

// word is one word of the language.
type word struct {
	verb verb // 0 for selectors and parameters
	set  func(r *rule, value string) error
	flag bool // takes no value
}

func flagged(v verb) word { return word{verb: v, flag: true} }

// words is the vocabulary; the error for an unknown word names the nearest of these.
var words = map[string]word{
	"transport": {set: func(r *rule, v string) error { r.transport = wildcard(v); return nil }},
	"peer":      {set: func(r *rule, v string) error { r.peer = wildcard(v); return nil }},
	"rail":      {set: func(r *rule, v string) error { return index(&r.rail, v, math.MaxUint16) }},
	"class":     {set: func(r *rule, v string) error { return index(&r.class, v, math.MaxUint8) }},
	"op": {set: func(r *rule, v string) error {
		return choose(&r.op, v, "*", -1, "READ", int(transport.Read), "WRITE", int(transport.Write))
	}},
	"nth":   {set: func(r *rule, v string) error { return positive(&r.nth, v) }},
	"every": {set: func(r *rule, v string) error { return positive(&r.every, v) }},

	"submit_fail_rate":    {verb: reject, set: func(r *rule, v string) error { r.toLink(); return probability(r, v) }},
	"status_corrupt_rate": {verb: lose, set: func(r *rule, v string) error { r.toLink(); return probability(r, v) }},
	"fail_after_n_submits": {verb: reject,
		set: func(r *rule, v string) error { r.toLink(); return number(&r.afterSlices, v) }},
	"fail_install": flagged(failInstall),

	"reject": flagged(reject), "lose": flagged(lose), "blackhole": flagged(blackhole), "drop": flagged(drop),
	"drop_completion": flagged(dropCompletion), "duplicate": flagged(duplicate), "truncate": flagged(truncate),
	"corrupt": flagged(corrupt), "short": flagged(short), "down": flagged(down), "reset": flagged(reset),
	"fail_register": flagged(failRegister), "fail_attach": flagged(failAttach), "fail_sync": flagged(failSync),
	"control_down": flagged(controlDown),
	"heal":         flagged(heal),
	"delay": {verb: delay, set: func(r *rule, v string) (err error) {
		if r.delay, err = config.ParseDuration(v); err != nil || r.delay > time.Hour {
			return fmt.Errorf("takes a duration up to 1h such as 2ms, not %q", v)
		}
		return nil
	}},
	"reorder": {verb: reorder, set: func(r *rule, v string) error { return positive(&r.behind, v) }},
	"slow":    {verb: slow, set: func(r *rule, v string) error { return pace(&r.bytesPerSecond, v) }},
	"seed":    {verb: seed, set: func(r *rule, v string) error { return number(&r.seed, v) }},

	"rate":         {set: probability},
	"after_bytes":  {set: func(r *rule, v string) error { return size(&r.afterBytes, v) }},
	"after_slices": {set: func(r *rule, v string) error { return number(&r.afterSlices, v) }},
	"count":        {set: func(r *rule, v string) error { return number(&r.count, v) }},
	"code":         {set: code},
	"scope": {set: func(r *rule, v string) error {
		r.scoped = true
		return choose(&r.scope, v, "slice", errs.ScopeSlice, "rail", errs.ScopeRail, "link", errs.ScopeLink,
			"transport", errs.ScopeTransport)
	}},
	"side": {set: func(r *rule, v string) error {
		return choose(&r.side, v, "unknown", errs.SideUnknown, "local", errs.SideLocal, "remote", errs.SideRemote,
			"path", errs.SidePath)
	}},
	"collateral": {flag: true, set: func(r *rule, _ string) error { r.collateral = true; return nil }},
	"silent":     {flag: true, set: func(r *rule, _ string) error { r.silent = true; return nil }},
	"ambient":    {flag: true, set: func(r *rule, _ string) error { r.ambient = true; return nil }},
	"unused_ok":  {flag: true, set: func(r *rule, _ string) error { r.unusedOK = true; return nil }},
}

// toLink gives the seed's faults their scope, unless the statement says another.
func (r *rule) toLink() {
	if !r.scoped {
		r.scope = errs.ScopeLink
	}
}

// error is the error that a slice or a call gets from the rule.
func (r *rule) error(peer, name string) *errs.Error {
	e := errs.New(r.code, "faulty", "injected by %q", r.text).WithScope(r.scope, r.side).WithPeer(peer, name, "")
	e.Collateral = r.collateral
	return e
}
