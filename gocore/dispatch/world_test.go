package dispatch

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/transport"
)

// world plays the engine and the transports around one core, from one random source. Its rails have rates, delays and
// losses; they flap, fall silent, refuse, and give withdrawn slices back late. Time is a number.
type world struct {
	*rand.Rand
	core    *Core
	now     clock.Time
	events  eventQueue
	seq     int
	rails   map[railKey]*wire
	order   []railKey // of rails, so that nothing hangs on the order of a map
	out     map[*transport.Slice]*posted
	check   *checker
	keys    *keys                // nil: all work everywhere
	owners  *descriptors         // nil: keys stay as they are
	keeps   bool                 // a withdrawn slice ends in its own time, as a posted READ of a queue pair does
	calm    bool                 // the world is healed: no faults any more
	rigged  *errs.Error          // every failure is this one
	stepped clock.Time           // when the core ran last
	frozen  clock.Time           // the core's process does not run before
	paused  [peersMax]clock.Time // until then a peer's process stands still
}

type railKey struct {
	link  plan.LinkID
	index uint16
}

// wire is the world's side of a rail.
type wire struct {
	key     railKey
	id      transport.Rail
	info    transport.RailInfo
	rate    float64
	delay   time.Duration
	busy    clock.Time
	up      bool
	silent  bool
	probing bool
	fenced  bool
	dead    bool // its peer has ended
	lost    float64
	failed  float64
	usual   float64 // rate of when nothing is wrong
	carried uint64  // bytes, ever
	bytes   uint64
	slices  int
}

// posted is the world's note of a slice that is out.
type posted struct {
	slice     transport.Slice // as it was handed out
	origin    *transport.Slice
	first     uintptr // the task bytes that it stands for
	wire      *wire
	withdrawn bool
	refused   bool       // the transport did not take it; the core does not know yet
	due       clock.Time // of its completion, clock.Never if it has none
	stood     bool       // its peer paused when it was due
}

type happening struct {
	at  clock.Time
	seq int
	do  func()
}

type eventQueue []happening

func (q eventQueue) Len() int { return len(q) }
func (q eventQueue) Less(i, j int) bool {
	return q[i].at < q[j].at || (q[i].at == q[j].at && q[i].seq < q[j].seq)
}
func (q eventQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *eventQueue) Push(x any)   { *q = append(*q, x.(happening)) }
func (q *eventQueue) Pop() any {
	old := *q
	x := old[len(old)-1]
	*q = old[:len(old)-1]
	return x
}

func newWorld(seed uint64, options Options) *world {
	return &world{Rand: rand.New(rand.NewPCG(seed, 7)), core: New(options), now: uptime(seed),
		rails: map[railKey]*wire{}, out: map[*transport.Slice]*posted{}}
}

func (w *world) after(d time.Duration, do func()) {
	w.seq++
	heap.Push(&w.events, happening{w.now.Add(d), w.seq, do})
}

func (w *world) between(low, high time.Duration) time.Duration {
	return low + time.Duration(w.Int64N(int64(high-low)+1))
}

// addRail brings a rail up for the first time.
func (w *world) addRail(link plan.LinkID, index uint16, rate float64, delay time.Duration, window uint64,
	slices int) *wire {
	key := railKey{link, index}
	r := &wire{key: key, rate: rate, usual: rate, delay: delay}
	r.id = transport.Rail{Link: transport.Link(link), Index: index}
	r.info = transport.RailInfo{Local: fmt.Sprint("here", index), Remote: fmt.Sprint("there", link), BytesMax: window,
		SlicesMax: slices, Node: w.IntN(3) - 1}
	w.rails[key] = r
	w.order = append(w.order, key)
	w.raise(r)
	return r
}

func (w *world) raise(r *wire) {
	if r.up || r.dead {
		return
	}
	if left := w.pauseLeft(r.key.link); left > 0 {
		w.after(left, func() { w.raise(r) })
		return
	}
	w.check.hear(r.key.link)
	r.id.Generation++
	r.probing = false
	r.info.Rail = r.id
	r.up, r.silent, r.fenced, r.busy = true, false, false, w.now
	r.bytes, r.slices = 0, 0
	w.core.RailUp(r.key.link, r.info, w.now)
}

// fall takes a rail down; its slices come back later, delivered or not.
func (w *world) fall(r *wire, cause *errs.Error) {
	if !r.up {
		return
	}
	r.up = false
	w.core.RailDown(r.key.link, r.id, cause, w.now)
	for _, p := range w.outOn(r) {
		if w.IntN(4) == 0 {
			w.complete(p, nil, w.between(0, 3*time.Millisecond))
		} else {
			w.complete(p, errs.New(errs.Lost, "sim", "rail fell").WithScope(errs.ScopeRail, errs.SidePath),
				w.between(0, 30*time.Millisecond))
		}
	}
}

