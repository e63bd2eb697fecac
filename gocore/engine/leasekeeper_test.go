package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
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
		h.held = 0
	})
	h.await(t, "the end of the lease", func() bool { _, there := h.keys[key]; return !there })
	require.Nil(t, w.regions.get(id))
}
