package rdma

import (
	"math/rand/v2"
	"sync"

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
	most   int        // work requests that are out at once
	ring   []posted   // a power of two of them, most at least
	head   uint32     // turn of the next work request
	tail   uint32     // turn of the first that has not come back
	bytes  uint64     // out
	moved  clock.Time // when something was last seen to have come back, see movesLocked
	seen   uint32     // tail at that time
	length int        // of the pair's chain
	pushed []int      // in the chain: the last WRITE to each remote registration that is to be flushed
	marks             // of its packets
}

// posted is a work request that is out.
type posted struct {
	bytes uint32
	op    uint16 // its index in the slab; of a flush, that of the WRITE that it reads
	flush bool
}

// laneBytes bounds the bytes that are out on a lane: a withdrawal waits for as much.
const laneBytes = 4 << 20

// room is that for work requests beside the chain and its flushes.
func (l *lane) room() int { return l.most - int(l.head-l.tail) - l.length - len(l.pushed) }

// at is the place of a work request by its turn.
func (l *lane) at(turn uint32) *posted { return &l.ring[turn&uint32(len(l.ring)-1)] }

// takes reports whether a slice may have one more work request in the chain, which may need another flush.
func (l *lane) takes() bool {
	return l.room() > 1 && l.length+len(l.pushed) < verbs.Batch-1 && l.bytes < laneBytes
}

// failLocked gives the lane up. Slices that are out end when the rail's goroutine has proved that they are quiet.
func (l *lane) failLocked(cause *errs.Error) {
	if !l.works {
		return
	}
	l.works, l.reset, l.cause = false, false, cause
	l.life++
}

// buildLocked appends the work requests of an op to the chain, as far as there is room. It reports whether no more are
// to follow: the op is whole, or its memory is gone. The last one is signalled, unless a flush follows: a completion
// ends all slices before it, and nothing but the flush may end a WRITE that it pushes.
func (l *lane) buildLocked(o *op, k *keyPair) bool {
	s, t := o.slice, l.device.t
	code, parts := verbs.OpRead, uint64(1)
	pushed := s.Op == transport.Write && t.pushes(o.remote)
	if s.Op == transport.Write {
		code = verbs.OpWrite
	}
	if s.Pieces != nil {
		parts = s.Length / s.Pieces.Bytes
	}
	for l.takes() {
		local, far, left := s.Local, s.Remote, s.Length
		if p := s.Pieces; p != nil {
			i := uint64(s.First) + o.part
			local, far, left = local+uintptr(p.LocalAt[i]), far+p.RemoteAt[i], p.Bytes
		}
		own, room := k.here.key(uint64(local-o.owner.Addr) + o.at)
		rkey, roomThere := o.remote.part(k.there, far+o.at)
		n := min(left-o.at, l.device.block, room, roomThere)
		from, flags := local+uintptr(o.at), uint32(0)
		if l.inlines(o, code, n) {
			at, fault := l.rail.insideLocked(from, n)
			if fault != nil {
				l.rail.endLocked(o, errs.MemoryGone(Name, errs.SideLocal))
				return true
			}
			if at != 0 {
				from, flags = at, verbs.Inlined
			}
		}
		wr := l.appendLocked(posted{bytes: uint32(n), op: o.index})
		wr.Op, wr.Remote, wr.RKey, wr.Flags = code, o.remote.base+far+o.at, rkey, flags
		wr.Reach(uint64(from), uint32(n), own.LKey)
		o.out++
		if pushed {
			l.pushLocked()
		}
		if o.at += n; o.at < left {
			continue
		}
		o.at = 0
		if o.part++; o.part == parts {
			o.whole = true
			if len(l.pushed) == 0 {
				wr.Flags |= verbs.Signaled
			}
			return true
		}
	}
	return false
}

// inlines reports whether a WRITE is to have its bytes inside its request. The processor copies them, so they are
// memory of the host.
func (l *lane) inlines(o *op, code uint32, n uint64) bool {
	return code == verbs.OpWrite && n <= uint64(l.pair.Inline) && o.owner.Kind == mem.Host
}

