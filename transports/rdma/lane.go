package rdma

import (
	"math/rand/v2"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
	"github.com/tent-engine/tent/transports/rdma/verbs"
)

// lane is a queue pair of a rail. The id of a work request is number<<48 | life<<32 | turn, so a completion of an
// earlier life of the queue pair, or one that comes twice, is found out. Everything is guarded by the rail's mutex,
// but for the calls of its goroutine alone (reset, connect).
type lane struct {
	rail   *rail
	index  int
	device *device
	number int
	pair   *verbs.Pair // nil before the first connection and after the end
	in     *waiting

	works  bool // it is connected; else its rail's goroutine has it
	reset  bool // our end is as new: nothing of before is read or written here
	life   uint16
	cause  *errs.Error
	ring   []posted
	head   uint32     // turn of the next work request
	tail   uint32     // turn of the first that has not come back
	bytes  uint64     // out
	moved  clock.Time // when something was last seen to have come back, see movesLocked
	seen   uint32     // tail at that time
	chain  []verbs.WR // of verbs.Batch
	length int
	writes bool // the chain has WRITEs that are to be flushed
	marks       // of its packets
}

// posted is a work request that is out.
type posted struct {
	op    *op
	bytes uint32
	last  bool // of its slice
}

// laneBytes bounds the bytes that are out on a lane: a withdrawal waits for as much.
const laneBytes = 4 << 20

func (l *lane) room() int { return len(l.ring) - int(l.head-l.tail) - l.length }

// failLocked gives the lane up. Slices that are out end when the rail's goroutine has proved that they are quiet.
func (l *lane) failLocked(cause *errs.Error) {
	if !l.works {
		return
	}
	l.works, l.reset, l.cause = false, false, cause
	l.life++
}

// buildLocked appends the work requests of an op to the chain, as far as there is room. It reports whether the op is
// whole then.
func (l *lane) buildLocked(o *op, here *memory, there *remoteKey) bool {
	s, block := o.slice, l.rail.link.t.settings.Block
	for l.room() > 1 && l.length < verbs.Batch-1 && l.bytes < laneBytes {
		local, far, left := s.Local, s.Remote, s.Length
		if p := s.Pieces; p != nil {
			i := uint64(s.First) + o.part
			local, far, left = local+uintptr(p.LocalAt[i]), far+p.RemoteAt[i], p.Bytes
		}
		own, room := here.key(uint64(local-o.owner.Addr) + o.at)
		rkey, roomThere := o.remote.part(there, far+o.at)
		n := min(left-o.at, block, room, roomThere)
		code := verbs.OpRead
		if s.Op == transport.Write {
			code = verbs.OpWrite
		}
		l.appendLocked(verbs.WR{Local: uint64(local) + o.at, Remote: o.remote.base + far + o.at, Length: uint32(n),
			LKey: own.LKey, RKey: rkey, Op: code, Flags: l.inlined(o, code, n)}, posted{op: o, bytes: uint32(n)})
		l.writes = l.writes || code == verbs.OpWrite && l.rail.link.t.pushes(o.remote)
		if o.at += n; o.at == left {
			o.at = 0
			o.part++
		}
		if s.Pieces == nil && o.part == 1 || s.Pieces != nil && o.part == s.Length/s.Pieces.Bytes {
			o.whole = true
			l.ring[(l.head+uint32(l.length)-1)%uint32(len(l.ring))].last = true
			return true
		}
	}
	return false
}

// inlined is the flag of a WRITE with its bytes inside the request. The processor copies them, so they are memory
// of the host.
func (l *lane) inlined(o *op, code uint32, n uint64) uint32 {
	if code == verbs.OpWrite && n <= uint64(l.pair.Inline) && o.owner.Kind == mem.Host {
		return verbs.Inlined
	}
	return 0
}