// outOn lists the slices that are out on a rail's current generation, in order of hand-out.
func (w *world) outOn(r *wire) (list []*posted) {
	for _, p := range w.out {
		if p.wire == r && !p.refused && p.slice.Rail.Generation == r.id.Generation {
			list = append(list, p)
		}
	}
	sortByID(list)
	return list
}

// complete schedules the completion of a slice, or makes it come sooner and otherwise.
func (w *world) complete(p *posted, err *errs.Error, in time.Duration) {
	due := w.now.Add(in)
	if p.due <= due {
		return // it comes sooner by itself
	}
	p.due = due
	s := p.origin
	w.after(in, func() {
		if p.due != due || w.out[s] != p {
			return // something made it come sooner
		}
		if left := w.pauseLeft(p.wire.key.link); left > 0 {
			p.due, p.stood = clock.Never, true
			w.complete(p, err, left+w.between(0, time.Millisecond))
			return
		}
		bytes := p.slice.Length
		if err != nil {
			bytes = 0
			if !w.calm && w.IntN(3) == 0 { // a prefix that the transport can prove
				bytes = w.Uint64N(p.slice.Length/unit) * unit
			}
		}
		if bytes > 0 && attemptOf(s).state == attemptOut {
			w.check.hear(p.wire.key.link)
		}
		w.takeBack(p, bytes)
		p.wire.carried += bytes
		w.core.Complete(0, []transport.Completion{{Slice: s, Id: s.Id, Bytes: bytes, Err: err}}, w.now)
	})
}

// step runs the core and carries out its orders.
func (w *world) step() {
	effects := w.core.Step(w.now)
	w.stepped = w.now
	w.check.admitted(effects)
	for i := range effects.Submit {
		w.submit(&effects.Submit[i])
	}
	for i := range effects.Withdraw {
		for _, s := range effects.Withdraw[i].Slices {
			w.withdraw(s)
		}
		w.core.WithdrawalSent(effects.Withdraw[i].Slices)
	}
	for i := range effects.Fence {
		w.fence(&effects.Fence[i])
	}
	for _, q := range effects.AskLiveness {
		w.doubt(q)
	}
	for _, q := range effects.Probe {
		w.probe(q)
	}
	w.check.effects(effects)
	if w.owners != nil {
		w.owners.effects(effects)
	}
	w.check.waiting()
	w.check.nics()
}

// doubt answers a question for signs of life some time later. The answer is that the rail carries withdrawn slices,
// nothing that the core does not know, or that the peer is busy.
func (w *world) doubt(q Question) {
	w.check.seen["doubt"]++
	if !w.calm && w.IntN(4) == 0 {
		return // nobody answers
	}
	signs := transport.Signs{Held: !w.calm && w.IntN(20) == 0}
	switch r := w.rails[railKey{q.Link, q.Rail.Index}]; {
	case w.pauseLeft(q.Link) > 0: // its kernel may answer all the same
		signs.Held = w.IntN(2) == 0
		if w.IntN(2) == 0 {
			signs.Heard = w.now
		}
	case r.up && !r.silent && r.busy > w.now:
		signs.Heard, signs.Moved = w.now, w.now
	}
	w.after(w.between(0, 200*time.Microsecond), func() { w.core.Liveness(q, signs, w.now) })
}

// probe asks a rail itself: it answers if it carries, else says so within a while.
func (w *world) probe(q Question) {
	r := w.rails[railKey{q.Link, q.Rail.Index}]
	if !w.check.probes[q.Link] {
		w.check.fail("a probe over a transport that has none")
	}
	if r.probing {
		w.check.fail("two probes at once over one rail")
	}
	r.probing = true
	w.check.seen["probe"]++
	works := r.up && r.id == q.Rail && !r.silent && !r.fenced && w.pauseLeft(q.Link) == 0
	took := 2 * r.delay
	if !works {
		took = w.between(time.Millisecond, 50*time.Millisecond)
	}
	w.after(took, func() {
		if r.id == q.Rail {
			r.probing = false
		}
		var err *errs.Error
		if !works {
			err = errs.New(errs.Timeout, "sim", "no answer").WithScope(errs.ScopeRail, errs.SidePath)
		} else if known := w.core.rail(q.Link, q.Rail); known != nil && known.usable() {
			w.check.hear(q.Link)
		}
		w.core.Probed(q.Link, q.Rail, clock.Time(took), err, w.now)
	})
}

