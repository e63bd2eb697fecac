package plugin

/*
#cgo nocallback tp_carry
#include "port.h"
*/
import "C"

import (
	"context"
	"errors"
	"net/netip"
	"sync/atomic"
	"unsafe"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// A port has the methods of every optional interface that the C interface offers. Lacks says which of them its plug-in
// has no function for, so that nobody calls the others.
var (
	_ transport.Selective    = (*port)(nil)
	_ transport.Poller       = (*port)(nil)
	_ transport.Prober       = (*port)(nil)
	_ transport.EpochReader  = (*port)(nil)
	_ transport.Explainer    = (*port)(nil)
	_ transport.Notifier     = (*port)(nil)
	_ transport.Witness      = (*port)(nil)
	_ transport.Inliner      = (*port)(nil)
	_ transport.Filer        = (*port)(nil)
	_ transport.Allocator    = (*port)(nil)
	_ transport.Remapper     = (*port)(nil)
	_ transport.Matcher      = (*port)(nil)
	_ transport.Disconnecter = (*port)(nil)
	_ transport.Reacher      = (*port)(nil)
	_ transport.Flusher      = (*port)(nil)
)

// Lacks implements transport.Selective.
func (p *port) Lacks(optional any) bool {
	switch optional.(type) {
	case *transport.Notifier:
		return p.api.notify == nil
	case *transport.Witness:
		return p.api.heard == nil
	case *transport.Inliner:
		return p.api.carry == nil
	case *transport.Filer:
		return !p.info.Files
	case *transport.Allocator:
		return p.api.allocate == nil || p.api.release == nil
	case *transport.Remapper:
		return p.api.remap == nil
	case *transport.Matcher:
		return p.api.match == nil
	case *transport.Disconnecter:
		return p.api.disconnect == nil
	case *transport.Reacher:
		return p.api.reach == nil
	case *transport.Flusher:
		return p.api.flushes == nil
	}
	return false
}

// Heard implements transport.Witness.
func (p *port) Heard(rail transport.Rail) (signs transport.Signs) {
	if p.links.Lookup(rail.Link) == nil || !p.enter() {
		return signs
	}
	defer p.leave()
	var c C.tent_signs
	c.size = C.uint32_t(unsafe.Sizeof(c))
	if C.tp_heard(p.api, p.t, railTo(rail), &c) == 0 {
		return signs
	}
	now := clock.Now()
	at := func(ns C.uint64_t) clock.Time { return clock.Time(min(uint64(ns), uint64(now))) }
	return transport.Signs{Heard: at(c.heard), Moved: at(c.moved), Spoke: at(c.spoke), Held: c.held != 0,
		Unacked: c.unacked != 0}
}

// trays are slices in C's memory for calls of Inline, TP_BATCH each. A call that finds none free goes the usual way.
type trays struct {
	slices []C.tent_slice
	list   [C.TP_TRAYS]tray
}

type tray struct {
	taken atomic.Bool
	lent  flight // pins the offsets of pieces of one slice at a time
}

func (t *trays) init(c *C.tp_port) {
	t.slices = unsafe.Slice(C.tp_slab(c), slots+C.TP_TRAYS*C.TP_BATCH)[slots:]
}

// Inline implements transport.Inliner by one call of C for TP_BATCH slices.
func (p *port) Inline(list []*transport.Slice) (carried bool) {
	if len(list) == 0 || p.links.Lookup(list[0].Rail.Link) == nil || p.condemned.Load() != nil || !p.enter() {
		return false
	}
	for i := range p.trays.list {
		t := &p.trays.list[i]
		if !t.taken.CompareAndSwap(false, true) {
			continue
		}
		carried = p.carry(i, t, list)
		t.taken.Store(false)
		break
	}
	p.leave()
	return carried
}

// carry lets the plug-in carry out slices by a tray. The caller has the tray, and holds the gate.
func (p *port) carry(number int, t *tray, list []*transport.Slice) bool {
	slices := p.trays.slices[number*C.TP_BATCH:][:C.TP_BATCH]
	for len(list) > 0 {
		n := min(len(list), len(slices))
		for i, s := range list[:n] {
			t.lent.fill(&slices[i], s, 0)
		}
		done := C.tp_carry(p.c, C.uint32_t(number), C.size_t(n)) != 0
		if t.lent.pinned {
			t.lent.pins.Unpin()
			t.lent.pinned = false
		}
		if !done {
			return false
		}
		list = list[n:]
	}
	return true
}

// Allocate implements transport.Allocator.
func (p *port) Allocate(a transport.Allocation) (mem.Region, error) {
	op := p.op("allocate")
	if err := p.usable("allocate"); err != nil {
		return mem.Region{}, err
	}
	kind, _, err := a.Location.Parse()
	if err != nil {
		return mem.Region{}, errs.New(errs.InvalidArgument, op, "no memory at %q", a.Location)
	}
	if !p.enter() {
		return mem.Region{}, kit.Closed(op)
	}
	defer p.leave()
	var texts arena
	defer texts.free()
	var e C.tent_error
	m := &C.tent_memory{size: C.uint32_t(unsafe.Sizeof(C.tent_memory{})), fd: -1, bytes: C.uint64_t(a.Size),
		huge_page: C.uint64_t(a.HugePage), location: texts.text(string(a.Location))}
	if r := C.tp_allocate(p.api, p.t, m, &e); r != 0 {
		return mem.Region{}, p.failed("allocate", r, &e)
	}
	got := mem.Region{Addr: uintptr(m.address), Size: uint64(m.bytes), Kind: kind, Location: a.Location,
		Fd: int(m.fd), FdOffset: uint64(m.fd_offset)}
	if !got.IsRange() || got.Size < a.Size {
		return mem.Region{}, p.senseless("allocate gave %d bytes at %#x, and %d were asked for", got.Size, got.Addr,
			a.Size)
	}
	return got, nil
}

// Free implements transport.Allocator.
func (p *port) Free(r mem.Region) error {
	if !p.enter() {
		return kit.Closed(p.op("release"))
	}
	defer p.leave()
	var e C.tent_error
	if r := C.tp_release(p.api, p.t, C.uint64_t(r.Addr), C.uint64_t(r.Size), &e); r != 0 {
		return p.failed("release", r, &e)
	}
	return nil
}

// Remap implements transport.Remapper. The interface of plug-ins passes no dma-buf with it.
func (p *port) Remap(ctx context.Context, key transport.LocalKey, now transport.Remapped) error {
	if now.DMABuf != nil {
		return errs.New(errs.NotHere, p.op("remap"), "a plug-in hears of no dma-buf but that of the registration").
			WithHint("close the region, and register its memory again")
	}
	if !p.enter() {
		return kit.Closed(p.op("remap"))
	}
	defer p.leave()
	var e C.tent_error
	if r := C.tp_remap(p.api, p.t, C.uint64_t(key), C.uint64_t(now.Offset), C.uint64_t(now.Length),
		limitOf(ctx), &e); r != 0 {
		return p.failed("remap", r, &e)
	}
	return nil
}

// Match implements transport.Matcher.
func (p *port) Match(link transport.Link, local transport.LocalKey, remote transport.RemoteKey) (transport.Match,
	error) {
	if !p.enter() {
		return transport.Match{}, kit.Closed(p.op("match"))
	}
	defer p.leave()
	var c C.tent_match
	var e C.tent_error
	c.size = C.uint32_t(unsafe.Sizeof(c))
	if r := C.tp_match(p.api, p.t, C.uint64_t(link), C.uint64_t(local), C.uint64_t(remote), &c, &e); r != 0 {
		return transport.Match{}, p.failed("match", r, &e)
	}
	if c.near_count > C.uint32_t(len(c.near)) {
		return transport.Match{}, p.senseless("match ranks %d rails, and %d are the limit", uint32(c.near_count),
			len(c.near))
	}
	return transport.Match{Rails: uint64(c.rails), Near: ranks(&c.near, c.near_count),
		There: ranks(&c.there, c.near_count), Why: textOf(&c.why[0], len(c.why))}, nil
}

// ranks copies ranks of rails, each in its range; nil for none.
func ranks(from *[64]C.uint8_t, n C.uint32_t) (list []uint8) {
	for _, rank := range from[:n] {
		list = append(list, min(uint8(rank), transport.Farthest))
	}
	return list
}

// Disconnect implements transport.Disconnecter.
func (p *port) Disconnect(peer transport.ID) {
	if !p.enter() {
		return
	}
	defer p.leave()
	var texts arena
	defer texts.free()
	C.tp_disconnect(p.api, p.t, texts.peer(transport.Peer{ID: peer}))
}

// Reach implements transport.Reacher.
func (p *port) Reach(peer transport.Peer, addresses []netip.AddrPort) error {
	if !p.enter() {
		return kit.Closed(p.op("reach"))
	}
	defer p.leave()
	var texts arena
	defer texts.free()
	words := make([]string, len(addresses))
	for i, a := range addresses {
		words[i] = a.String()
	}
	var why [textMax]C.char
	if C.tp_reach(p.api, p.t, texts.peer(peer), texts.texts(words), C.size_t(len(words)), &why[0], textMax) == 0 {
		return nil
	}
	if reason := textOf(&why[0], textMax); reason != "" {
		return errors.New(reason)
	}
	return errors.New("the plug-in cannot reach it, and gives no reason")
}

// Flushes implements transport.Flusher.
func (p *port) Flushes() uint64 {
	if !p.enter() {
		return 0
	}
	defer p.leave()
	return uint64(C.tp_flushes(p.api, p.t))
}
