package engine

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// A lease whose end has begun cannot be renewed: the renewal would promise a range that is about to go.
func TestALeaseThatEndsIsNotRenewed(t *testing.T) {
	k := newLeaseKeeper(nil)
	t.Cleanup(k.close)
	fresh := func() *region {
		l := &region{lease: &lease{until: clock.Never, place: -1}}
		l.life.advance(eventPublished)
		return l
	}
	require.True(t, k.renew(fresh(), 0))
	for name, end := range map[string]func(*region){
		"its time was up": func(l *region) { l.lease.until = clock.Now() },
		"it ends now":     func(l *region) { k.end(l) },
		"it is closed":    func(l *region) { l.life.advance(eventClosed) },
	} {
		l := fresh()
		end(l)
		require.False(t, k.renew(l, time.Hour), name)
		require.Empty(t, k.due, name)
	}
}

// The end of a lease is the one of the last renewal. None is no end, and a lease that is closed has no place left.
func TestTheScheduleFollowsRenewals(t *testing.T) {
	k := newLeaseKeeper(nil)
	t.Cleanup(k.close)
	l := &region{lease: &lease{until: clock.Never, place: -1}}
	l.life.advance(eventPublished)
	due := func() int {
		k.mu.Lock()
		defer k.mu.Unlock()
		return len(k.due)
	}
	for name, change := range map[string]func(){
		"without an end": func() { require.True(t, k.renew(l, 0)) },
		"closed":         func() { k.end(l); l.lease.ended = false },
	} {
		require.True(t, k.renew(l, time.Hour))
		require.Equal(t, 1, due(), name)
		require.True(t, k.renew(l, time.Minute))
		require.Equal(t, 1, due(), name)
		change()
		require.Zero(t, due(), name)
		require.Equal(t, clock.Never, l.lease.until, name)
	}
}

// The ends of leases go on beyond the number that end at the same time, and leave nothing with their region.
func TestManyLeasesEndByThemselves(t *testing.T) {
	w := newWorkshop(t, "hand")
	h, whole := w.hands[0], w.region("kv")
	h.locked(func() { require.Len(t, h.keys, 1) })
	for i := range uint64(leaseEndsMax + 6) {
		_, err := w.Share(whole.ID, Share{Offset: i * 32, Size: 32, Expires: time.Millisecond})
		require.NoError(t, err)
	}
	h.await(t, "the ends of all leases", func() bool { return len(h.keys) == 1 })
	k := w.leases
	for range cap(k.room) { // then no end is under way
		k.room <- struct{}{}
	}
	defer func() {
		for range cap(k.room) {
			<-k.room
		}
	}()
	k.mu.Lock()
	require.Empty(t, k.due, "a lease that has ended would be ended again")
	k.mu.Unlock()
	require.Empty(t, w.regions.retire.wait(t.Context()))
	require.Empty(t, whole.parts.list)
	require.Zero(t, k.count.Load())
	w.requireUses(0, whole)
}

// Peers that hold an expired lease up, for as long as its end waits for them, delay that end and do not prevent it.
func TestALeaseThatIsHeldUpAtItsEndEndsLater(t *testing.T) {
	w := newWorkshop(t, "hand")
	h := w.hands[0]
	id, err := w.Share(w.region("kv").ID, Share{Size: 4096})
	require.NoError(t, err)
	key := w.regions.get(id).key(0)
	h.locked(func() { h.held = key })
	require.NoError(t, w.Renew(id, time.Millisecond))
	h.await(t, "the first try", func() bool { return len(h.revokes) > 0 })
	h.locked(func() {
		require.Contains(t, h.keys, key)
	})
	_, err = w.Token(id)
	require.NoError(t, err, "a peer is inside: the lease has not ended")
	require.Equal(t, errs.InvalidEntry, errs.CodeOf(w.Renew(id, time.Hour)), "its end cannot be stopped")
	h.locked(func() { h.held = 0 })
	h.await(t, "the end of the lease", func() bool { _, there := h.keys[key]; return !there })
	_, err = w.Token(id)
	require.Equal(t, errs.InvalidEntry, errs.CodeOf(err))
}

// clinging is a transport with peers that let no key go before the test says so, but for one.
type clinging struct {
	*hand
	free  transport.LocalKey
	letGo chan struct{}
	late  atomic.Bool // a revocation has used its time up
}

func (c *clinging) Revoke(ctx context.Context, key transport.LocalKey, from *transport.Peer, e transport.Epoch) error {
	if err := c.hand.Revoke(ctx, key, from, e); err != nil || key == c.free {
		return err
	}
	select {
	case <-c.letGo:
	case <-ctx.Done():
		c.late.Store(true)
	}
	return ctx.Err()
}

// A host that has lost its power holds many leases up. Another lease expires behind them, and waits for none of them.
func TestLeasesThatAreHeldUpDelayNoOther(t *testing.T) {
	c := &clinging{hand: newHand("hand"), letGo: make(chan struct{})}
	w := newWorkshopOver(t, []*hand{c.hand}, handFactory{c})
	defer close(c.letGo)
	whole := w.region("kv")
	id, err := w.Share(whole.ID, Share{Size: 32})
	require.NoError(t, err)
	c.free = w.regions.get(id).key(0)
	const others = 4 * leaseAgainMax
	for i := range uint64(others) {
		_, err := w.Share(whole.ID, Share{Offset: 32 + i*32, Size: 32, Expires: time.Millisecond})
		require.NoError(t, err)
	}
	require.NoError(t, w.Renew(id, 2*time.Millisecond))
	c.await(t, "the end of the lease", func() bool { return c.revoked[c.free] > 0 })
	require.False(t, c.late.Load())
	c.await(t, "the tries of the others", func() bool { return len(c.revokes) > others })
}

// A lease that is held up has another turn in a room of its own. Without room there it comes back, and delays nobody.
func TestALeaseThatIsTriedAgainTakesNoRoomOfOthers(t *testing.T) {
	w := newWorkshop(t, "hand")
	k := w.leases
	id, err := w.Share(w.region("kv").ID, Share{Size: 4096})
	require.NoError(t, err)
	l := w.regions.get(id)
	for range cap(k.again) {
		k.again <- struct{}{}
	}
	k.try(l, true)
	k.mu.Lock()
	require.Positive(t, l.lease.until.Sub(clock.Now()))
	require.True(t, l.lease.held)
	require.Contains(t, k.due, l)
	k.mu.Unlock()
	require.NotNil(t, w.regions.get(id), "no room")
	for range cap(k.again) {
		<-k.again
	}
	for range cap(k.room) {
		k.room <- struct{}{}
	}
	k.try(l, true)
	w.hands[0].await(t, "the end of the lease", func() bool { return w.hands[0].revoked[l.key(0)] > 0 })
	for range cap(k.room) {
		<-k.room
	}
}
