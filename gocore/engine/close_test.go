package engine

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// A peer that was stopped inside a lease holds that lease alone. All others are out of the region when CloseRegion has
// returned, and out of the other ranges of a lease when that has expired.
func TestAnEndThatIsHeldInOnePartReachesAllOthers(t *testing.T) {
	w := newWorkshop(t, "hand")
	h := w.hands[0]
	ranges := []Range{{0, 4096}, {8192, 4096}, {16384, 4096}}
	whole := w.region("kv")
	id, err := w.Share(whole.ID, Share{Ranges: ranges})
	require.NoError(t, err)
	first := w.regions.get(id)
	parts := append(first.parts.open(), first)
	h.held = parts[0].key(0)
	require.ErrorContains(t, w.closeRegion(t.Context(), id, "expired"), "a peer is inside")
	require.Equal(t, 1, h.revoked[first.key(0)])
	require.ErrorContains(t, w.CloseRegion(t.Context(), whole.ID), "a peer is inside")
	require.Equal(t, 1, h.revoked[whole.key(0)])
	h.held = 0
	require.NoError(t, w.CloseRegion(t.Context(), whole.ID))
	require.Nil(t, w.regions.leave(id))
}

// ending is a transport with a Close of the test.
type ending struct {
	*hand
	close func(ctx context.Context) error
}

func (e *ending) Close(ctx context.Context) error { return e.close(ctx) }

// A caller gives an Open up. The transports that are open by then have their time to close.
func TestAnOpenThatIsGivenUpLeavesItsTransportsTheirTime(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var closed []error
	first := &ending{newHand("first"), func(ctx context.Context) error {
		closed = append(closed, ctx.Err())
		return nil
	}}
	second := failingFactory{handFactory{newHand("second")}, cancel}
	_, err := Open(ctx, Options{Transports: Plugs(handFactory{first}, second)})
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, []error{nil}, closed)
}

// failingFactory has a transport that does not open, because the caller has given up.
type failingFactory struct {
	handFactory
	giveUp func()
}

func (f failingFactory) Open(ctx context.Context, _ any, _ transport.Host, _ transport.Sink) (transport.Transport,
	error) {
	f.giveUp()
	return nil, ctx.Err()
}

// A transport that uses all of the time to close names itself, and no other one fails for want of time.
func TestATransportThatIsSlowToCloseLeavesTheOthersTheirTime(t *testing.T) {
	slow := &ending{newHand("slow"), func(ctx context.Context) error {
		<-ctx.Done()
		return errs.New(errs.Timeout, "close", "its driver has not let go")
	}}
	begun := make(chan struct{})
	quick := &ending{newHand("quick"), func(ctx context.Context) error {
		defer close(begun)
		return ctx.Err()
	}}
	w := newWorkshopOver(t, nil, handFactory{slow}, handFactory{quick})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	go func() {
		<-begun
		cancel()
	}()
	held := w.closeTransports(ctx)
	require.Len(t, held, 1)
	require.Contains(t, held[0], "transport slow: ")
	require.Contains(t, held[0], "its driver has not let go")
	slow.close = func(context.Context) error { return nil } // the end of the workshop
	quick.close = slow.close
}

// Several threads close an engine: none hears of an end before all memory is back, and all hear the same.
func TestEveryCallOfCloseReturnsAtTheEnd(t *testing.T) {
	const others = 8
	var e *Engine
	results := make(chan []string, others)
	slow := &ending{hand: newHand("slow")}
	slow.close = func(context.Context) error {
		for range others {
			go func() { results <- e.Close(time.Minute, true) }()
		}
		require.Equal(t, []string{"another call is still closing the engine"}, e.Close(-3*closeGrace, true))
		require.ErrorContains(t, e.Forget(), "not closed")
		return errs.New(errs.Timeout, "close", "its driver has not let go")
	}
	e, err := Open(t.Context(), Options{Transports: Plugs(handFactory{slow})})
	require.NoError(t, err)
	held := e.Close(0, true)
	require.Len(t, held, 1)
	require.Contains(t, held[0], "its driver has not let go")
	for range others {
		require.Equal(t, held, <-results)
	}
	require.NoError(t, e.Forget())
}

// remapping is a transport that makes pages reachable again; ends is called at the beginning of that.
type remapping struct {
	*hand
	ends func()
}

func (r *remapping) Remap(_ context.Context, key transport.LocalKey, _ transport.Remapped) (err error) {
	r.ends()
	r.locked(func() {
		if _, there := r.keys[key]; !there {
			err = errs.New(errs.AddressNotRegistered, "remap", "no region with key %#x", uint64(key))
		}
	})
	return err
}