func (l *lane) appendLocked(wr verbs.WR, p posted) {
	turn := l.head + uint32(l.length)
	wr.ID = uint64(l.number)<<48 | uint64(l.life)<<32 | uint64(turn)
	l.chain[l.length] = wr
	l.length++
	l.ring[turn%uint32(len(l.ring))] = p
	l.bytes += uint64(p.bytes)
	if p.op != nil {
		p.op.out++
	}
}

// postLocked posts the chain in one crossing. Its last work request is signalled, and so is the last of each slice but
// where a flush follows: then that READ, which pushes the WRITEs before it, ends them all.
func (l *lane) postLocked() {
	n := l.length
	if n == 0 {
		return
	}
	flush := l.writes
	if flush {
		l.flushLocked(n - 1)
		n++
	}
	for i := range n {
		if i == n-1 || !flush && l.ring[(l.head+uint32(i))%uint32(len(l.ring))].last {
			l.chain[i].Flags |= verbs.Signaled
		}
	}
	l.length, l.writes = 0, false
	l.head += uint32(n)
	l.rail.posted = true
	l.device.flying.Add(int64(n))
	if _, err := l.pair.Post(l.chain[:n]); err != nil {
		cause := errs.New(errs.Lost, Name, "%v", err).WithScope(errs.ScopeRail, errs.SideLocal)
		l.failLocked(cause)
		l.rail.mendLocked()
	}
}

// flushLocked appends a READ of the bytes that the chain's last WRITE wrote, eight at most.
func (l *lane) flushLocked(last int) {
	for l.chain[last].Op != verbs.OpWrite {
		last--
	}
	wr := l.chain[last]
	wr.Op, wr.Length, wr.Flags = verbs.OpRead, min(wr.Length, 8), 0
	wr.Local, wr.LKey = uint64(addressOf(l.device.scratch)), l.device.target.LKey
	l.appendLocked(wr, posted{})
	l.rail.link.t.flushes.Add(1)
}

// pumpLocked posts slices that wait, unless the rail is to leave its place in the store.
func (r *rail) pumpLocked() {
	switch {
	case !r.leaving:
		r.postLocked()
	case r.idleLocked():
		r.mendLocked()
	}
}

// postLocked posts slices that wait, the most urgent class first.
func (r *rail) postLocked() {
	if r.state != up || r.proving {
		return
	}
	for class := r.queue.Urgent(); class < kit.Classes; class = r.queue.Urgent() {
		o := r.queue.List(class).First()
		l := o.lane
		if l == nil {
			l = r.choose(class, o.slice.Op)
		}
		if l == nil || !l.works {
			break
		}
		here, there, err := r.keysOf(o)
		if err != nil {
			r.endLocked(o, err)
			continue
		}
		o.lane = l
		if before := l.length; l.buildLocked(o, here, there) {
			r.queue.Leave(class, &o.place)
		} else if l.length == before {
			break // this lane is full, and the slice keeps to it
		}
		if l.length >= verbs.Batch-1 || l.room() <= 1 {
			l.postLocked()
		}
	}
	for _, l := range r.lanes {
		l.postLocked()
	}
}

// choose returns the lane for a slice of a class: of those of its group the one with the fewest bytes out. READs take
// the last set of lanes, which is a set of their own where the device has two.
func (r *rail) choose(class int, op transport.Op) (best *lane) {
	group, set := r.link.t.plan.of[class], r.lanes
	if op == transport.Read {
		set = set[len(set)-len(r.link.t.plan.lanes):]
	}
	for _, l := range set[group.first : group.first+group.count] {
		if l.works && l.room() > 1 && l.bytes < laneBytes && (best == nil || l.bytes < best.bytes) {
			best = l
		}
	}
	return best
}

