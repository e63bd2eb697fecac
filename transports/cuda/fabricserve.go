package cuda

import (
	"context"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/cuda/driver"
	"github.com/tent-engine/tent/transports/host/access"
	"github.com/tent-engine/tent/transports/host/hazard"
	"github.com/tent-engine/tent/transports/kit"
)

// Serve answers a peer: one that greets us and asks for regions, or the owner of regions that we have mapped. Owners
// are answered while we close, too, since they wait for us.
func (t *mnnvl) Serve(ctx context.Context, from transport.Peer, message []byte) ([]byte, error) {
	r := kit.NewReader(message)
	v := r.U8()
	kind, token := r.U8(), access.Token(r.Bytes(len(access.Token{})))
	if r.Short() || v != version {
		return nil, t.rejects(transport.RefusedVersion, from, errs.New(errs.Protocol, "mnnvl.serve",
			"peer speaks version %d of the mnnvl transport, this is %d", v, version))
	}
	if kind == callNews || kind == callGoodbye || kind == callAlive {
		if way, is := t.ways.Load(token); is && way.(*distant).Peer.ID == from.ID {
			return way.(*distant).serve(ctx, kind, r)
		}
	}
	if g := t.guests.named(from, token); g != nil && kind != callGreet {
		return t.serveGuest(from, g, kind, r)
	}
	switch {
	case kind == callGreet && r.Whole():
		return t.welcome(from, token)
	case kind > callGreet && kind <= callGoodbye:
		return nil, errs.New(errs.Stale, "mnnvl.serve", "there is no such link (any more)").
			WithScope(errs.ScopeLink, errs.SidePath)
	}
	return nil, t.malformed(from)
}

func (t *mnnvl) malformed(from transport.Peer) *errs.Error {
	return t.rejects(transport.RefusedMalformed, from, errs.New(errs.Protocol, "mnnvl.serve", "message is malformed"))
}

// rejects counts a message that is refused.
func (t *mnnvl) rejects(why transport.Refusal, from transport.Peer, e *errs.Error) *errs.Error {
	t.host.Refused(why, from.Address, e)
	return e.WithScope(errs.ScopeLink, errs.SidePath).WithPeer(from.Address, FabricName, "")
}

// welcome answers a greeting. A peer that greets again, after a silence, hears the news that it has missed.
func (t *mnnvl) welcome(from transport.Peer, secret access.Token) ([]byte, error) {
	if t.life.Closed() {
		return nil, kit.Closed("mnnvl.serve")
	}
	if t.guests.crowded() {
		t.tend()
	}
	g, e := t.guests.greet(from, secret)
	if e != nil {
		t.host.Refused(transport.RefusedLimit, from.Address, e)
		return nil, e
	}
	return appendList(append([]byte{version}, g.token[:]...), t.newsOf(g)), nil
}

// serveGuest answers a peer that was welcomed.
func (t *mnnvl) serveGuest(from transport.Peer, g *guest, kind byte, r *kit.Reader) ([]byte, error) {
	switch kind {
	case callAlive:
		if r.Whole() {
			return appendList([]byte{version}, t.newsOf(g)), nil
		}
	case callLeave:
		if r.Whole() {
			t.guests.end(g)
			return []byte{version}, nil
		}
	case callLearn:
		serial, name := r.U64(), readName(r)
		if r.Whole() {
			return t.offer(from, g, name, serial)
		}
	case callRelease:
		for left := min(r.U32(), newsMost); left > 0 && !r.Short(); left-- {
			if serial, name := r.U64(), readName(r); !r.Short() {
				t.guests.release(g, name, serial)
			}
		}
		if r.Whole() {
			return []byte{version}, nil
		}
	}
	return nil, t.malformed(g.peer)
}

// offer gives a guest the handles of a region, if that is for the names by which it asks. The hold comes first: a fence
// that misses the guest in its list has shut the door before, and the look at the door finds that.
func (t *mnnvl) offer(from transport.Peer, g *guest, name hazard.Region, serial uint64) ([]byte, error) {
	if t.guests.wasRenamed(name) {
		return nil, t.replaced()
	}
	r := t.regionOf(name)
	switch {
	case r == nil || r.ordinal < 0:
		return nil, t.refuses(g, errs.AddressNotRegistered)
	case r.Permission == mem.LocalReadWrite || r.Peers != nil && !r.Peers.Admit(from.Names()):
		return nil, t.refuses(g, errs.PermissionDenied)
	}
	undo, is := t.guests.hold(g, name, serial)
	if !is {
		return nil, errs.New(errs.Stale, "mnnvl.share", "the link has ended")
	}
	o := &offer{addr: uint64(r.Addr), size: r.Size, allows: r.Permission, fixed: r.ReadOnly}
	var closed bool
	if o.floor, closed = r.door.Last(g.peer.ID); closed {
		undo()
		return nil, t.refuses(g, errs.AddressNotRegistered)
	}
	var err error
	if o.blocks, err = r.fabricBlocks(); err != nil {
		undo()
		return nil, err
	}
	return o.append([]byte{version}), nil
}

// refuses counts a question for a region that is not the guest's to have.
func (t *mnnvl) refuses(g *guest, code errs.Code) *errs.Error {
	t.host.Refused(transport.RefusedAccess, g.peer.Address, kit.NoRegion("mnnvl.share", 0))
	return errs.New(code, "mnnvl.share", "there is no such region of a device for this peer").
		WithScope(errs.ScopeSlice, errs.SideRemote)
}

// fabricBlocks returns the blocks behind a region, with handles for other hosts.
func (r *region) fabricBlocks() ([]driver.Block, error) {
	blocks, err := driver.ShareByFabric(r.Addr, r.Size, r.ordinal)
	if err == nil {
		err = tooMany("cuda.share", blocks)
	}
	return blocks, err
}
