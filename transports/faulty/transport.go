package faulty

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// Wrap puts a plan's faults into the transports of a factory. Without a plan the factory stays as it is.
func Wrap(factory transport.Factory, plan *Plan) transport.Factory {
	if plan == nil {
		return factory
	}
	return WrapLate(factory, func() (*Plan, error) { return plan, nil })
}

// WrapLate is Wrap with a plan that is asked for at each Open: nil means no faults for that transport.
func WrapLate(factory transport.Factory, plan func() (*Plan, error)) transport.Factory {
	return wrapped{factory, plan}
}

type wrapped struct {
	transport.Factory
	plan func() (*Plan, error)
}

// Open opens the inner transport, unless the plan says fail_install.
func (w wrapped) Open(ctx context.Context, config any, host transport.Host, sink transport.Sink) (transport.Transport, error) {
	plan, err := w.plan()
	if err != nil {
		return nil, err
	}
	if plan == nil {
		return w.Factory.Open(ctx, config, host, sink)
	}
	for _, r := range plan.current() {
		if r.verb == failInstall && (r.transport == "" || r.transport == w.Name()) {
			return nil, errs.New(errs.DeviceNotFound, "faulty", "injected by %q", r.text).WithScope(errs.ScopeTransport, errs.SideLocal)
		}
	}
	t := &Transport{plan: plan, name: w.Name(), sink: sink, peers: map[transport.Link]string{}, rails: map[path]*rail{},
		held: map[*transport.Slice]hold{}, asked: map[*transport.Slice]uint64{}, spent: map[*rule]*spent{}}
	inner, err := w.Factory.Open(ctx, config, host, t.listener())
	if err != nil {
		return nil, err
	}
	t.Transport = inner
	if faults := plan.String(); faults != "" {
		host.Log().Warn("faults are injected", "transport", t.name, "faults", faults)
	}
	t.later.start(t)
	plan.join(t)
	return t, nil
}

// Transport is a transport with faults. Its mutex is never held while the inner transport or the sink is called.
type Transport struct {
	transport.Transport // the real one
	plan                *Plan
	name                string
	sink                transport.Sink
	later               later
	engaged             atomic.Int64 // slices and rails that are not as the inner transport sees them

	mu      sync.Mutex
	random  *rand.Rand
	closing bool // no more faults
	peers   map[transport.Link]string
	rails   map[path]*rail
	held    map[*transport.Slice]hold
	asked   map[*transport.Slice]uint64 // Id of slices that Withdraw asked the inner transport for
	spent   map[*rule]*spent
}

// path names a rail without its generation.
type path struct {
	link  transport.Link
	index uint16
}

// rail is what the decorator knows of one.
type rail struct {
	generation uint32 // newest that the sink knows
	up         bool   // as the sink knows it
	told       bool   // the sink heard of its end from us; the inner transport's RailDown is still to come
	hidden     *transport.RailInfo
}

// hold is a slice that the decorator answers for.
type hold struct {
	rule *rule
	end  *transport.Completion // the real one; nil: the slice was swallowed and never sent
}

// spent is how far a transport got with a rule: after_slices and after_bytes let so much pass on the way out, and so much
// on the way back.
type spent struct {
	out, back struct{ slices, bytes uint64 }
	times     uint64
}

func (t *Transport) reseed(seed uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.random = rand.New(rand.NewPCG(seed, 0x6661756c74))
}

// idle reports that there is nothing to look at.
func (t *Transport) idle() bool { return t.plan.rules.Load() == nil && t.engaged.Load() == 0 }

// matches reports whether a rule means a slice. Called with the mutex.
func (t *Transport) matches(r *rule, s *transport.Slice) bool {
	return (r.op < 0 || r.op == int(s.Op)) && (r.class < 0 || r.class == int(s.Class)) && t.meansRail(r, path{s.Rail.Link, s.Rail.Index})
}

