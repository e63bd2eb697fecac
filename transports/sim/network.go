package sim

import (
	"math/rand/v2"
	"sync"

	"github.com/tent-engine/tent/gocore/clock"
)

// Network is a world of simulated engines with one virtual clock. Its mutex guards everything in the package: networks,
// transports, links, rails, regions, and the copying itself.
//
// The goroutine that leaves a call delivers its consequences: completions and events go to the sinks in order, by one
// goroutine at a time and without the mutex, so a sink may call back into any transport of the network.
type Network struct {
	mu        sync.Mutex
	quiet     *sync.Cond // deliveries were made
	inline    bool
	posts     bool // a transport has Settings.Posts: deliveries are made before the next event
	now       clock.Time
	random    *rand.Rand
	events    queue
	sequence  uint64
	life      uint64 // numbers attempts and calls
	changed   chan struct{}
	nodes     []*Transport // that are open, in the order of their opening
	paths     []*path
	wishes    []wish
	disk      *Disk // nil until it is asked for
	out       []delivery
	spare     []delivery
	batch     completions
	deliverer bool // somebody delivers now
}

// New makes a driven network: nothing moves but in Advance. Runs with the same seed and the same calls are equal.
func New(seed uint64) *Network {
	n := &Network{random: rand.New(rand.NewPCG(seed, 0x73696d)), changed: make(chan struct{}, 1), now: 1}
	n.quiet = sync.NewCond(&n.mu)
	return n
}

// NewInline makes a network that drives itself: each call carries out everything that follows from it, however far
// ahead in virtual time, before it returns. Only events of stopped engines and cut paths wait.
func NewInline(seed uint64) *Network {
	n := New(seed)
	n.inline = true
	return n
}

// Now is the virtual time.
func (n *Network) Now() clock.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.now
}

// NextEvent says when something happens next: clock.Never if nothing will happen by itself.
func (n *Network) NextEvent() clock.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.events.first()
}

// Advance lets everything happen that is due up to a time, each event at its own moment, and sets the clock to it. Only
// one goroutine may advance a network, and no sink.
func (n *Network) Advance(to clock.Time) {
	for {
		n.mu.Lock()
		if n.events.first() > to {
			n.now = max(n.now, to)
			n.leave()
			return
		}
		n.step()
		n.leave()
	}
}

// Changed receives when a call has scheduled something: for a goroutine that drives the network in real time.
func (n *Network) Changed() <-chan struct{} { return n.changed }

// step carries out the first event.
func (n *Network) step() {
	e := n.events.pop()
	n.now = max(n.now, e.at)
	switch {
	case e.void():
	case e.node != nil && e.node.stopped:
		e.node.held = append(e.node.held, e)
	case e.rail != nil && e.rail.path.holds(e.node):
		e.rail.held = append(e.rail.held, e)
	case e.link != nil && !e.link.reachable(e.node):
		e.link.held = append(e.link.held, e)
	default:
		e.run(n)
	}
}

// schedule enters an event; its time counts from now.
func (n *Network) schedule(e event, after clock.Time) {
	n.sequence++
	e.at, e.sequence = n.now+max(after, 0), n.sequence
	n.events.push(e)
	select {
	case n.changed <- struct{}{}:
	default:
	}
}

// release schedules the held events, in their order.
func (n *Network) release(held []event) {
	for _, e := range held {
		n.schedule(e, 0)
	}
}

// chance throws a coin that shows true with the given probability.
func (n *Network) chance(probability float64) bool {
	return probability > 0 && n.random.Float64() < probability
}

// upTo returns a random time in [0, most).
func (n *Network) upTo(most clock.Time) clock.Time {
	if most <= 0 {
		return 0
	}
	return clock.Time(n.random.Int64N(int64(most)))
}

// settle runs events that are due at once in a network that drives itself.
func (n *Network) settle() {
	for n.inline && n.events.first() != clock.Never && !(n.posts && len(n.out) > 0) {
		n.step()
	}
}

// leave ends a call: it delivers the call's consequences, unless somebody delivers already, and unlocks.
func (n *Network) leave() {
	if n.deliverer { // that one looks again before it stops
		n.mu.Unlock()
		return
	}
	n.deliverer = true
	for n.settle(); len(n.out) > 0; n.settle() {
		list := n.out
		n.out = n.spare[:0]
		n.mu.Unlock()
		n.batch.deliver(list)
		n.mu.Lock()
		for i := range list {
			list[i].to.pending--
		}
		clear(list)
		n.spare = list
		n.quiet.Broadcast()
	}
	n.deliverer = false
	n.mu.Unlock()
}
