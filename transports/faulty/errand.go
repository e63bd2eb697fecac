package faulty

import (
	"context"
	"math/bits"
	"runtime/debug"
	"slices"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// errand is a slice of the decorator's own, on behalf of one of the core's. It is a part of it, a second copy, or the
// byte that is to be wrong. The core's slice completes when the errand has.
type errand struct {
	own  transport.Slice
	of   *transport.Slice
	kind verb
	rule *rule
	end  *transport.Completion // of the core's slice, kept until the errand has ended; nil: not there yet
	slot int                   // of the scratch; corrupt only
}

// ownId makes the id of an errand's slice; the core's ids never get there.
const ownId = 1 << 63

// begin enters an errand. Called with the mutex.
func (t *Transport) begin(r *rule, s *transport.Slice) *errand {
	e := &errand{own: *s, of: s, kind: r.verb, rule: r}
	e.own.Id |= ownId
	e.own.Scratch = [4]uint64{}
	t.errands[&e.own], t.errandOf[s] = e, e
	t.engaged.Add(1)
	return e
}

// finish removes an errand. Called with the mutex.
func (t *Transport) finish(e *errand) {
	delete(t.errands, &e.own)
	delete(t.errandOf, e.of)
	t.engaged.Add(-1)
	if e.kind == corrupt {
		t.scratch.used &^= 1 << e.slot
	}
}

// settle ends an errand and appends the completion that the core gets: none, if its slice has not ended yet. Called
// with the mutex.
func (t *Transport) settle(e *errand, err *errs.Error, pass []transport.Completion) []transport.Completion {
	t.finish(e)
	switch {
	case e.end != nil:
		return append(pass, *e.end)
	case e.kind == duplicate:
		return pass
	case err != nil:
		return append(pass, transport.Completion{Slice: e.of, Id: e.of.Id, Err: err})
	case e.rule.silent:
		return append(pass, transport.Completion{Slice: e.of, Id: e.of.Id, Bytes: e.of.Length})
	}
	return append(pass, transport.Completion{Slice: e.of, Id: e.of.Id,
		Err: e.rule.error(t.peers[e.of.Rail.Link], t.name)})
}

// over ends an errand that the inner transport does not have. A copy or a wrong byte that was not sent is no strike.
func (t *Transport) over(e *errand) {
	t.mu.Lock()
	if e.kind != truncate {
		t.ledger.unstrike(e.rule)
	}
	var pass []transport.Completion
	if t.errands[&e.own] == e {
		pass = t.settle(e, nil, nil)
	}
	t.mu.Unlock()
	t.complete(pass)
}

// sendPart sends the first half of a slice in its place. It returns false when the slice is not accepted.
func (t *Transport) sendPart(r *rule, s *transport.Slice) bool {
	t.mu.Lock()
	e := t.begin(r, s)
	t.halve(&e.own)
	t.mu.Unlock()
	if e.own.Length == 0 {
		t.over(e)
		return true
	}
	if t.Transport.Submit([]*transport.Slice{&e.own}) == 1 {
		return true
	}
	t.refused(e)
	return false
}

// halve makes a slice half as long, in whole pieces or whole units of the transport's alignment.
func (t *Transport) halve(s *transport.Slice) {
	unit := t.alignment
	if s.Pieces != nil && s.Length >= 2*s.Pieces.Bytes {
		unit = s.Pieces.Bytes
	} else if s.Pieces != nil {
		s.Local, s.Remote = s.Local+uintptr(s.Pieces.LocalAt[s.First]), s.Remote+s.Pieces.RemoteAt[s.First]
		s.Pieces, s.First = nil, 0
	}
	s.Length = s.Length / 2 / unit * unit
}

// sendTwice sends a slice and a copy of it. The copy is left out where there is no room for it. It returns false when
// the slice is not accepted.
func (t *Transport) sendTwice(r *rule, s *transport.Slice) bool {
	t.mu.Lock()
	e := t.begin(r, s)
	t.mu.Unlock()
	if t.Transport.Submit([]*transport.Slice{s}) == 0 {
		t.refused(e)
		return false
	}
	if t.Transport.Submit([]*transport.Slice{&e.own}) == 0 {
		t.over(e)
	}
	return true
}

// refused undoes an errand; its slice will be submitted again.
func (t *Transport) refused(e *errand) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.finish(e)
	t.takeBack(e.of, nil)
	t.ledger.unstrike(e.rule)
}

