package sim

import (
	"slices"
	"strconv"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
)

// Shape is how a path behaves while it is up. The zero Shape is perfect: infinitely fast, no delay, no fault.
// Probabilities are per slice.
type Shape struct {
	Rate      float64       // bytes/s of one link's rail over the path; 0: infinite
	Delay     time.Duration // one way
	Jitter    time.Duration // up to so much more, anew for each slice: slices overtake each other
	Loss      float64       // never arrives; reported as errs.Lost of the rail
	LostAck   float64       // arrives, and is reported as errs.Lost all the same
	Duplicate float64       // the same bytes land a second time, up to LateBy later; the completion waits for it
	Late      float64       // the completion comes up to LateBy later than the bytes
	LateBy    time.Duration
	Refuse    float64 // of a Submit: it takes a random shorter prefix, possibly nothing
}

// giveUp is when a sender believes that a slice is lost.
func (s *Shape) giveUp() clock.Time { return clock.Time(4*s.Delay + 2*s.Jitter + s.LateBy) }

// Where names paths. Empty strings and a negative Rail mean any; A and B are engines' addresses, in either order.
type Where struct {
	Transport string
	A, B      string
	Rail      int
}

// Anywhere is every path of the network.
var Anywhere = Where{Rail: -1}

// Between names all paths between two engines.
func Between(a, b string) Where { return Where{A: a, B: b, Rail: -1} }

// On narrows w to one rail index.
func (w Where) On(rail int) Where { w.Rail = rail; return w }

// matches reports whether a path is meant. An engine's paths to itself are A and B at once.
func (w Where) matches(p *path) bool {
	is := func(wish, have string) bool { return wish == "" || wish == have }
	return is(w.Transport, p.transport) && (w.Rail < 0 || w.Rail == p.index) &&
		(is(w.A, p.a) && is(w.B, p.b) || is(w.A, p.b) && is(w.B, p.a))
}

// path is shared by the rails with the same index of links between two engines, in both directions.
type path struct {
	transport, a, b string
	index           int
	shape           Shape
	cut, down       bool
	deaf            string // the engine that nothing reaches over the path, although its own messages arrive
	rails           []*rail
}

// wish is a shape that was asked for paths; those that come later get it too.
type wish struct {
	where Where
	what  string
	do    func(*path)
}

func (n *Network) wish(where Where, what string, do func(*path)) {
	n.mu.Lock()
	defer n.leave()
	for _, p := range n.paths {
		if where.matches(p) {
			do(p)
		}
	}
	n.wishes = slices.DeleteFunc(n.wishes, func(old wish) bool { return old.where == where && old.what == what })
	n.wishes = append(n.wishes, wish{where, what, do}) // the newest of its kind is enough
}

// path finds or makes the path between two engines.
func (n *Network) path(transport, a, b string, index int) *path {
	if a > b {
		a, b = b, a
	}
	for _, p := range n.paths {
		if p.transport == transport && p.a == a && p.b == b && p.index == index {
			return p
		}
	}
	p := &path{transport: transport, a: a, b: b, index: index}
	n.paths = append(n.paths, p)
	for _, w := range n.wishes {
		if w.where.matches(p) {
			w.do(p)
		}
	}
	return p
}

// Shape sets how paths behave from now on. Slices under way keep their fates.
func (n *Network) Shape(where Where, s Shape) {
	n.wish(where, "shape", func(p *path) { p.shape = s })
}

// CutTo silences one direction of paths: messages to that engine are held back, its own arrive. Heal
// ends it.
func (n *Network) CutTo(where Where, address string) {
	n.wish(where, "cut", func(p *path) { p.deaf = address })
}

// holds reports whether the path keeps back messages to an engine.
func (p *path) holds(to *Transport) bool {
	return p.cut || (p.deaf != "" && to != nil && to.self.Address == p.deaf)
}

// Cut silences paths: nothing arrives and nobody is told. Messages under way are held back.
func (n *Network) Cut(where Where) { n.wish(where, "cut", func(p *path) { p.cut = true }) }

// Heal ends Cut and CutTo. Of the held messages, each slice arrives late or is lost for good; answers arrive late.
// Rails that were fenced meanwhile come up.
func (n *Network) Heal(where Where) {
	n.wish(where, "cut", func(p *path) {
		p.cut, p.deaf = false, ""
		for _, r := range p.rails {
			n.heal(r)
		}
	})
}

// Down breaks rails hard: both ends know. Slices outstanding end as lost; some of their bytes land before.
func (n *Network) Down(where Where) {
	n.wish(where, "down", func(p *path) {
		p.down = true
		for _, r := range p.rails {
			r.breakDown()
		}
	})
}

// Up ends Down: the rails come up in a new generation.
func (n *Network) Up(where Where) {
	n.wish(where, "down", func(p *path) {
		p.down = false
		for _, r := range p.rails {
			r.comeUp()
		}
	})
}

func (n *Network) heal(r *rail) {
	held := r.held
	r.held = nil
	for _, e := range held {
		if e.kind == arrived && n.chance(0.5) {
			e.kind, e.node = lost, r.link.owner
		}
		n.schedule(e, n.upTo(clock.Time(r.path.shape.Delay+r.path.shape.Jitter+1)))
	}
	waiting := r.link.held
	r.link.held = nil
	n.release(waiting)
	r.comeUp()
}

// Stop makes an engine's process stand still, as SIGSTOP does: nothing arrives there, its sink hears nothing.
func (n *Network) Stop(address string) {
	n.mu.Lock()
	defer n.leave()
	for _, t := range n.nodes {
		if t.self.Address == address {
			t.stopped = true
		}
	}
}

// Continue ends Stop: everything that came meanwhile arrives now.
func (n *Network) Continue(address string) {
	n.mu.Lock()
	defer n.leave()
	for _, t := range n.nodes {
		if t.self.Address != address || !t.stopped {
			continue
		}
		t.stopped = false
		held, news := t.held, t.heldNews
		t.held, t.heldNews = nil, nil
		for _, d := range news {
			t.emit(d)
		}
		n.release(held)
	}
}

// Kill ends an engine's process, as SIGKILL does. Its memory is not touched any more, its sink hears nothing, its peers
// learn it after the delay of their paths. Another engine may open at the address afterwards.
func (n *Network) Kill(address string) {
	n.mu.Lock()
	defer n.leave()
	for i := len(n.nodes) - 1; i >= 0; i-- {
		if t := n.nodes[i]; t.self.Address == address {
			t.mute.Store(true)
			t.end(errs.New(errs.PeerUnreachable, "sim", "process ended").WithScope(errs.ScopeLink, errs.SideRemote).
				WithPeer(address, t.name, ""))
		}
	}
}

// railName is how a rail's ends are called.
func railName(address string, index int) string { return address + "#" + strconv.Itoa(index) }
