package engine

import (
	"cmp"
	"context"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// A fence is a number: the owner counts its fences, each task carries the newest that its engine knew of the owner when
// the task began, and the owner refuses slices that are older than the last fence of a region. See transport.Epoch.

// FenceRegion keeps the region and returns when no transfer that a peer began before can touch it. The peers are named
// by an address, an ID or a pattern of identities; no name means all of them. Such a transfer fails, also where it has
// not been sent yet; those that begin afterwards pass. The leases of the region are fenced with it. Of several peers,
// one that does not answer keeps no other from its fence.
//
// A peer that has our description and no lane yet has not heard of the fence. A transfer of it that begins afterwards
// may fail, too, and Connect prevents that.
func (e *Engine) FenceRegion(ctx context.Context, id mem.RegionID, name string) error {
	r, closed := e.openRegion("fence", id)
	if closed != nil {
		return closed
	}
	if name == "" {
		return e.fence(ctx, r, nil, e.nextEpoch())
	}
	peers, err := e.peersMeant(ctx, name)
	if err != nil {
		return err
	}
	epoch := e.nextEpoch()
	return each(peers, func(p transport.Peer) error { return e.fence(ctx, r, &p, epoch) })
}

// fence fences a region and its leases.
func (e *Engine) fence(ctx context.Context, r *region, from *transport.Peer, epoch transport.Epoch) error {
	err := e.revoke(ctx, r, from, epoch)
	leases := each(r.parts.open(), func(l *region) error { return e.fence(ctx, l, from, epoch) })
	return cmp.Or(err, leases)
}

// RemapRegion is called after the caller has mapped other pages, or none, behind a range of a region. A KV cache grows
// so, and a segment that is expanded and shrunk. When it returns, no transfer that peers began before touches the
// range, and those that begin afterwards reach its new pages over every transport. A transfer that needs bytes without
// pages fails, with AddressNotRegistered; the region is mapped for it when pages are there and RemapRegion is called
// again. Transfers of our own must not use the range meanwhile.
//
// After an error, which names the transport, peers may reach the old pages by it: call it again, or close the region.
func (e *Engine) RemapRegion(ctx context.Context, id mem.RegionID, offset, length uint64) error {
	r, closed := e.openRegion("remap", id)
	switch {
	case closed != nil:
		return closed
	case length == 0 || !mem.Contains(r.Size, offset, length):
		return errs.New(errs.InvalidArgument, "remap", "%d bytes at offset %d are not inside a region of %d", length,
			offset, r.Size)
	case r.owner != nil:
		return errs.New(errs.InvalidArgument, "remap", "the region %s is memory of tent, which keeps its pages",
			r.label()).WithHint("register memory of your own, and map it as you like")
	case r.lease != nil:
		return errs.New(errs.InvalidArgument, "remap", "a lease has the pages of its region").
			WithHint("remap the region")
	}
	if err := e.stillOn(r, offset, length); err != nil {
		return err
	}
	leases := r.parts.remap()
	if err := e.remap(ctx, r, e.nextEpoch(), offset, length); err != nil {
		return err
	}
	return e.remapLeases(ctx, leases, r.Addr+uintptr(offset), r.Addr+uintptr(offset+length))
}

// remapLeases does for leases, and for their further ranges, the same as remap for their region.
func (e *Engine) remapLeases(ctx context.Context, list []*region, begin, end uintptr) error {
	return each(list, func(l *region) error {
		if err := e.remapLeases(ctx, l.parts.open(), begin, end); err != nil {
			return err
		}
		from, to := max(begin, l.Addr), min(end, l.Addr+uintptr(l.Size))
		if from >= to {
			return nil
		}
		return e.remap(ctx, l, e.nextEpoch(), uint64(from-l.Addr), uint64(to-from))
	})
}

// remap makes all transports look at the pages of a range again.
func (e *Engine) remap(ctx context.Context, r *region, epoch transport.Epoch, offset, length uint64) error {
	if err := r.awaitSettled(ctx); err != nil {
		return err
	}
	if err := e.revoke(ctx, r, nil, epoch); err != nil {
		return err
	}
	asked := mem.Region{DMABuf: e.export(r)}
	defer closeExport(&asked)
	now := transport.Remapped{Offset: offset, Length: length, DMABuf: asked.DMABuf}
	for i, p := range e.ports {
		key := r.key(i)
		if p.transport == nil || key == 0 {
			continue
		}
		if remapper, is := transport.Find[transport.Remapper](p.transport); is {
			if err := remapper.Remap(ctx, key, now); err != nil && !r.out.Load() {
				return errs.From("remap", err)
			}
		}
	}
	return nil
}

func (e *Engine) nextEpoch() transport.Epoch { return transport.Epoch(e.fences.Add(1)) }

// revoke refuses slices of a region, or of a lease, that are older than the epoch. One that another call has closed
// meanwhile is no error: no peer can reach it, and the transports may have forgotten it.
func (e *Engine) revoke(ctx context.Context, r *region, from *transport.Peer, epoch transport.Epoch) error {
	var first error
	r.keepFence(from, epoch)
	for i, p := range e.ports {
		key := r.key(i)
		if p.transport == nil || key == 0 {
			continue
		}
		err := p.transport.Revoke(ctx, key, from, epoch)
		if err != nil && errs.CodeOf(err) == errs.AddressNotRegistered && e.usable() != nil {
			continue // Close was there before us: the transport has given the region back
		}
		if err != nil && first == nil {
			first = err
		}
	}
	if r.out.Load() {
		return nil
	}
	return first
}

// epochReader is a link of a transport that reads the epochs of peers.
type epochReader struct {
	transport.EpochReader
	link transport.Link
}

// readEpochs notes the links that are asked at each submission.
func (p *peer) readEpochs(links []attachment) {
	var list []epochReader
	for i, port := range p.engine.ports {
		if port.epochs != nil && links[i].link != 0 {
			list = append(list, epochReader{port.epochs, links[i].link})
		}
	}
	p.readers.Store(&list)
}

// hear notes an epoch of the peer. Any goroutine may call it.
func (p *peer) hear(epoch transport.Epoch) {
	for {
		known := p.epoch.Load()
		if known >= uint64(epoch) || p.epoch.CompareAndSwap(known, uint64(epoch)) {
			return
		}
	}
}

// currentEpoch returns the epoch of tasks that begin now. Without a transport that reads it, it costs a load.
func (p *peer) currentEpoch() transport.Epoch {
	if readers := p.readers.Load(); readers != nil {
		for i := range *readers {
			r := &(*readers)[i]
			p.hear(r.Epoch(r.link))
		}
	}
	if p.identity.Self {
		return transport.Epoch(p.engine.fences.Load())
	}
	return transport.Epoch(p.epoch.Load())
}
