package engine

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// pinning is a transport with a driver that hangs beyond its context, until the test lets it go on.
type pinning struct {
	*hand
	registers, deregisters chan struct{} // nil: it does not hang
}

func (p *pinning) Info() transport.Info {
	info := p.hand.Info()
	info.Pins = true
	return info
}

func (p *pinning) Register(ctx context.Context, r mem.Region) (transport.LocalKey, transport.Descriptor, error) {
	if p.registers != nil {
		<-p.registers
	}
	return p.hand.Register(ctx, r)
}

func (p *pinning) Deregister(ctx context.Context, key transport.LocalKey) error {
	if p.deregisters != nil {
		<-p.deregisters
	}
	return p.hand.Deregister(ctx, key)
}

// Close returns at once, and fails where it has no time.
func (p *pinning) Close(ctx context.Context) error { return ctx.Err() }

// The end of the regions has a limit, and names those that a driver holds. On all other transports they are revoked,
// and every transport has its time to close.
func TestTheEndOfTheRegionsHasALimitAlthoughADriverHangs(t *testing.T) {
	goOn := make(chan struct{})
	defer close(goOn) // so that Close finds nothing that is held
	for words, p := range map[string]*pinning{
		`transport slow is still registering the region "kv"`: {newHand("slow"), goOn, nil},
		`a driver has not let the region "kv" go`:             {newHand("slow"), nil, goOn},
	} {
		quick := newHand("hand")
		w := newWorkshopOver(t, []*hand{quick, p.hand}, handFactory{quick}, handFactory{p})
		w.config.Engine.RegisterWait = time.Millisecond
		r := w.region("kv")
		require.NotZero(t, r.key(0))
		if p.registers == nil {
			require.NoError(t, r.awaitSettled(t.Context()))
		}
		held := w.endMemory(20 * time.Millisecond)
		require.Len(t, held, 1)
		require.Contains(t, held[0], words)
		require.NotZero(t, quick.revoked[r.key(0)])
	}
}

// A transport that pins pages takes longer than Register waits. A pool has its key all the same: the plan that asks for
// the pool may have no other way.
func TestAPoolWaitsForTransportsThatPin(t *testing.T) {
	quick := newHand("hand")
	p := &pinning{newHand("slow"), make(chan struct{}), nil}
	w := newWorkshopOver(t, []*hand{quick, p.hand}, handFactory{quick}, handFactory{p})
	w.config.Engine.RegisterWait = time.Millisecond
	time.AfterFunc(50*time.Millisecond, func() { close(p.registers) })
	pool, err := w.poolAt(poolKey{})
	require.Nil(t, err)
	for i := range w.ports {
		require.NotZero(t, pool.region.key(i))
	}
}

// outwaiting is a transport with a peer that lets one region go only when the time is up.
type outwaiting struct {
	*hand
	key transport.LocalKey
}

func (o *outwaiting) Revoke(ctx context.Context, key transport.LocalKey, _ *transport.Peer, _ transport.Epoch) error {
	if key == o.key {
		<-ctx.Done()
	}
	return ctx.Err()
}

// A peer that does not let one region go keeps no other one, and no pool, from its end.
func TestARegionThatIsHeldHoldsNoOther(t *testing.T) {
	o := &outwaiting{hand: newHand("hand")}
	w := newWorkshopOver(t, []*hand{o.hand}, handFactory{o})
	for _, name := range []string{"a", "b", "c"} {
		w.region(name)
	}
	_, err := w.poolAt(poolKey{})
	require.Nil(t, err)
	first := w.regions.list()[0]
	o.key = first.key(0)
	held := w.endMemory(20 * time.Millisecond)
	require.Len(t, held, 1)
	require.Contains(t, held[0], first.label())
	o.key = 0
}

// A driver hangs while it registers a pool. The end of the memory names it when its time is up, and the pool is taken
// back when the driver goes on.
func TestTheEndOfTheMemoryHasALimitAlthoughADriverHangsWithAPool(t *testing.T) {
	p := &pinning{newHand("slow"), make(chan struct{}), nil}
	goOn := sync.OnceFunc(func() { close(p.registers) })
	defer time.AfterFunc(patience, goOn).Stop()
	w := newWorkshopOver(t, []*hand{p.hand}, handFactory{p})
	w.config.Engine.RegisterTimeout = time.Hour
	made := make(chan *errs.Error)
	go func() { _, err := w.poolAt(poolKey{}); made <- err }()
	registers := func() bool {
		w.regions.retire.mu.Lock()
		defer w.regions.retire.mu.Unlock()
		return len(w.regions.retire.of) > 0
	}
	for !registers() {
		runtime.Gosched()
	}
	require.Equal(t, []string{"region at its address: a driver has not let it go"}, w.endMemory(20*time.Millisecond))
	require.Empty(t, made)
	goOn()
	err := <-made
	require.NotNil(t, err)
	require.Equal(t, errs.EngineClosed, err.Code)
	p.locked(func() { require.Empty(t, p.keys) })
}

// regionAt registers memory at an address.
func (w *workshop) regionAt(addr uintptr) (mem.RegionID, error) {
	return w.Register(Memory{Addr: addr, Size: 4096, Location: "cpu:0"})
}

// A closed region is the caller's when no driver has its pages pinned. One that hangs makes the close fail, and the
// next one waits for it; it is named by an event, holds up no other transport, and none of the other regions.
func TestACloseWaitsForDriversThatLetPagesGo(t *testing.T) {
	goOn := make(chan struct{})
	other, slow := newHand("other"), &pinning{newHand("slow"), nil, goOn}
	quick := &pinning{newHand("quick"), nil, nil}
	w := newWorkshopOver(t, []*hand{slow.hand, quick.hand, other}, handFactory{slow}, handFactory{quick},
		handFactory{other})
	w.regions.retire.most = 20 * time.Millisecond
	r := w.region("kv")
	id, err := w.Follow()
	require.NoError(t, err)
	defer w.Unfollow(id)
	for range 2 {
		err = w.CloseRegion(t.Context(), r.ID)
		require.Equal(t, errs.Timeout, errs.CodeOf(err), "%v", err)
		require.ErrorContains(t, err, `a driver has not let the region "kv" go`)
	}
	for _, h := range []*hand{quick.hand, other} {
		h.await(t, "the region is forgotten", func() bool { return len(h.keys) == 0 })
	}
	held := func() (names []string) {
		list, _, err := w.Events(id, 100)
		require.NoError(t, err)
		for _, ev := range list {
			if ev.Kind == event.RegionHeld {
				names = append(names, ev.Transport+" "+ev.Rail)
			}
		}
		return names
	}
	require.Equal(t, []string{"slow kv"}, held())

	_, err = w.regionAt(r.Addr + 4096)
	require.Equal(t, errs.Timeout, errs.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, `the closed region "kv"`)
	_, err = w.regionAt(r.Addr + uintptr(r.Size))
	require.NoError(t, err, "beside it")
	close(goOn)
	require.NoError(t, w.CloseRegion(t.Context(), r.ID))
	slow.locked(func() { require.Len(t, slow.keys, 1) })
	again, err := w.regionAt(r.Addr)
	require.NoError(t, err)
	require.NoError(t, w.CloseRegion(t.Context(), again))
	require.Empty(t, held())
}
