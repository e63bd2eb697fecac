package faulty

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Plan is a set of faults that can change while transports run. Any goroutine may use it.
type Plan struct {
	rules atomic.Pointer[[]*rule] // copied on each change; nil: no fault
	wires wires

	applying sync.Mutex // one change at a time

	mu         sync.Mutex
	seed       uint64
	numbered   uint64 // rules since the seed was set
	transports []*Transport
	history    []*rule // faults that were ever injected, at most historyMax, the ambient ones left out
}

// historyMax bounds the faults that Struck knows; the oldest of those that have struck go first.
const historyMax = 1024

// Count is an injected fault, as it was written, and how often it has struck.
type Count struct {
	Text string
	Hits uint64
	// UnusedOK says that a fault that never strikes is no error.
	UnusedOK bool
}

// Struck lists the faults that were injected so far, healed ones included, in their order.
func (p *Plan) Struck() []Count {
	p.mu.Lock()
	defer p.mu.Unlock()
	counts := make([]Count, len(p.history))
	for i, r := range p.history {
		counts[i] = Count{r.text, r.hits.Load(), r.unusedOK}
	}
	return counts
}

// remember adds a rule to the history. Called with the mutex.
func (p *Plan) remember(r *rule) {
	if r.ambient {
		return
	}
	if len(p.history) >= historyMax {
		i := max(0, slices.IndexFunc(p.history, func(r *rule) bool { return r.hits.Load() > 0 }))
		p.history = slices.Delete(p.history, i, i+1)
	}
	p.history = append(p.history, r)
}

// prepareWithin bounds the time that a transport takes to get ready for a fault.
const prepareWithin = 5 * time.Second

// New makes a plan from a text; an empty one has no fault.
func New(text string) (*Plan, error) {
	p := &Plan{}
	p.wires.init()
	return p, p.Apply(text)
}

// Apply adds the faults of a text to those there are, in order; heal, down, reset and control_down take effect before
// it returns. A text with a mistake changes nothing.
func (p *Plan) Apply(text string) error {
	made, err := parse(text)
	if err != nil {
		return err
	}
	p.applying.Lock()
	defer p.applying.Unlock()
	p.mu.Lock()
	transports := append([]*Transport(nil), p.transports...)
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), prepareWithin)
	defer cancel()
	for _, t := range transports {
		if err := t.prepare(ctx, made); err != nil {
			return err
		}
	}
	resets := p.change(made)
	for _, t := range transports {
		for _, r := range resets {
			t.reset(r)
		}
		t.changed()
	}
	p.wires.changed(p.current())
	return nil
}

// change takes over the rules of a text, and returns those that happen once.
func (p *Plan) change(made []*rule) (resets []*rule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := append([]*rule(nil), p.current()...)
	for _, r := range made {
		switch r.verb {
		case heal:
			now = without(now, r)
		case seed:
			p.seed, p.numbered = r.seed, 0
			p.wires.reseed(p.seed)
			for _, t := range p.transports {
				t.reseed(p.seed)
			}
		case reset:
			p.remember(r)
			resets = append(resets, r)
		default:
			p.remember(r)
			r.number = p.number(now)
			now = append(now, r)
		}
	}
	if len(now) == 0 {
		p.rules.Store(nil)
	} else {
		p.rules.Store(&now)
	}
	return resets
}

// number returns that of a rule to come. Numbers count from the last seed on, so that the same seed and the same faults
// behind it have the same chance again. Called with the mutex.
func (p *Plan) number(now []*rule) uint64 {
	for p.numbered++; slices.ContainsFunc(now, func(r *rule) bool { return r.number == p.numbered }); p.numbered++ {
	}
	return p.numbered
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

// without drops the rules that a heal names: those that agree with each selector that it has. Ambient ones are ended
// by an ambient heal alone.
func without(rules []*rule, h *rule) (left []*rule) {
	text := func(wish, have string) bool { return wish == "" || wish == have }
	number := func(wish, have int) bool { return wish < 0 || wish == have }
	turn := func(wish, have uint64) bool { return wish == 0 || wish == have }
	for _, r := range rules {
		if r.ambient != h.ambient || !(text(h.transport, r.transport) && text(h.peer, r.peer) &&
			number(h.rail, r.rail) && number(h.op, r.op) && number(h.class, r.class) && turn(h.nth, r.nth) &&
			turn(h.every, r.every)) {
			left = append(left, r)
		}
	}
	return left
}

// join adds a transport that is being opened.
func (p *Plan) join(ctx context.Context, t *Transport) error {
	p.applying.Lock()
	defer p.applying.Unlock()
	if err := t.prepare(ctx, p.current()); err != nil {
		return err
	}
	p.mu.Lock()
	p.transports = append(p.transports, t)
	t.reseed(p.seed)
	p.mu.Unlock()
	t.changed()
	return nil
}

func (t *Transport) reseed(seed uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ledger.reseed(seed)
}

func (p *Plan) leave(t *Transport) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.transports = slices.DeleteFunc(p.transports, func(other *Transport) bool { return other == t })
}