func (w *world) submit(p *Posting) {
	r := w.rails[railKey{p.Link, p.Rail.Index}]
	slices := append([]*transport.Slice(nil), p.Slices...)
	accept := len(slices)
	if !w.calm && w.IntN(20) == 0 {
		accept = w.IntN(accept + 1)
	}
	if !r.up || r.id != p.Rail || r.fenced {
		accept = 0
	}
	for i, s := range slices {
		q := &posted{slice: *s, origin: s, wire: r, due: clock.Never, refused: i >= accept}
		w.check.posted(q)
		if known := w.check.epochs[w.check.links[p.Link].peer]; s.Epoch < known {
			w.check.fail("a slice of epoch %d is cut in epoch %d", s.Epoch, known)
		}
		w.out[s] = q
		if r.id == p.Rail {
			r.bytes += s.Length
			r.slices++
			w.check.window(r)
		}
		if !q.refused {
			w.carry(r, q)
		}
	}
	id := p.Rail
	if rest := slices[accept:]; len(rest) > 0 { // the refusal reaches the core by way of the inbox, before Ready
		w.after(w.between(0, time.Millisecond), func() {
			for _, s := range rest {
				w.takeBack(w.out[s], 0)
			}
			w.core.Refuse(rest, w.now)
			w.after(w.between(0, 2*time.Millisecond), func() { w.core.Ready(r.key.link, id) })
		})
	}
}

// takeBack ends the world's note of a slice.
func (w *world) takeBack(p *posted, bytes uint64) {
	delete(w.out, p.origin)
	if p.slice.Rail.Generation == p.wire.id.Generation {
		p.wire.bytes -= p.slice.Length
		p.wire.slices--
	}
	w.check.completed(p, bytes)
}

// carry decides the fate of an accepted slice.
func (w *world) carry(r *wire, q *posted) {
	if r.silent {
		return
	}
	r.busy = max(r.busy, w.now).Add(time.Duration(float64(q.slice.Length) / r.rate * 1e9))
	took := r.busy.Sub(w.now) + r.delay
	if w.keys != nil && w.keys.refuses(q, took) || w.owners != nil && w.owners.refuses(q, took) {
		return
	}
	if w.calm {
		w.complete(q, nil, took)
		return
	}
	switch x := w.Float64(); {
	case x < r.failed:
		w.complete(q, w.failure(), took)
	case x < r.failed+r.lost: // comes back by withdrawal or by the rail's end only
	default:
		w.complete(q, nil, took)
	}
}

func (w *world) failure() *errs.Error {
	if w.rigged != nil {
		return w.rigged
	}
	e := errs.New(errs.Lost, "sim", "injected")
	switch w.IntN(12) {
	case 0:
		return e.WithScope(errs.ScopeLink, errs.SidePath)
	case 1, 2, 3:
		return e.WithScope(errs.ScopeRail, errs.SideLocal)
	case 4:
		e.Collateral = true
		return e.WithScope(errs.ScopeRail, errs.SidePath)
	case 5:
		if w.IntN(4) == 0 {
			return errs.New(errs.PermissionDenied, "sim", "injected")
		}
	}
	return e.WithScope(errs.ScopeSlice, errs.SideUnknown)
}

func (w *world) withdraw(s *transport.Slice) {
	q := w.out[s]
	if q == nil {
		return // completed meanwhile
	}
	w.check.withdrawn(q)
	q.withdrawn = true
	if q.refused {
		return // never taken, the refusal is on its way
	}
	if w.keeps {
		return
	}
	late := w.between(0, 3*time.Millisecond)
	if !w.calm && w.IntN(15) == 0 {
		late = w.between(20*time.Millisecond, 400*time.Millisecond) // beyond the fence bound
	}
	w.complete(q, errs.New(errs.Withdrawn, "sim", "withdrawn"), late)
}

func (w *world) fence(p *Posting) {
	r := w.rails[railKey{p.Link, p.Rail.Index}]
	if r.id != p.Rail {
		return
	}
	r.fenced = true
	for _, q := range w.outOn(r) {
		w.complete(q, errs.New(errs.Withdrawn, "sim", "fenced"), w.between(0, 5*time.Millisecond))
	}
	w.after(w.between(1, 20*time.Millisecond), func() { w.fall(r, nil) })
	w.after(w.between(30*time.Millisecond, 100*time.Millisecond), func() { w.raise(r) })
}

// run goes on until the given time, or until stop says so.
func (w *world) run(until clock.Time, stop func() bool) {
	w.step()
	begun, steps := w.now, 0
	for same := 0; !stop(); {
		next := min(until, w.core.Deadline())
		if len(w.events) > 0 {
			next = min(next, w.events[0].at)
		}
		if next >= until {
			w.now = until
			w.step()
			return
		}
		same++
		if next > w.now {
			same = 0
		}
		if steps++; w.now > begun.Add(time.Millisecond) {
			begun, steps = w.now, 0
		}
		w.check.progress(max(same, steps/5))
		w.now = max(w.now, next, w.frozen)
		for len(w.events) > 0 && w.events[0].at <= w.now {
			heap.Pop(&w.events).(happening).do()
		}
		w.step()
	}
}

// capacity of a link when nothing is wrong, in bytes/s.
func (w *world) capacity(link plan.LinkID) (rate float64) {
	for _, key := range w.order {
		if r := w.rails[key]; key.link == link {
			window := min(r.info.BytesMax, uint64(r.info.SlicesMax)*4<<10) // slices are of at least 4 KiB
			rate += min(r.usual, float64(window)/r.delay.Seconds())
		}
	}
	return rate
}
