package engine

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/security"
	"github.com/tent-engine/tent/gocore/transport"
)

// An order has the rights of the peer that its connection proves, and no others.
func TestAnOrderHasTheRightsOfItsPeer(t *testing.T) {
	names, failure := security.ParseNames("peers", []string{"spiffe://prod/decode"})
	require.NoError(t, failure)
	friends := &rule{Names: names}
	build := func(change func(*region)) *region {
		r := &region{Region: mem.Region{Addr: 1 << 30, Size: 4096, Permission: mem.GlobalReadWrite, Kind: mem.Cuda}}
		r.life.advance(eventPublished)
		change(r)
		return r
	}
	write := transport.Order{Op: transport.Write, Places: []uint64{0, 2048}, Bytes: 2048}
	for name, c := range map[string]struct {
		region func(*region)
		order  func(*transport.Order)
		code   errs.Code
	}{
		"allowed": {code: errs.OK},
		"a friend": {func(r *region) { r.rule = friends },
			func(o *transport.Order) { o.From.Identity = "spiffe://prod/decode" }, errs.OK},
		"another identity": {func(r *region) { r.rule = friends },
			func(o *transport.Order) { o.From.Identity = "spiffe://prod/other" }, errs.PermissionDenied},
		"a name instead of an identity": {func(r *region) { r.rule = friends },
			func(o *transport.Order) { o.From.Name = "spiffe://prod/decode" }, errs.PermissionDenied},
		"a foreign region": {func(r *region) { r.Permission = mem.LocalReadWrite }, nil, errs.PermissionDenied},
		"for reading only": {func(r *region) { r.Permission = mem.GlobalReadOnly }, nil, errs.PermissionDenied},
		"a fixed buffer":   {func(r *region) { r.ReadOnly = true }, nil, errs.PermissionDenied},
		"READ of a fixed buffer": {func(r *region) { r.ReadOnly = true },
			func(o *transport.Order) { o.Op = transport.Read }, errs.OK},
		"lent memory": {func(r *region) { r.lent = true }, nil, errs.AddressNotRegistered},
		"closed":      {func(r *region) { r.life.advance(eventClosed) }, nil, errs.AddressNotRegistered},
		"beyond":      {nil, func(o *transport.Order) { o.Places = []uint64{2049} }, errs.InvalidArgument},
		"wrapped":     {nil, func(o *transport.Order) { o.Places = []uint64{^uint64(0) - 10} }, errs.InvalidArgument},
	} {
		r, o := build(func(*region) {}), write
		if c.region != nil {
			r = build(c.region)
		}
		if c.order != nil {
			c.order(&o)
		}
		err := r.grants(&o)
		if c.code == errs.OK {
			require.Nil(t, err, name)
			continue
		}
		require.NotNil(t, err, name)
		require.Equal(t, c.code, err.Code, "%s: %v", name, err)
	}
	require.Equal(t, errs.AddressNotRegistered, (*region)(nil).grants(&write).Code)
}

// A peer that does not answer keeps the memory that is lent to it. Meanwhile others are lent memory of their own, and
// Close waits, as long as it may.
func TestOthersAreLentMemoryWhileItIsTakenFromAPeer(t *testing.T) {
	w := newWorkshop(t, "hand")
	h := w.hands[0]
	revoking, answer := make(chan struct{}, 1), make(chan struct{})
	h.inside = func() { revoking <- struct{}{}; <-answer }
	mute, other := w.opened(), w.opened()
	first, err := w.lentPool(mute, 2)
	require.Nil(t, err)
	left := make(chan struct{})
	go func() { w.takeBack(mute); close(left) }()
	<-revoking
	second, err := w.lentPool(other, 2)
	require.Nil(t, err)
	require.NotEqual(t, first.region.Addr, second.region.Addr, "a peer may still write there")

	short, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorContains(t, w.closeStaging(short), "taken back")
	h.locked(func() { require.Contains(t, h.keys, first.region.key(0)) })
	close(answer)
	<-left
	h.inside = nil
	require.Equal(t, []*stagePool{first}, w.staging.returned)
	require.Empty(t, w.staging.spoiled)
	require.Nil(t, w.staging.lent[mute], "its memory is lent to another peer next")
	h.locked(func() { require.NotContains(t, h.keys, first.region.key(0)) })
	for range 100 {
		require.NoError(t, w.closeStaging(short), "there is nothing to wait for")
	}
}

