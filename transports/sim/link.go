package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// dialLimit is when a link that got no rail is reported as down. It goes on trying.
const dialLimit = clock.Time(500 * time.Millisecond)

// classes is how many queues a rail has; higher ones wait in the last.
const classes = 3

// link is one transport's connection to a peer.
//
//	Attach -> dialling --target answers--> connected --target ends--> down
//	             |  '--dialLimit: LinkDown, still dialling              |
//	             '---- nobody, or another incarnation ------------------'
//
// Detach ends it in any state.
type link struct {
	owner     *Transport
	id        transport.Link
	peer      transport.Peer
	to        *Transport // the transport that answered, nil before
	rails     []*rail
	connected bool
	detached  bool
	down      *errs.Error
	held      []event // control messages that no rail can carry now
	calls     []*pending
	imports   kit.Slots[transport.RemoteKey, imported]
}

// rail is one path of a link.
type rail struct {
	link        *link
	path        *path
	generation  uint32
	up          bool
	rising      bool   // comes up soon
	sending     uint64 // life of the attempt on the wire, 0 if the wire is free
	queues      [classes]fifo
	outstanding int
	owesReady   bool
	acked       []waiter // posted WRITEs that wait for the next flush
	flushing    bool
	held        []event // events that a cut keeps back
}

// fifo is a queue of attempts; those that ended meanwhile are skipped when their turn comes.
type fifo struct {
	list []waiter
	head int
}

type waiter struct {
	attempt *attempt
	life    uint64
}

func (f *fifo) push(a *attempt) { f.list = append(f.list, waiter{a, a.life}) }

func (f *fifo) pop() *attempt {
	for f.head < len(f.list) {
		w := f.list[f.head]
		if f.head++; f.head == len(f.list) {
			f.list, f.head = f.list[:0], 0
		}
		if w.attempt.life == w.life {
			return w.attempt
		}
	}
	return nil
}

// name is the transport.Rail of the current generation.
func (r *rail) name() transport.Rail {
	return transport.Rail{Link: r.link.id, Index: uint16(r.path.index), Generation: r.generation}
}

// reachable reports whether a control message can travel to an end of the link.
func (l *link) reachable(to *Transport) bool {
	for _, r := range l.rails {
		if !r.path.holds(to) && !r.path.down {
			return true
		}
	}
	return false
}

// delay is the way of a control message: the fastest path that works.
func (l *link) delay() clock.Time {
	best := clock.Never
	for _, r := range l.rails {
		if !r.path.cut && !r.path.down {
			best = min(best, clock.Time(r.path.shape.Delay))
		}
	}
	if best == clock.Never {
		return 0
	}
	return best
}

// target is the peer's transport if it is there, in the incarnation that the link was attached to.
func (l *link) target() *Transport {
	if l.owner.settings.Files { // our own machine
		return l.owner
	}
	if l.to == nil || !l.to.open {
		l.to = l.owner.network.find(l.owner.name, l.peer.Address, l.peer.ID)
	}
	return l.to
}

func (l *link) gone() *errs.Error {
	return l.attribute(errs.New(errs.PeerUnreachable, "sim", "the peer is not there").
		WithScope(errs.ScopeLink, errs.SideRemote))
}

// attribute fills in peer and transport of an error of the link.
func (l *link) attribute(err *errs.Error) *errs.Error {
	return err.WithPeer(l.peer.Address, l.owner.name, "")
}

// dial is the handshake's arrival at the peer's address.
func (l *link) dial() {
	if l.detached || l.connected {
		return
	}
	n, to := l.owner.network, l.target()
	if to != nil {
		n.schedule(event{node: to, link: l, do: func() { l.connect() }}, 0)
		return
	}
	err := l.gone()
	if other := n.find(l.owner.name, l.peer.Address, transport.ID{}); other != nil {
		err = l.attribute(errs.New(errs.PeerRestarted, "sim.dial", "%v answers, not %v", other.self.ID, l.peer.ID).
			WithScope(errs.ScopeLink, errs.SideRemote))
	}
	l.fail(err)
}

func (l *link) connect() {
	if l.detached || l.connected || l.target() == nil {
		return
	}
	l.connected, l.down = true, nil
	for _, r := range l.rails {
		r.comeUp()
	}
}

func (l *link) late() {
	if !l.connected && !l.detached && l.down == nil {
		l.down = l.attribute(errs.New(errs.Timeout, "sim.dial", "no answer within %v", time.Duration(dialLimit)).
			WithScope(errs.ScopeLink, errs.SideUnknown))
		l.reportDown()
	}
}