func (t *Transport) meansRail(r *rule, p path) bool {
	return !t.closing && (r.transport == "" || r.transport == t.name) && (r.rail < 0 || r.rail == int(p.index)) &&
		(r.peer == "" || r.peer == t.peers[p.link])
}

func (t *Transport) spending(r *rule) *spent {
	c := t.spent[r]
	if c == nil {
		c = &spent{}
		t.spent[r] = c
	}
	return c
}

// strikes reports whether a rule that means a slice hits it now, after so many slices and bytes with it, and counts.
func (t *Transport) strikes(r *rule, slices, bytes uint64) bool {
	c := t.spending(r)
	if slices <= r.afterSlices && r.afterSlices > 0 || bytes <= r.afterBytes && r.afterBytes > 0 ||
		r.count > 0 && c.times >= r.count || r.rate < 1 && t.random.Float64() >= r.rate {
		return false
	}
	c.times++
	return true
}

// atSubmit says which rule hits a slice that is about to be sent, nil if none does. Called with the mutex.
func (t *Transport) atSubmit(s *transport.Slice) (hit *rule) {
	for _, r := range t.plan.current() {
		if !t.matches(r, s) {
			continue
		}
		c := t.spending(r)
		c.out.slices++
		c.out.bytes += s.Length
		if hit == nil && (r.verb == reject || r.verb == short || r.verb == blackhole) && t.strikes(r, c.out.slices, c.out.bytes) {
			hit = r
		}
	}
	return hit
}

// Submit hands over what no fault hits, in order.
func (t *Transport) Submit(list []*transport.Slice) int {
	if t.plan.rules.Load() == nil {
		return t.Transport.Submit(list)
	}
	for done := 0; ; done++ {
		n, hit := t.passing(list[done:])
		if n > 0 {
			took := t.Transport.Submit(list[done : done+n])
			if took < n {
				t.uncount(list[done+took:done+n], hit)
				return done + took
			}
			done += n
		}
		if hit == nil || !t.carryOut(hit, list[done]) {
			return done
		}
	}
}

// passing says how many slices of a list pass before a rule hits one, or before one of a rail that is not up. Without a
// rule that is the end of what can be accepted.
func (t *Transport) passing(list []*transport.Slice) (n int, hit *rule) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, s := range list {
		if !t.upNow(s.Rail) {
			return i, nil
		}
		if hit = t.atSubmit(s); hit != nil {
			return i, hit
		}
	}
	return len(list), nil
}

// uncount forgets slices that the inner transport did not take, and the hit that would have come after them: they will
// be submitted again.
func (t *Transport) uncount(list []*transport.Slice, hit *rule) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range list {
		for _, r := range t.plan.current() {
			if c := t.spent[r]; c != nil && c.out.slices > 0 && t.matches(r, s) {
				c.out.slices--
				c.out.bytes -= min(c.out.bytes, s.Length)
			}
		}
	}
	if c := t.spent[hit]; c != nil && c.times > 0 {
		c.times--
	}
}

// upNow reports whether the sink believes a rail to be up in just this generation.
func (t *Transport) upNow(name transport.Rail) bool {
	r := t.rails[path{name.Link, name.Index}]
	return r != nil && r.up && r.generation == name.Generation
}

// carryOut does to a slice what a rule says. It returns false when the slice is not accepted.
func (t *Transport) carryOut(r *rule, s *transport.Slice) bool {
	t.mu.Lock()
	if !t.upNow(s.Rail) {
		t.mu.Unlock()
		return false
	}
	peer := t.peers[s.Rail.Link]
	if r.verb != short {
		s.Scratch = [4]uint64{} // never the inner transport's: it must not take the slice for one of its own
	}
	if r.verb == blackhole {
		t.hold(s, hold{rule: r})
	}
	t.mu.Unlock()
	switch r.verb {
	case reject:
		t.sink.Complete([]transport.Completion{{Slice: s, Err: r.error(t, peer)}})
	case short:
		t.later.ready(s.Rail)
		return false
	}
	return true
}