// inside has the bytes inside of the requests of a rail that are in its chains. The library copies them in Post. It
// would do so from the user's memory, too; but that may be gone, and a fault in C ends the process, where here it is an
// answer.
type inside struct {
	used  int
	bytes [slicesMax * 64]byte
}

var insides = sync.Pool{New: func() any { return new(inside) }}

// insideLocked copies bytes for a request, and returns where they are now. Where there is no room, that is 0.
func (r *rail) insideLocked(from uintptr, n uint64) (at uintptr, fault *mem.Fault) {
	if r.inside == nil {
		r.inside = insides.Get().(*inside)
	}
	to := r.inside.bytes[r.inside.used:]
	if n == 0 || n > uint64(len(to)) {
		return 0, nil
	}
	if fault = mem.Copy(to[:n], mem.Bytes(from, int(n))); fault != nil {
		return 0, fault
	}
	r.inside.used += int(n)
	return mem.AddressOf(to), nil
}

// appendLocked lengthens the chain by a work request, for the caller to fill.
func (l *lane) appendLocked(p posted) *verbs.WR {
	turn := l.head + uint32(l.length)
	wr := &l.pair.Chain[l.length]
	wr.ID = uint64(l.number)<<48 | uint64(l.life)<<32 | uint64(turn)
	*l.at(turn) = p
	l.length++
	l.bytes += uint64(p.bytes)
	return wr
}

// pushLocked notes the latest work request of the chain, a WRITE, for the flush of its remote registration.
func (l *lane) pushLocked() {
	last := l.length - 1
	for i, at := range l.pushed {
		if l.pair.Chain[at].RKey == l.pair.Chain[last].RKey {
			l.pushed[i] = last
			return
		}
	}
	l.pushed = append(l.pushed, last)
}

// postLocked posts the chain in one crossing, and behind its WRITEs the READs that push them. The last work request
// is signalled.
func (l *lane) postLocked() {
	if l.length == 0 {
		return
	}
	for _, at := range l.pushed {
		l.flushLocked(&l.pair.Chain[at])
	}
	n := l.length
	l.pair.Chain[n-1].Flags |= verbs.Signaled
	l.length, l.pushed = 0, l.pushed[:0]
	l.head += uint32(n)
	l.rail.posted = true
	l.device.flying.Add(int64(n))
	if _, err := l.pair.Post(n); err != nil {
		cause := errs.New(errs.Lost, Name, "%v", err).WithScope(errs.ScopeRail, errs.SideLocal)
		l.failLocked(cause)
		l.rail.mendLocked()
	}
}

// flushLocked appends a READ of the bytes that a WRITE of the chain wrote, eight at most. On PCI a READ pushes the
// WRITEs of its own way alone: those to another GPU, or to memory of the host, go another one.
func (l *lane) flushLocked(write *verbs.WR) {
	wr := l.appendLocked(posted{op: l.at(uint32(write.ID)).op, flush: true})
	id := wr.ID
	wr.Like(write)
	wr.ID, wr.Op, wr.Flags = id, verbs.OpRead, 0
	wr.Reach(uint64(mem.AddressOf(l.device.scratch)), min(write.Length, 8), l.device.target.LKey)
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
			l = r.choose(class, o.slice)
		}
		if l == nil || !l.works {
			break
		}
		keys, err := r.keysOf(o)
		if err != nil {
			r.endLocked(o, err)
			continue
		}
		o.lane = l
		if before := l.length; l.buildLocked(o, &keys) {
			if o.place.Queued() {
				r.queue.Leave(class, &o.place)
			}
		} else if l.length == before {
			break // this lane is full, and the slice keeps to it
		}
		if !l.takes() {
			l.postLocked()
		}
	}
	r.ringLocked()
}

// ringLocked posts the chains of all lanes.
func (r *rail) ringLocked() {
	for _, l := range r.lanes {
		l.postLocked()
	}
	if r.inside != nil {
		r.inside.used = 0
		insides.Put(r.inside)
		r.inside = nil
	}
}