// A peer that has gone keeps the memory that is lent to it until the transports have it back. Orders of others do not
// wait for that.
func TestOrdersOfOthersGoOnWhileAPeerThatHasGoneIsLeft(t *testing.T) {
	w := newWorkshop(t, "hand")
	h := w.hands[0]
	from := func(n byte) transport.Peer {
		return transport.Peer{Address: "127.0.0.1:1", ID: transport.ID{n}, MachineID: w.machine}
	}
	mute, err := w.asker(from(1))
	require.NoError(t, err)
	_, failure := w.lentPool(mute.peer, 2)
	require.Nil(t, failure)
	mute.peer.gone.Store(errs.New(errs.PeerUnreachable, "peer", "it has gone"))
	revoking, answer := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(answer) })
	defer time.AfterFunc(patience, release).Stop()
	var open atomic.Bool
	h.inside = func() { close(revoking); <-answer; open.Store(true) }
	_, err = w.asker(from(2))
	require.NoError(t, err)
	<-revoking
	_, err = w.asker(from(3))
	require.NoError(t, err)
	require.False(t, open.Load(), "an order has waited for the bytes of another peer")
	h.inside = nil
	release()
}

// opened returns a peer that somebody has open.
func (w *workshop) opened() *peer {
	p := newPeer(w.Engine, transport.Peer{})
	p.handles = 1
	return p
}

// Nobody has the peer open any more when memory was registered for it. It is not left with the memory.
func TestAPeerThatIsLeftMeanwhileIsLentNothing(t *testing.T) {
	w := newWorkshop(t, "hand")
	p := w.opened()
	w.hands[0].enter = func(mem.Region) error {
		require.True(t, w.unhandle(p))
		w.endPeer(p)
		return nil
	}
	_, err := w.lentPool(p, 2)
	require.NotNil(t, err)
	require.Equal(t, errs.InvalidEntry, err.Code)
	require.Empty(t, w.staging.lent)
	require.Len(t, w.staging.returned, 1)
}

// Memory that is lent to a peer comes back when nobody has the peer open any more.
func TestLentMemoryComesBackWhenItsPeerIsLeft(t *testing.T) {
	w := newWorkshop(t, "hand")
	p := w.opened()
	pool, err := w.lentPool(p, 3)
	require.Nil(t, err)
	require.Equal(t, 3*w.stageSizes().SlotBytes, pool.region.Size, "a slot for each order at once")
	w.endPeer(p)
	require.Equal(t, []*stagePool{pool}, w.staging.returned)
	w.hands[0].locked(func() { require.NotContains(t, w.hands[0].keys, pool.region.key(0)) })
}

// Memory of the engine's own mapping goes from peer to peer, and is unmapped at the end. A transport that does not take
// it for a peer leaves it to the next one.
func TestLentMemoryIsUnmappedBehindItsLastPeer(t *testing.T) {
	w := newWorkshop(t, "hand")
	h := w.hands[0]
	p := w.opened()
	first, err := w.lentPool(p, 2)
	require.Nil(t, err)
	require.IsType(t, ownMapping(0), first.region.owner)
	w.endPeer(p)

	h.enter = func(mem.Region) error { return errs.New(errs.TooManyRequests, "register", "not now") }
	_, err = w.lentPool(w.opened(), 2)
	require.NotNil(t, err)
	h.enter = nil
	second, err := w.lentPool(w.opened(), 2)
	require.Nil(t, err)
	require.Equal(t, first.region.Addr, second.region.Addr)
	mem.Bytes(second.region.Addr, int(second.region.Size))[0] = 1

	w.Logs(logsMax)
	require.Empty(t, w.Close(patience, true))
	for _, r := range w.Logs(logsMax) {
		require.NotEqual(t, "free", r.Message, "%v", r.Attrs)
	}
}