// hold keeps a slice that was swallowed or whose completion is kept back. Called with the mutex.
func (t *Transport) hold(s *transport.Slice, h hold) {
	t.held[s] = h
	t.engaged.Add(1)
}

// take gives up a slice that is held and returns its completion. Called with the mutex.
func (t *Transport) take(s *transport.Slice, h hold) transport.Completion {
	delete(t.held, s)
	t.engaged.Add(-1)
	if h.end != nil {
		return *h.end
	}
	return transport.Completion{Slice: s, Err: errs.New(errs.Withdrawn, "faulty", "asked back out of %q", h.rule.text).
		WithScope(errs.ScopeSlice, errs.SideLocal).WithPeer(t.peers[s.Rail.Link], t.name, "")}
}

// Withdraw gives back what is held, and asks the inner transport for the rest.
func (t *Transport) Withdraw(list []*transport.Slice) {
	if t.idle() {
		t.Transport.Withdraw(list)
		return
	}
	var mine []transport.Completion
	var rest []*transport.Slice
	t.mu.Lock()
	for _, s := range list {
		switch h, held := t.held[s]; {
		case held && h.rule.silent:
		case held:
			mine = append(mine, t.take(s, h))
		default:
			t.asked[s] = s.Id
			rest = append(rest, s)
		}
	}
	t.mu.Unlock()
	t.complete(mine)
	t.Transport.Withdraw(rest)
}

func (t *Transport) complete(list []transport.Completion) {
	if len(list) > 0 {
		t.sink.Complete(list)
	}
}

// Fence ends the generation here before it does so inside: nothing can be swallowed on it afterwards.
func (t *Transport) Fence(name transport.Rail) {
	t.mu.Lock()
	if r := t.rails[path{name.Link, name.Index}]; r != nil && r.generation == name.Generation {
		r.up = false
	}
	mine := t.takeAll(func(s *transport.Slice, h hold) bool { return s.Rail == name && !h.rule.silent })
	t.mu.Unlock()
	t.complete(mine)
	t.Transport.Fence(name)
}

// takeAll takes what is held and fits, in the order of the slices' ids. Called with the mutex.
func (t *Transport) takeAll(fits func(*transport.Slice, hold) bool) (list []transport.Completion) {
	for s, h := range t.held {
		if fits(s, h) {
			list = append(list, t.take(s, h))
		}
	}
	slices.SortFunc(list, func(a, b transport.Completion) int { return int(a.Slice.Id) - int(b.Slice.Id) })
	return list
}

// Attach remembers whose link it is, for the selector peer=.
func (t *Transport) Attach(peer transport.Peer) (transport.Link, error) {
	link, err := t.Transport.Attach(peer)
	if err == nil {
		t.mu.Lock()
		t.peers[link] = peer.Address
		t.mu.Unlock()
		if t.plan.rules.Load() != nil {
			t.changed() // rails that came up before Attach returned may have to go down: now their peer is known
		}
	}
	return link, err
}

// Detach gives back what is held of the link.
func (t *Transport) Detach(link transport.Link) {
	t.mu.Lock()
	for p, r := range t.rails {
		if p.link == link {
			r.up = false
		}
	}
	mine := t.takeAll(func(s *transport.Slice, _ hold) bool { return s.Rail.Link == link })
	t.mu.Unlock()
	t.complete(mine)
	t.Transport.Detach(link)
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.peers, link)
	for p, r := range t.rails {
		if p.link == link {
			if r.hidden != nil {
				t.engaged.Add(-1)
			}
			delete(t.rails, p)
		}
	}
}

// Close ends all faults first, then the inner transport, then what was delayed.
func (t *Transport) Close(ctx context.Context) error {
	t.plan.leave(t)
	t.mu.Lock()
	t.closing = true
	for _, r := range t.rails {
		r.up = false
	}
	mine := t.takeAll(func(*transport.Slice, hold) bool { return true })
	t.mu.Unlock()
	t.complete(mine)
	err := t.Transport.Close(ctx)
	t.later.stop()
	return err
}