// keysOf looks the keys of a slice up again: while it waited they may have ended.
func (r *rail) keysOf(o *op) (here *memory, there *remoteKey, err *errs.Error) {
	if refusal := o.remote.refuses(o.slice.Epoch); refusal != nil {
		return nil, nil, refusal
	}
	own := o.owner.keys.Load().own(r.device.index)
	far := o.remote.key(r.far)
	if err := r.unreached(o); err != nil {
		return nil, nil, err
	}
	switch {
	case own != nil && far.state == keyHas:
		return own, far, nil
	case own != nil && far.state == keyAway:
		return nil, nil, errs.New(errs.Lost, Name, "the peer's device has come back, and its key is not known yet").
			WithScope(errs.ScopeRail, errs.SideRemote)
	default:
		return nil, nil, errs.New(errs.NotHere, Name, "the memory is not registered with both devices of the rail").
			WithScope(errs.ScopeRail, errs.SideUnknown)
	}
}

// doneLocked takes a completion of the lane.
func (l *lane) doneLocked(wc *verbs.WC) (was transport.Rail, cause *errs.Error) {
	r, turn := l.rail, uint32(wc.ID)
	if !l.works || uint16(wc.ID>>32) != l.life || turn-l.tail >= l.head-l.tail {
		return // of before, or again
	}
	if wc.Status != verbs.Success {
		return l.brokenLocked(wc, &l.ring[turn%uint32(len(l.ring))])
	}
	l.device.flying.Add(-int64(turn + 1 - l.tail))
	for ; l.tail != turn+1; l.tail++ {
		p := &l.ring[l.tail%uint32(len(l.ring))]
		l.bytes -= uint64(p.bytes)
		o := p.op
		if o == nil {
			continue
		}
		if o.out--; o.out > 0 {
			continue
		}
		switch {
		case p.last || o.probed != nil:
			r.finishLocked(o, nil) // also where it was asked back: it is there
		case o.end != nil:
			r.finishLocked(o, o.end)
		}
	}
	return
}

// movesLocked returns when something came back, as withdrawals and their ticks see it: completions read no clock.
func (l *lane) movesLocked(now clock.Time) clock.Time {
	if l.seen != l.tail {
		l.seen, l.moved = l.tail, now
	}
	return l.moved
}

// brokenLocked gives the lane up for a work request that failed.
func (l *lane) brokenLocked(wc *verbs.WC, p *posted) (was transport.Rail, cause *errs.Error) {
	r := l.rail
	cause = r.failed(wc)
	r.blameReach(p.op, wc.Status)
	if o := p.op; o != nil && o.probed != nil {
		r.finishLocked(o, cause)
		p.op = nil
	}
	switch {
	case cause.Scope == errs.ScopeSlice:
	case r.proving: // another address may lead there
		l.failLocked(cause)
		return transport.Rail{}, nil
	default:
		return r.downLocked(cause), cause
	}
	if p.op != nil && p.op.end == nil {
		p.op.end = cause
	}
	neighbour := *cause
	neighbour.Code, neighbour.Collateral = errs.Lost, true
	l.failLocked(&neighbour)
	r.mendLocked()
	return transport.Rail{}, nil
}

// settleLocked ends the slices that were out on a lane when it failed. Our end is reset: READs are over. A WRITE may
// still be under way to the peer, which may even be carrying it out, unless the peer has reset its end too.
func (l *lane) settleLocked(peer bool) {
	for i := range l.rail.slab {
		o := &l.rail.slab[i]
		if o.lane != l || (o.out == 0 && !o.limbo) {
			continue
		}
		if o.end == nil {
			o.end = l.cause
		}
		o.out = 0
		if o.limbo = !peer && o.slice != nil && o.slice.Op == transport.Write; !o.limbo {
			if o.place.Queued() {
				l.rail.queue.Leave(kit.ClassOf(o.slice.Class), &o.place)
			}
			l.rail.finishLocked(o, o.end)
		}
	}
	l.device.flying.Add(-int64(l.head - l.tail))
	l.head, l.tail, l.bytes, l.length, l.writes = 0, 0, 0, 0, false
}

func newPSN() uint32 { return rand.Uint32() & (1<<24 - 1) }