// A region or a lease that another call has closed meanwhile is out of every peer's reach. That is no failure of a
// fence, a remap, a disconnection, or another close.
func TestARegionThatIsClosedMeanwhileFailsNobody(t *testing.T) {
	r := &remapping{newHand("hand"), func() {}}
	w := newWorkshopOver(t, []*hand{r.hand}, handFactory{r})
	lease := func(whole *region) *region {
		id, err := w.Share(whole.ID, Share{Size: 4096})
		require.NoError(t, err)
		return w.regions.get(id)
	}
	whole := w.region("kv")
	peer := transport.Peer{ID: transport.NewID()}
	for name, c := range map[string]struct {
		of     *region
		inside *func()
		do     func(l *region) error
	}{
		"fence": {whole, &r.inside, func(l *region) error { return w.FenceRegion(t.Context(), l.ID, "") }},
		"close": {whole, &r.inside, func(l *region) error { return w.CloseRegion(t.Context(), l.ID) }},
		"close of the region": {w.region("other"), &r.inside, func(l *region) error {
			return w.CloseRegion(t.Context(), l.lease.of.ID)
		}},
		"disconnection": {whole, &r.inside, func(*region) error {
			return w.dismiss(t.Context(), []transport.Peer{peer}, errs.New(errs.PeerNotAdmitted, "test", "it goes"))
		}},
		"remap": {whole, &r.ends, func(l *region) error {
			return w.remapLeases(t.Context(), []*region{l}, l.Addr, l.Addr+1)
		}},
	} {
		l := lease(c.of)
		*c.inside = func() {
			*c.inside = func() {}
			require.NoError(t, w.CloseRegion(t.Context(), l.ID))
			r.await(t, "the end of the registration", func() bool { _, there := r.keys[l.key(0)]; return !there })
		}
		require.NoError(t, c.do(l), name)
		require.True(t, l.out.Load(), name)
	}
}

// A thread that waits may be inside beside Close and Forget: it looks at the shared page after both.
func TestCallsMayBeInsideBesideForget(t *testing.T) {
	w := newWorkshop(t, "hand")
	own, far := w.region("own"), w.region("far")
	r := w.request(own, far)
	id, err := w.Move(&r)
	require.NoError(t, err)
	const waiters = 32
	states := make(chan dispatch.State)
	for range waiters {
		go func() { states <- w.Wait(id, time.Minute) }()
	}
	require.Empty(t, w.Close(0, true))
	require.NoError(t, w.Forget())
	for range waiters {
		require.Equal(t, dispatch.Canceled, <-states)
	}
	require.Equal(t, dispatch.Canceled, w.Wait(id, time.Minute))
	require.Equal(t, 1, w.WaitMany([]dispatch.BatchID{id}, 1, time.Minute))
	require.NotZero(t, w.Elapsed(id))
	w.requireEnd(id, dispatch.Canceled, errs.Canceled)
}

// Threads that wait for notifications or events return when the engine ends. Others may ask for descriptors meanwhile.
func TestCallsThatWaitForNewsEndWithTheEngine(t *testing.T) {
	w := newWorkshop(t, "hand")
	follower, err := w.Follow()
	require.NoError(t, err)
	_, _, err = w.Events(follower, eventsMax)
	require.NoError(t, err)
	var asking sync.WaitGroup
	for range 2 {
		asking.Go(func() { assert.Zero(t, w.NotesWait(time.Hour)) })
		asking.Go(func() {
			var err error
			for err == nil {
				if _, err = w.EventsWait(follower, time.Hour); err == nil {
					_, _, err = w.Events(follower, eventsMax)
				}
			}
			assert.Equal(t, errs.Stale, errs.CodeOf(err))
		})
	}
	asking.Go(func() {
		for w.EventFd() >= 0 || w.NoteFd() >= 0 {
			runtime.Gosched()
		}
	})
	require.Empty(t, w.Close(patience, true))
	asking.Wait()
	require.Zero(t, w.NotesWait(time.Hour))
	_, err = w.Follow()
	require.Equal(t, errs.EngineClosed, errs.CodeOf(err))
	_, err = w.history.follow() // by a call that had passed the first look of Follow
	require.Equal(t, errs.EngineClosed, errs.CodeOf(err))
}

// A device that gives its slices back to nobody holds their memory, and no thread: the batch has ended for its waiters.
func TestABatchWhoseSlicesNeverComeEndsWithTheEngine(t *testing.T) {
	w := newWorkshop(t, "hand")
	own, far := w.region("own"), w.region("far")
	r := w.request(own, far)
	id, err := w.Move(&r)
	require.NoError(t, err)
	waited := make(chan dispatch.State)
	go func() { waited <- w.Wait(id, time.Hour) }()
	require.Eventually(t, func() bool { // it is parked: nothing but a word of the engine ends it
		w.mu.Lock()
		defer w.mu.Unlock()
		b, err := w.lookup(id)
		return err == nil && len(b.waiters) == 1
	}, 10*time.Second, time.Millisecond)
	w.mu.Lock()
	w.gone = true
	w.endRest()
	w.unlockAndDrain()
	select {
	case state := <-waited:
		require.Equal(t, dispatch.Failed, state)
	case <-time.After(10 * time.Second):
		require.Fail(t, "a thread still waits for the batch")
	}
	w.requireEnd(id, dispatch.Failed, errs.EngineClosed)
	w.requireUses(1, own)
	w.hands[0].complete(nil) // it came after all
	w.requireEnd(id, dispatch.Failed, errs.EngineClosed)
	w.requireUses(0, own)
}