// A peer that is left holds its pool up, and lets it go later. Close asks for it again, and gives the memory back.
func TestAPoolThatAPeerHeldUpEndsWithTheEngine(t *testing.T) {
	w := newWorkshop(t, "hand")
	h, p := w.hands[0], w.opened()
	pool, err := w.lentPool(p, 2)
	require.Nil(t, err)
	h.locked(func() { h.revoke = errs.New(errs.Timeout, "revoke", "a peer is inside") })
	w.endPeer(p)
	require.Equal(t, []*stagePool{pool}, w.staging.spoiled)
	require.Contains(t, h.keys, pool.region.key(0))
	h.locked(func() { h.revoke = nil })
	require.Empty(t, w.Close(patience, true))
	require.NotContains(t, h.keys, pool.region.key(0))
	require.Equal(t, regionUnmapped, pool.region.life.state())
}

// patient is a transport with a peer that lets nothing go, for as long as it is asked.
type patient struct {
	*hand
	asked  chan struct{}
	causes chan error
}

func (p *patient) Revoke(ctx context.Context, _ transport.LocalKey, _ *transport.Peer, _ transport.Epoch) error {
	p.asked <- struct{}{}
	<-ctx.Done()
	p.causes <- ctx.Err()
	return ctx.Err()
}

// A goroutine of the engine leaves a peer that holds its pool up. The end of the engine is the end of its patience.
func TestCloseWaitsForNoPeerThatHoldsAPoolUp(t *testing.T) {
	s := &patient{newHand("hand"), make(chan struct{}, 2), make(chan error, 2)}
	e, err := Open(t.Context(), Options{Transports: Plugs(handFactory{s})})
	require.NoError(t, err)
	w := &workshop{Engine: e, t: t, hands: []*hand{s.hand}}
	p := w.opened()
	_, failure := w.lentPool(p, 2)
	require.Nil(t, failure)
	require.True(t, w.routines.start(func() { w.endPeer(p) }))
	<-s.asked
	require.NotEmpty(t, w.Close(0, true))
	require.ErrorIs(t, <-s.causes, context.Canceled)
	require.NoError(t, w.Forget())
}

// A peer lends a few regions at once. The key of one goes back when another takes its place, and not while an order
// uses it.
func TestTheRegionsThatAPeerLendsAreBounded(t *testing.T) {
	w := newWorkshop(t, "hand")
	h, p := w.hands[0], newPeer(w.Engine, transport.Peer{})
	p.links.Store(&[]attachment{{link: handLink, id: 1}})
	lend := func(id mem.RegionID, descriptor byte) (*borrowed, *errs.Error) {
		return p.borrow(&transport.Lent{ID: id, Addr: 1 << 30, Size: 4096,
			Descriptors: map[string]transport.Descriptor{"hand": {descriptor}}})
	}
	var list []*borrowed
	for id := range mem.RegionID(borrowedMost) {
		b, err := lend(id+1, 1)
		require.Nil(t, err)
		b.remote.keys[0] = transport.RemoteKey(10 + id)
		list = append(list, b)
	}
	again, err := lend(1, 1)
	require.Nil(t, err)
	require.Same(t, list[0], again)
	_, err = lend(2, 9)
	require.NotNil(t, err, "an order uses the one with the other descriptor")
	_, err = lend(99, 1)
	require.NotNil(t, err)
	require.Equal(t, errs.TooManyRequests, err.Code)
	p.unborrow(list[0])
	_, err = lend(99, 1)
	require.NotNil(t, err, "the first of two orders has ended")
	require.Empty(t, h.forgot)
	p.unborrow(list[0])
	_, err = lend(99, 1)
	require.Nil(t, err)
	require.Equal(t, []transport.RemoteKey{10}, h.forgot)
	p.unborrow(list[1])
	other, err := lend(2, 9)
	require.Nil(t, err)
	require.NotSame(t, list[1], other)
	require.Equal(t, []transport.RemoteKey{10, 11}, h.forgot)
	require.Len(t, p.borrowed, borrowedMost)
}