// spoil changes a byte that a slice has delivered. It returns the errand that does it, to be submitted, or nil when
// c is ready as it is now. A byte that cannot be changed is no strike. Called with the mutex.
func (t *Transport) spoil(r *rule, c *transport.Completion) *errand {
	s := c.Slice
	local, remote := t.middle(s)
	switch {
	case s.Checked:
		*c = transport.Completion{Slice: s, Id: s.Id, Err: errs.New(errs.Corrupted, "faulty", "injected by %q", r.text).
			WithScope(errs.ScopeSlice, errs.SidePath).WithPeer(t.peers[s.Rail.Link], t.name, "")}
		return nil
	case s.Op == transport.Read:
		if touch(func() { mem.Bytes(local, 1)[0] ^= 0xff }) == nil {
			return nil
		}
	case t.scratch.used != ^uint64(0):
		slot, unit := bits.TrailingZeros64(^t.scratch.used), t.scratch.unit
		wrong := t.scratch.memory[uint64(slot)*unit:][:unit]
		if touch(func() { copy(wrong, mem.Bytes(local, int(unit))) }) != nil {
			break
		}
		e := t.begin(r, s)
		e.slot = slot
		t.scratch.used |= 1 << e.slot
		wrong[0] ^= 0xff
		e.own.LocalKey, e.own.Local = t.scratch.key, t.scratch.address+uintptr(uint64(e.slot)*unit)
		e.own.Remote, e.own.Length, e.own.Pieces, e.own.First = remote, unit, nil, 0
		end := *c
		e.end = &end
		return e
	}
	t.ledger.unstrike(r)
	return nil
}

// touch runs f on memory of the user, which may be gone.
func touch(f func()) (fault *mem.Fault) {
	defer mem.Guard(&fault, debug.SetPanicOnFault(true))
	f()
	return nil
}

// middle is where the wrong byte goes: address here, offset in the remote region.
func (t *Transport) middle(s *transport.Slice) (uintptr, uint64) {
	unit := t.alignment
	at := s.Length / 2 / unit * unit
	if s.Pieces == nil {
		return s.Local + uintptr(at), s.Remote + at
	}
	piece, within := s.First+uint32(at/s.Pieces.Bytes), at%s.Pieces.Bytes
	return s.Local + uintptr(s.Pieces.LocalAt[piece]+within), s.Remote + s.Pieces.RemoteAt[piece] + within
}

// scratch is memory of the decorator's own, registered once a rule says corrupt. Wrong bytes are sent from there, for a
// source must not be changed. Slots are given out under the transport's mutex.
type scratch struct {
	key     transport.LocalKey // 0: there is none
	memory  []byte
	address uintptr
	unit    uint64 // bytes of a slot
	used    uint64 // slots, as bits
}

const (
	scratchSlots  = 64
	scratchRegion = mem.RegionID(1<<63 | 0xfa) // no engine's: those have small generations
	pageBytes     = 4096
)

// prepare registers the scratch if a rule will need it. Plan serializes its calls.
func (t *Transport) prepare(ctx context.Context, rules []*rule) error {
	corrupts := slices.ContainsFunc(rules, func(r *rule) bool { return r.verb == corrupt })
	if !corrupts || t.scratch.key != 0 {
		return nil
	}
	unit := t.alignment
	memory := make([]byte, scratchSlots*unit+pageBytes)
	skip := -mem.AddressOf(memory) % pageBytes
	memory = memory[skip:][:scratchSlots*unit]
	address := mem.AddressOf(memory)
	key, _, err := t.Transport.Register(ctx, mem.Region{ID: scratchRegion, Addr: address, Size: uint64(len(memory)),
		Fd: -1})
	if err != nil {
		return err
	}
	t.mu.Lock()
	t.scratch = scratch{key: key, memory: memory, address: address, unit: unit}
	t.mu.Unlock()
	return nil
}

// dropScratch gives the scratch back.
func (t *Transport) dropScratch(ctx context.Context) error {
	t.mu.Lock()
	key := t.scratch.key
	t.scratch.key = 0
	t.mu.Unlock()
	if key == 0 {
		return nil
	}
	if err := t.Transport.Revoke(ctx, key, nil, transport.ForGood); err != nil {
		return err
	}
	return t.Transport.Deregister(ctx, key)
}