// beside is a transport in which something comes beside a registration, once.
type beside struct {
	*hand
	comes func()
}

func (b *beside) Register(ctx context.Context, r mem.Region) (transport.LocalKey, transport.Descriptor, error) {
	key, descriptor, err := b.hand.Register(ctx, r)
	comes := b.comes
	b.comes = func() {}
	comes()
	return key, descriptor, err
}

// Close ends the regions that it finds. Memory that is being allocated then is not given to anybody.
func TestMemoryThatIsAllocatedBesideCloseIsGivenBack(t *testing.T) {
	b := &beside{newHand("hand"), func() {}}
	e, err := Open(t.Context(), Options{Transports: Plugs(handFactory{b})})
	require.NoError(t, err)
	b.comes = func() { require.Empty(t, e.Close(0, true)) }
	_, _, err = e.Allocate(Memory{Size: 4096, Location: "cpu:0", Name: "late"})
	require.Equal(t, errs.EngineClosed, errs.CodeOf(err))
	require.Zero(t, e.Allocations())
	require.Empty(t, e.regions.list())
	require.Empty(t, e.regions.retire.wait(t.Context()))
	require.Empty(t, b.keys)
	require.NoError(t, e.Forget())
}

// Close ends the regions that it finds. One that is being registered then has ended, too, when its caller hears of it:
// no transport has a key of it, and the number is given back. A transport may have given it back with its own end.
func TestARegionThatIsRegisteredBesideCloseEndsWithIt(t *testing.T) {
	for _, forgets := range []bool{false, true} {
		b := &beside{newHand("hand"), func() {}}
		w := newWorkshopOver(t, []*hand{b.hand}, handFactory{b})
		page := make([]byte, 4096)
		b.comes = func() { require.Empty(t, w.Close(0, true)) }
		if forgets {
			b.inside = func() { b.locked(func() { clear(b.keys) }) }
		}
		_, err := w.Register(Memory{Addr: mem.AddressOf(page), Size: 4096, Location: "cpu:0", Name: "late",
			Permission: mem.GlobalReadWrite})
		require.Equal(t, errs.EngineClosed, errs.CodeOf(err))
		require.Empty(t, w.regions.all())
		require.Empty(t, w.regions.retire.wait(t.Context()))
		require.Empty(t, b.keys)
		require.Len(t, w.regions.free, 1)
		clear(page)
	}
}

// keeping is a transport with a thread that goes on with every slice, also behind Withdraw and Close.
type keeping struct{ *hand }

func (keeping) Withdraw([]*transport.Slice) {}

// Memory that a transport has not given back is mapped behind the end of the engine, whenever it was freed.
func TestMemoryThatNeverCameBackOutlivesTheEngine(t *testing.T) {
	for _, early := range []bool{true, false} {
		k := keeping{newHand("keeps")}
		e, err := Open(t.Context(), Options{Transports: Plugs(handFactory{k})})
		require.NoError(t, err)
		id, own, err := e.Allocate(Memory{Size: 1 << 16, Location: "cpu:0", Permission: mem.GlobalReadWrite})
		require.NoError(t, err)
		_, err = e.Move(&Request{Terms: Terms{Op: transport.Read}, Source: own.Addr, Length: 4096,
			Remote: Remote{Region: id, Offset: 4096}})
		require.NoError(t, err)
		k.await(t, "the slice", func() bool { return len(k.slices) == 1 })
		free := func() {
			require.NoError(t, e.CloseRegion(t.Context(), id))
			require.NoError(t, e.FreeMemory(id))
		}
		if early {
			free()
		}
		require.Equal(t, []string{"1 slices whose completion never came"}, e.Close(0, true))
		if !early {
			free()
		}
		require.True(t, e.Lingers(id))
		require.Empty(t, e.regions.retire.wait(t.Context()))
		mem.Bytes(own.Addr, int(own.Size))[0] = 1 // as the transport's thread does
		require.NoError(t, e.Forget())
	}
}

// Transfers from before a refusal go on; the page shows all of them.
func TestAnEngineThatRefusesTakesNoFurtherTransfers(t *testing.T) {
	w := newWorkshop(t, "hand")
	own, far := w.region("own"), w.region("far")
	r := w.request(own, far)
	before, err := w.Move(&r)
	require.NoError(t, err)
	batch, err := w.NewBatch(1)
	require.NoError(t, err)
	w.Refuse()
	require.Equal(t, dispatch.Pending, w.page.state(before))
	_, err = w.Move(&r)
	require.Equal(t, errs.EngineClosed, errs.CodeOf(err), "%v", err)
	_, err = w.Submit(batch, []Request{r}, nil)
	require.Equal(t, errs.EngineClosed, errs.CodeOf(err), "%v", err)
	w.hands[0].complete(nil)
	require.Equal(t, dispatch.Completed, w.Wait(before, 10*time.Second))
}
