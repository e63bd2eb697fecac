package rdma

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/transport"
)

// TestAGuestThatLeftWithoutAWordIsDismissed: a peer that was killed says no goodbye, and its queue pairs would stay.
// One that keeps in touch stays, as does one with lost calls and with bytes that come.
func TestAGuestThatLeftWithoutAWordIsDismissed(t *testing.T) {
	const quiet = 60 * time.Millisecond
	r := newRig(t, func(s *Settings) { s.Scan, s.Keep, s.Quiet = 2*time.Millisecond, 5*time.Millisecond, quiet })
	owner := r.b.Transport.(*Transport)
	only := func() *guest {
		list := owner.guests.all(transport.ID{})
		require.Len(t, list, 1)
		return list[0]
	}
	g, start := only(), time.Now()
	await(t, "words of the peer", func() bool {
		owner.guests.mu.Lock()
		defer owner.guests.mu.Unlock()
		return g.heard.After(start.Add(4 * quiet))
	})
	require.Same(t, g, only())

	r.alone.Store(true) // its calls are lost
	for end := time.Now().Add(4 * quiet); time.Now().Before(end); {
		r.works(t)
	}
	require.Same(t, g, only())

	await(t, "the end of a silent guest", func() bool { return len(owner.guests.all(transport.ID{})) == 0 })
	g.mu.Lock()
	for _, rail := range g.rails {
		require.Empty(t, rail.lanes)
	}
	g.mu.Unlock()
}

// TestAPeerThatWasTakenForGoneComesBack, as one of an older version, or one with lost calls.
func TestAPeerThatWasTakenForGoneComesBack(t *testing.T) {
	r := newRig(t, func(s *Settings) { s.Scan, s.Keep, s.Quiet = 2*time.Millisecond, time.Hour, 20*time.Millisecond })
	owner := r.b.Transport.(*Transport)
	await(t, "the end of a silent guest", func() bool { return len(owner.guests.all(transport.ID{})) == 0 })
	r.works(t)
	require.Len(t, owner.guests.all(transport.ID{}), 1)
}

// TestPairsCountTheRequestsThatCameOnDevices, which keeps a guest with lost calls.
func TestPairsCountTheRequestsThatCameOnDevices(t *testing.T) {
	r := newRigOnDevices(t)
	list := r.b.Transport.(*Transport).guests.all(transport.ID{})
	require.Len(t, list, 1)
	require.True(t, list[0].moved(), "the first look")
	require.False(t, list[0].moved(), "nothing has come since then")
	r.works(t)
	require.True(t, list[0].moved(), "a WRITE has come")
	require.False(t, list[0].moved())
}
