package dispatch

import (
	"iter"
	"strconv"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch/internal/intrusive"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/qos"
	"github.com/tent-engine/tent/gocore/rail"
	"github.com/tent-engine/tent/gocore/transport"
)

// link is one transport's connection to a peer, with the queues of the tasks that wait for it.
type link struct {
	spec        LinkSpec
	id          plan.LinkID
	peer        *peer
	rails       []*railState // by index, of the newest generation; nil where there was none
	retired     []*railState // of older generations, while slices are outstanding on them
	up          int          // rails that can be used at all
	good        int          // of these, healthy ones
	rank        int          // the best of its rails
	several     bool         // more than one rail is up
	numa        bool         // its rails are on different NUMA nodes
	ownNode     bool         // RailOptions.OwnNode
	nodes       uint64       // bits: NUMA nodes that have a rail of the best rank
	nics        uint64       // bits: NICs named by policies that have a rail of the best rank
	keyed       bool         // work waits that may not use every rail, see reach.go
	fell        clock.Time   // when a rail last went out of use, by the detector's clock
	byDeadline  bool         // order inside a class is by slack
	dialing     bool         // has not had a rail yet, and nobody said that there will be none
	worked      bool         // has had a rail
	cause       *errs.Error  // why there is no rail
	options     *RailOptions // of its transport
	queues      [ClassCount]classQueue
	waiting     [ClassCount]clock.Time // since when the class has had work, clock.Never if it has none
	devices     []*device              // of its rails that are up
	refused     [ClassCount]clock.Time // since when the class has waited for a slot of time; 0 if it does not
	outstanding int                    // slices, and tasks that callers carry out
	flying      [ClassCount]int        // slices
	delivered   clock.Time             // last completion with bytes, or other sign of life, by the detector's clock
	down        clock.Time             // since when there has been no rail, by the detector's clock
	timer       timer
	again       timer // something that was held back may be admitted then
	successors  []successor
	turn        intrusive.Node[link] // in Core.active
}

// classQueue is the work of one class: pieces are there to be sent again or on, tasks have fresh bytes.
type classQueue struct {
	pieces intrusive.List[piece]
	tasks  intrusive.List[task]
	urgent bySlack // tasks with a deadline, where it decides; before the others
	aside  aside
	depth  int    // tasks, of all kinds
	bytes  uint64 // fresh ones, of all tasks
}

func (q *classQueue) empty() bool { return q.pieces.Len()+q.aside.pieces.Len()+q.depth == 0 }

// next is the task that has the next fresh bytes.
func (q *classQueue) next() *task {
	if len(q.urgent) > 0 {
		return q.urgent[0].task
	}
	return q.tasks.First()
}

// another returns a task other than t, in arbitrary order in the heap. It is only for scans that must skip t (NUMA).
func (q *classQueue) another(t *task) *task {
	switch slot := t.queue.slot; {
	case slot == 0:
		return t.queue.After()
	case slot < len(q.urgent):
		return q.urgent[slot].task
	}
	return q.tasks.First()
}

// railState is one rail in one generation. Attempts keep it alive when it has been replaced.
type railState struct {
	link       *link
	info       transport.RailInfo
	id         transport.Rail
	life       rail.Life     // its state; Core.observe changes it
	full       bool          // backpressure: it took less than it was given; ends with Ready, or see stuck.go
	filled     clock.Time    // when it last refused a slice, by the detector's clock
	refusing   clock.Time    // since when it takes none, by the detector's clock; 0: it does; clock.Never: told
	fencedAt   clock.Time    // by the detector's clock
	asked      bool          // a question for signs of life is under way, see suspect.go
	judged     time.Duration // the longest silence since the last sign of life that was judged
	vectors    bool          // takes slices of many pieces
	nics       uint64        // bits of Options.Devices that mean its NIC
	rank       int
	band       int    // of health
	bytesMax   uint64 // may be in flight now
	bytesWhole uint64 // and without slow start
	slicesMax  int
	bytes      uint64
	slices     int
	flight     intrusive.List[attempt] // oldest first
	turns      qos.Turns
	device     *device
	held       intrusive.Node[railState] // of device.held
	low        uint64                    // bytes of LOW in flight
	meter      rail.Meter
	pace       rail.Pace
	health     rail.Health
	pair       rail.Pair
	posted     uint64     // id of the last slice that it was given
	heard      clock.Time // last sign of life, or begin of the flight, by the detector's clock
	fresh      clock.Time // heard as resume has set it
	pardon     clock.Time // heard as a pardon has set it, see standstill.go
	mute       clock.Time // fresh, where it has said nothing between two returns of its peer, else 0
	answered   clock.Time // first answer to a probe since the last completion with bytes, by the detector's clock
	noted      clock.Time // last sign of life without a completion, by the detector's clock
	doubted    clock.Time // when it was last suspected, by the detector's clock
	lastGood   clock.Time // last completion with bytes
	errors     uint64
	failure    *errs.Error        // the last one that counted
	failed     clock.Time         // when it did; clock.Never: nothing counts any more, since the generation has ended
	recalled   int                // slices of which the transport has not taken the withdrawal
	recalling  clock.Time         // since when it has taken none, by the detector's clock; clock.Never: that was told
	carried    uint64             // bytes
	brought    [ClassCount]uint64 // of these, bytes of each class in this generation
	came       uint64             // bytes of the slice that came back last
	timer      timer
	submit     mark
	withdraw   mark
	fence      mark
}

