package faulty

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/tent-engine/tent/gocore/errs"
)

// Environment is the variable that FromEnvironment reads.
const Environment = "TENT_FAULTS"

// Plan is a set of faults that can change while transports run. Any goroutine may use it.
type Plan struct {
	rules atomic.Pointer[[]*rule] // copied on each change; nil: no fault

	mu         sync.Mutex // of changes
	seed       uint64
	transports []*Transport
}

// New makes a plan from a text; an empty one has no fault.
func New(text string) (*Plan, error) {
	p := &Plan{}
	return p, p.Apply(text)
}

// FromEnvironment makes a plan from TENT_FAULTS; nil when the variable is not set or empty.
func FromEnvironment() (*Plan, error) {
	text := os.Getenv(Environment)
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	p, err := New(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", Environment, err)
	}
	return p, nil
}

// Apply adds the faults of a text to those there are, in order; heal and down take effect before it returns. A text
// with a mistake changes nothing.
func (p *Plan) Apply(text string) error {
	made, err := parse(text)
	if err != nil {
		return err
	}
	p.mu.Lock()
	transports := append([]*Transport(nil), p.transports...)
	now := append([]*rule(nil), p.current()...)
	for _, r := range made {
		switch r.verb {
		case heal:
			now = without(now, r)
		case seed:
			p.seed = r.seed
			for _, t := range transports {
				t.reseed(p.seed)
			}
		default:
			now = append(now, r)
		}
	}
	if len(now) == 0 {
		p.rules.Store(nil)
	} else {
		p.rules.Store(&now)
	}
	p.mu.Unlock()
	for _, t := range transports {
		t.changed()
	}
	return nil
}

// String is the plan in its language.
func (p *Plan) String() string {
	var texts []string
	for _, r := range p.current() {
		if len(texts) == 0 || texts[len(texts)-1] != r.text {
			texts = append(texts, r.text)
		}
	}
	return strings.Join(texts, "; ")
}

func (p *Plan) current() []*rule {
	if list := p.rules.Load(); list != nil {
		return *list
	}
	return nil
}

// without drops the rules that a heal names: those whose selectors agree with each selector that it has.
func without(rules []*rule, h *rule) (left []*rule) {
	text := func(wish, have string) bool { return wish == "" || wish == have }
	number := func(wish, have int) bool { return wish < 0 || wish == have }
	for _, r := range rules {
		if !(text(h.transport, r.transport) && text(h.peer, r.peer) && number(h.rail, r.rail) && number(h.op, r.op) && number(h.class, r.class)) {
			left = append(left, r)
		}
	}
	return left
}

func (p *Plan) join(t *Transport) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.transports = append(p.transports, t)
	t.reseed(p.seed)
}

func (p *Plan) leave(t *Transport) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, other := range p.transports {
		if other == t {
			p.transports = append(p.transports[:i], p.transports[i+1:]...)
			return
		}
	}
}

// error is what a slice gets from the rule.
func (r *rule) error(t *Transport, peer string) *errs.Error {
	e := errs.New(r.code, "faulty", "injected by %q", r.text).WithScope(r.scope, r.side).WithPeer(peer, t.name, "")
	e.Collateral = r.collateral
	return e
}
