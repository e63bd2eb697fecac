package tcp

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/transport"
)

// A listener that is shut down can accept nothing, and epoll reports it for ever: as one in a process without memory.
func TestAListenerThatCannotAcceptRests(t *testing.T) {
	e := newTestEndpoint(t, Settings{})
	tr := e.tr.(*Transport)
	stopWorkers(t, tr)
	require.NoError(t, unix.Shutdown(tr.listeners[0].fd, unix.SHUT_RDWR))
	w := tr.newWorker()
	rounds := 0
	for begin := time.Now(); time.Since(begin) < 10*acceptPause; rounds++ {
		require.False(t, tr.round(w, 1))
	}
	errors := int(e.refused(transport.RefusedLimit))
	require.LessOrEqual(t, errors, 11, "a worker spins: %d rounds", rounds)
	require.GreaterOrEqual(t, errors, 2, "it is looked at again, and each error is told")
}

func TestAListenerAcceptsAgainAfterAPause(t *testing.T) {
	e := newTestEndpoint(t, Settings{})
	tr := e.tr.(*Transport)
	for range 3 { // also when several workers have met the error
		tr.pauseAccepting(0, unix.ENOMEM)
	}
	c := e.guest(t)
	require.NoError(t, c.Close())
}

func TestAReserveThatWasLostIsMadeAgain(t *testing.T) {
	l := newTestEndpoint(t, Settings{}).tr.(*Transport).listeners[0]
	l.mu.Lock()
	require.NoError(t, unix.Close(l.reserve))
	l.reserve = -1
	l.mu.Unlock()
	require.False(t, l.turnAway())
	l.mu.Lock()
	defer l.mu.Unlock()
	require.GreaterOrEqual(t, l.reserve, 0)
}

// A forked child has copies of all descriptors. Peers take a refused dial for the proof that nobody reads their lanes.
func TestAClosedTransportRefusesDialsAlthoughAChildHasItsListener(t *testing.T) {
	e, err := newEndpoint(Settings{})
	require.NoError(t, err)
	tr := e.tr.(*Transport)
	inherited, err := unix.Dup(tr.listeners[0].fd)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Close(inherited)) }()
	port := tr.listeners[0].addr.String()
	e.close(t)
	_, err = net.DialTimeout("tcp", port, 5*time.Second)
	require.ErrorIs(t, err, unix.ECONNREFUSED)
}