func (r *railState) usable() bool { return r.life.State().Usable() }

func (r *railState) healthy() bool { return r.life.State().Healthy() }

// ended reports whether the transport has ended the rail's generation.
func (r *railState) ended() bool { return r.life.State().Ended() }

func (r *railState) question() Question { return Question{r.link.spec.Transport, r.link.id, r.id} }

func (r *railState) name() string { return r.info.Local + " -> " + r.info.Remote }

// records yields every record of a rail of the link, those that were replaced too.
func (l *link) records() iter.Seq[*railState] {
	return func(yield func(*railState) bool) {
		for _, rails := range [...][]*railState{l.rails, l.retired} {
			for _, r := range rails {
				if r != nil && !yield(r) {
					return
				}
			}
		}
	}
}

// AddLink makes a link known. It has no rails yet.
func (c *Core) AddLink(spec LinkSpec) plan.LinkID {
	if invariants {
		defer c.checkInvariants()
	}
	p := c.peers[spec.Peer]
	if p == nil {
		p = &peer{name: spec.PeerName}
		p.timer.Owner.peer = p
		c.peers[spec.Peer] = p
		c.enterPeer(p, spec.Engine)
	}
	for int(spec.Transport) >= len(c.counters) {
		c.growCounters()
	}
	l := &link{spec: spec, peer: p, dialing: true}
	l.timer.Owner.link, l.again.Owner.held, l.options = l, l, c.optionsOf(spec.Transport)
	l.ownNode, l.byDeadline = l.options.OwnNode, l.options.ByDeadline
	l.waiting = [ClassCount]clock.Time{clock.Never, clock.Never, clock.Never}
	p.links = append(p.links, l)
	c.insertLink(l)
	return l.id
}

// RemoveLink forgets a link, after Detach and when LinkBusy says no. Tasks that still wait for it take another route or
// fail. Its slot is used again under another generation; the id stays stale for ever.
func (c *Core) RemoveLink(id plan.LinkID) {
	if invariants {
		defer c.checkInvariants()
	}
	l := c.link(id)
	if l == nil {
		return
	}
	now := c.last
	for _, r := range l.rails {
		if r != nil {
			c.observe(r, rail.Ended, now)
		}
	}
	c.timers.Stop(&l.again)
	l.up, l.dialing = 0, false
	c.deleteLink(l)
	c.gather(l)
	for _, t := range c.scratch {
		if t.live() {
			c.failover(t, c.blameLink(errClosed, t, l), now)
		}
	}
	c.timers.Stop(&l.timer)
	c.forgetRails(l)
	p := l.peer
	for i, other := range p.links {
		if other == l {
			p.links = append(p.links[:i:i], p.links[i+1:]...)
			break
		}
	}
	if len(p.links) == 0 {
		c.timers.Stop(&p.timer)
		delete(c.peers, l.spec.Peer)
		c.leavePeer(p, l.spec.Engine)
	}
}

// LinkBusy reports whether slices are outstanding on the link or tasks wait for it.
func (c *Core) LinkBusy(id plan.LinkID) bool {
	l := c.link(id)
	return l != nil && (l.outstanding > 0 || !l.idle())
}

func (l *link) idle() bool {
	return l.queues[High].empty() && l.queues[Medium].empty() && l.queues[Low].empty()
}