// choose returns the lane for a slice of a class: of those of its group the one with the fewest bytes out. READs take
// the last set of lanes, which is a set of their own where the device has two. Small slices of a posting keep to one.
func (r *rail) choose(class int, s *transport.Slice) (best *lane) {
	run := &r.run
	if l := run.lane; l != nil && l.length > 0 && run.class == class && run.op == s.Op &&
		l.bytes-run.bytes+s.Length <= gathered { // a chain that takes no more was posted
		return l
	}
	group, set := r.link.t.plan.of[class], r.lanes
	if s.Op == transport.Read {
		set = set[len(set)-len(r.link.t.plan.lanes):]
	}
	for _, l := range set[group.first : group.first+group.count] {
		if l.works && l.room() > 1 && l.bytes < laneBytes && (best == nil || l.bytes < best.bytes) {
			best = l
		}
	}
	if best != nil {
		run.lane, run.class, run.op, run.bytes = best, class, s.Op, best.bytes
	}
	return best
}

// gathered are the bytes that small slices of a posting bring to one lane, by one doorbell and with one flush.
const gathered = 64 << 10

// keysOf looks the keys of a slice up, also once more when it has waited: they may have ended.
func (r *rail) keysOf(o *op) (keyPair, *errs.Error) {
	if refusal := o.remote.refuses(o.slice.Epoch); refusal != nil {
		return keyPair{}, refusal
	}
	if err := r.unreached(o); err != nil {
		return keyPair{}, err
	}
	keys := keyPair{o.owner.keys.Load().own(r.device.index), o.remote.key(r.far)}
	if keys.here == nil || keys.there.state != keyHas {
		return keyPair{}, keys.lack()
	}
	return keys, nil
}

// lack is the error of a slice that a key is missing for.
func (k *keyPair) lack() *errs.Error {
	if k.here != nil && k.there.state == keyAway {
		return errs.New(errs.Lost, Name, "the peer's device has come back, and its key is not known yet").
			WithScope(errs.ScopeRail, errs.SideRemote)
	}
	return errs.New(errs.NotHere, Name, "the memory is not registered with both devices of the rail").
		WithScope(errs.ScopeRail, errs.SideUnknown)
}

// doneLocked takes a completion of the lane.
func (l *lane) doneLocked(wc *verbs.WC) (was transport.Rail, cause *errs.Error) {
	r, turn := l.rail, uint32(wc.ID)
	if !l.works || uint16(wc.ID>>32) != l.life || turn-l.tail >= l.head-l.tail {
		return // of before, or again
	}
	if wc.Status != verbs.Success {
		return l.brokenLocked(wc, l.at(turn))
	}
	l.device.flying.Add(-int64(turn + 1 - l.tail))
	for ; l.tail != turn+1; l.tail++ {
		p := l.at(l.tail)
		l.bytes -= uint64(p.bytes)
		if p.flush {
			continue
		}
		o := &r.slab[p.op]
		if o.out--; o.out > 0 {
			continue
		}
		switch {
		case o.whole:
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
	o := &r.slab[p.op] // that of a flush is out: nothing but the flush ends its WRITE
	r.blameReach(o, p.flush, wc.Status)
	if o.probed != nil {
		r.finishLocked(o, cause)
		o = nil
	}
	switch {
	case cause.Scope == errs.ScopeSlice:
	case r.proving: // another address may lead there
		l.failLocked(cause)
		return transport.Rail{}, nil
	default:
		return r.downLocked(cause), cause
	}
	if o != nil && o.end == nil {
		o.end = cause
	}
	neighbour := *cause
	neighbour.Code, neighbour.Collateral = errs.Lost, true
	l.failLocked(&neighbour)
	r.mendLocked()
	return transport.Rail{}, nil
}

// holdsLocked reports whether a slice or a probe was out on the lane when it failed.
func (l *lane) holdsLocked() bool {
	for i := range l.rail.slab {
		if o := &l.rail.slab[i]; o.lane == l && (o.out > 0 || o.limbo) {
			return true
		}
	}
	return false
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
	l.head, l.tail, l.bytes, l.length, l.pushed = 0, 0, 0, 0, l.pushed[:0]
}

func newPSN() uint32 { return rand.Uint32() & (1<<24 - 1) }