// reportDown says to the sink why the link is down.
func (l *link) reportDown() {
	l.owner.emit(delivery{news: linkDown, rail: transport.Rail{Link: l.id}, cause: l.down})
}

// fail ends the link for good: its peer is gone, so nothing of it can land any more.
func (l *link) fail(err *errs.Error) {
	if l.detached || (l.down != nil && l.down.Code != errs.Timeout) {
		return
	}
	l.down, l.connected = err, false
	for _, r := range l.rails {
		r.stop()
		r.end(err)
	}
	l.finishCalls(err)
	l.reportDown()
}

// stop ends the rail of a link that ends: nobody has to hear of it.
func (r *rail) stop() { r.up, r.acked, r.flushing = false, nil, false }

// comeUp brings a rail up as soon as both ends are ready and nothing of its last generation is outstanding.
func (r *rail) comeUp() {
	ready := func() bool {
		return r.link.connected && !r.link.detached && !r.up && !r.path.cut && r.path.deaf == "" && !r.path.down &&
			r.outstanding == 0
	}
	if r.rising || !ready() {
		return
	}
	r.rising = true
	r.link.owner.network.schedule(event{rail: r, node: r.link.target(), do: func() {
		if r.rising = false; !ready() {
			return
		}
		r.up = true
		r.generation++
		t := r.link.owner
		t.emit(delivery{news: railUp, info: transport.RailInfo{Rail: r.name(), Node: t.settings.node(r.path.index),
			Bandwidth: r.path.shape.Rate,
			Local:     railName(t.self.Address, r.path.index), Remote: railName(r.link.peer.Address,
				r.path.index), SlicesMax: t.settings.SlicesMax}})
	}}, 2*clock.Time(r.path.shape.Delay))
}

// attribute fills in peer, transport and rail of an error of the rail.
func (r *rail) attribute(err *errs.Error) *errs.Error {
	t := r.link.owner
	return err.WithPeer(r.link.peer.Address, t.name, railName(t.self.Address, r.path.index))
}

// goDown ends the rail's generation.
func (r *rail) goDown(cause *errs.Error) {
	if r.up {
		r.up, r.owesReady, r.sending = false, false, 0
		r.link.owner.emit(delivery{news: railDown, rail: r.name(), cause: cause})
	}
}

// breakDown carries out Down: both ends close their half for good, so everything outstanding ends here, landed or not.
func (r *rail) breakDown() {
	t := r.link.owner
	cause := r.attribute(errs.New(errs.Lost, "sim", "rail broke").WithScope(errs.ScopeRail, errs.SidePath))
	r.goDown(cause)
	for _, a := range t.attempts {
		if a.slice != nil && a.rail == r && a.wired && !a.landed && !a.void && t.network.chance(0.5) {
			a.land()
		}
	}
	r.end(cause)
}

// end completes everything that is outstanding on the rail.
func (r *rail) end(err *errs.Error) {
	r.held, r.sending = nil, 0
	for _, a := range r.link.owner.attempts {
		if a.slice != nil && a.rail == r {
			a.complete(err)
		}
	}
}

// pump puts the next slice on the wire, the highest class first.
func (r *rail) pump() {
	if r.sending != 0 || !r.up {
		return
	}
	for i := range r.queues {
		a := r.queues[i].pop()
		if a == nil {
			continue
		}
		r.sending, a.wired = a.life, true
		var takes clock.Time
		if r.path.shape.Rate > 0 {
			takes = clock.Time(float64(a.slice.Length) / r.path.shape.Rate * float64(time.Second))
		}
		r.link.owner.network.schedule(event{kind: sent, rail: r, attempt: a, life: a.life}, takes)
		return
	}
}

// unhook takes the link's rails off their paths.
func (l *link) unhook() {
	for _, r := range l.rails {
		r.path.rails = slices.DeleteFunc(r.path.rails, func(other *rail) bool { return other == r })
	}
}

func (l *link) explain() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s to %s:", l.owner.name, l.peer.Address)
	for _, r := range l.rails {
		state := "down"
		if r.up {
			state = "up"
		}
		fmt.Fprintf(&b, " rail %d %s, generation %d, %d outstanding;", r.path.index, state, r.generation, r.outstanding)
	}
	return strings.TrimSuffix(b.String(), ";")
}
