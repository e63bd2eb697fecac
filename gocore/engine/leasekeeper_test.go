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