// RailUp adds a rail, or a new generation of one that was down.
func (c *Core) RailUp(id plan.LinkID, info transport.RailInfo, now clock.Time) {
	if invariants {
		defer c.checkInvariants()
	}
	c.wakeUp(now)
	l := c.link(id)
	if l == nil || l.peer.gone != nil {
		return
	}
	for int(info.Rail.Index) >= len(l.rails) {
		l.rails = append(l.rails, nil)
	}
	old := l.rails[info.Rail.Index]
	if old != nil && old.id.Generation >= info.Rail.Generation {
		return // late news
	}
	r := c.newRail(l, info, now)
	if old != nil {
		if !old.ended() {
			c.observe(old, rail.Ended, now)
			c.resendFlight(old, now)
		}
	}
	paused := old != nil && c.inherit(r, old, now)
	l.rails[info.Rail.Index] = r
	c.plug(r, now)
	if old != nil {
		c.retire(old)
	}
	first := l.up == 0
	l.up++
	l.dialing, l.worked, l.cause = false, true, nil
	c.railEvent(event.Event{Kind: event.RailUp}, r, now)
	if paused {
		n := r.life.LostInARow()
		c.railPaused(r, n, strconv.Itoa(n)+" generations in a row delivered nothing", nil, now)
	}
	if l.answers() { // nobody else can have let us in
		c.peerSpoke(l.peer, c.awake(now), now)
	}
	if first {
		c.emit(event.Event{Kind: event.LinkUp, Time: now, Peer: l.peer.name,
			Transport: c.transportName(l.spec.Transport)})
		for _, other := range l.peer.links { // tasks that wait elsewhere for a rail may come here
			if other != l && other.up == 0 && !other.idle() {
				c.timers.Set(&other.timer, now)
			}
		}
	}
	c.rerank(l)
	c.timers.Set(&r.timer, now)
	if paused {
		c.tendLink(l, now)
	}
	if r.life.State() == rail.Probation && l.spec.Probes { // proved before it is needed
		c.probeRail(r, now)
	}
}

// inherit hands over the history of a rail to its next generation, which is trusted little by little. It reports
// whether that begins with a pause, because the last ones delivered nothing.
func (c *Core) inherit(r, old *railState, now clock.Time) (paused bool) {
	r.meter, r.health = old.meter, old.health
	r.errors, r.carried, r.lastGood = old.errors, old.carried, old.lastGood
	paused = r.life.Inherit(&old.life, &r.link.options.Settings, now)
	r.resize()
	return paused
}

func (c *Core) newRail(l *link, info transport.RailInfo, now clock.Time) *railState {
	r := &railState{link: l, info: info, id: info.Rail, rank: rankNever, bytesMax: info.BytesMax,
		slicesMax: info.SlicesMax}
	r.life = rail.Born(info.Alternates)
	if r.bytesMax == 0 {
		r.bytesMax = max(c.options.WindowBytes, uint64(info.Bandwidth*windowTime.Seconds()))
	}
	if r.slicesMax == 0 {
		r.slicesMax = c.options.WindowSlices
	}
	if info := l.spec.Info; info != nil {
		r.vectors = info.Vectors
		if info.SlicesMax > 0 {
			r.slicesMax = min(r.slicesMax, info.SlicesMax)
		}
	}
	r.bytesWhole = r.bytesMax
	r.meter.Reset(info.Bandwidth)
	r.meter.Except(&c.lost, &l.peer.stood)
	r.pace.Reset(info.Bandwidth)
	r.timer.Owner.rail = r
	r.nics = c.nicsOf(&info)
	r.heard = c.awake(now)
	r.pair = rail.Pair{Local: c.ends.acquireEnd(info.Local), Remote: c.ends.acquireEnd(info.Remote),
		Peer: int(l.spec.Peer)}
	return r
}

// windowTime of a rail's bandwidth may be in flight where the transport names no window. Between GPUs, the default of
// some MiB would be gone before the next launch.
const windowTime = 500 * time.Microsecond

// RailDown ends a generation of a rail. Slices outstanding on it complete later; unless the cause is nil, an orderly
// end, their bytes are sent again at once by another way.
func (c *Core) RailDown(id plan.LinkID, which transport.Rail, cause *errs.Error, now clock.Time) {
	if invariants {
		defer c.checkInvariants()
	}
	r := c.rail(id, which)
	if r == nil || r.ended() {
		return
	}
	l := r.link
	c.observe(r, rail.Ended, now)
	note := ""
	if r.life.DeliversNothing(&l.options.Settings) {
		note = "it delivered nothing, as those before"
	}
	c.railEvent(event.Event{Kind: event.RailDown, Note: note, Err: cause}, r, now)
	if cause != nil {
		if l.up == 0 {
			l.cause = cause
		}
		c.resendFlight(r, now)
	}
	c.tendLink(l, now)
}

// DropLink says that the peer cannot be reached over this transport at all. Waiting tasks take their next route; those
// that have none wait for a rail, at most Options.LinkWait or Outage, and fail with the cause. RailUp brings the link
// back. A cause of errs.Timeout says that the peer does not answer, which proves nothing.
func (c *Core) DropLink(id plan.LinkID, cause *errs.Error, now clock.Time) {
	if invariants {
		defer c.checkInvariants()
	}
	l := c.link(id)
	if l == nil {
		return
	}
	if cause == nil {
		cause = errs.New(errs.PeerUnreachable, "link", "the link is down").WithScope(errs.ScopeLink, errs.SideUnknown)
	}
	l.dialing, l.cause = false, cause
	if l.up == 0 && l.down == 0 {
		l.down = c.awake(now)
	}
	for _, r := range l.rails {
		if r != nil && !r.ended() {
			c.observe(r, rail.Ended, now)
			c.resendFlight(r, now)
		}
	}
	c.emit(event.Event{Kind: event.LinkDown, Time: now, Peer: l.peer.name,
		Transport: c.transportName(l.spec.Transport), Err: cause})
	c.tendLink(l, now)
}

// PeerGone says that an incarnation has ended: nothing of it can land any more. All its tasks fail with the cause;
// those with slices outstanding end with their completions, as ever. The engine drops, detaches and removes its links.
func (c *Core) PeerGone(number uint32, cause *errs.Error, now clock.Time) {
	if invariants {
		defer c.checkInvariants()
	}
	p := c.peers[number]
	if p == nil || p.gone != nil {
		return
	}
	if cause == nil {
		cause = errs.New(errs.PeerUnreachable, "peer", "the peer has ended").OfPeer(p.name)
	}
	p.owe(-p.open)
	p.gone = cause
	c.releasePeers(p)
	c.timers.Stop(&p.timer)
	c.sense(p, rail.Left, 0, now)
	for _, l := range p.links {
		for _, r := range l.rails {
			if r != nil && !r.ended() {
				c.observe(r, rail.Ended, now)
			}
		}
		l.dialing, l.cause = false, cause
		c.gatherAll(l)
		for _, t := range c.scratch {
			c.endTask(t, Failed, cause, now)
		}
	}
}

// Ready says that a rail takes slices again.
func (c *Core) Ready(id plan.LinkID, which transport.Rail) {
	if invariants {
		defer c.checkInvariants()
	}
	if r := c.rail(id, which); r != nil {
		r.full = false
		c.activate(r.link)
	}
}

// Progress says that the rail is alive although no slice of it has completed.
func (c *Core) Progress(id plan.LinkID, which transport.Rail, now clock.Time) {
	if invariants {
		defer c.checkInvariants()
	}
	c.wakeUp(now)
	if r := c.rail(id, which); r != nil {
		r.noted = c.awake(now)
		r.link.delivered = r.noted
		c.endStandstill(r, r.flight.First(), r.noted)
		c.signOfLife(r, now)
		if r.slices > 0 {
			r.meter.Spoke(now)
		}
	}
}

// patience is how long a task waits for a link as it is now. Since is from when that counts at the earliest, by the
// detector's clock.
func (c *Core) patience(l *link) (limit time.Duration, since clock.Time) {
	switch {
	case l.up > 0:
		return c.options.Stall, l.delivered
	case l.cause != nil && final(l.cause):
		return 0, l.down
	case l.cause != nil && l.cause.Side == errs.SideRemote: // its host refuses: that is no silence
		return c.options.LinkWait, l.down
	case l.worked, l.dialing, l.cause != nil && l.cause.Code == errs.Timeout: // silent, and maybe back soon
		return min(c.options.Outage, c.options.Stall), l.down
	}
	return c.options.LinkWait, l.down // the peer is there, and no way for data leads to it
}
