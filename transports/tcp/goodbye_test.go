package tcp

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// neighbours are two endpoints in this process, the first attached to the second.
func neighbours(t *testing.T, size int) (near *couple, far *endpoint) {
	far = newTestEndpoint(t, Settings{})
	_, d, err := far.tr.Register(context.Background(), regionOf(mapping(t, size)))
	require.NoError(t, err)
	near = &couple{endpoint: newTestEndpoint(t, Settings{}), memory: mapping(t, size)}
	near.key, _, err = near.tr.Register(context.Background(), regionOf(near.memory))
	require.NoError(t, err)
	near.link, err = near.tr.Attach(far.self)
	require.NoError(t, err)
	near.remote, err = near.tr.Import(near.link, d)
	require.NoError(t, err)
	near.await(t, "a rail", 5*time.Second, func() bool { return len(near.rails) == 1 })
	return near, far
}

func TestAPeerThatClosesIsNoFailure(t *testing.T) {
	for name, n := range map[string]int{"idle": 1, "busy": 40} {
		t.Run(name, func(t *testing.T) {
			near, far := neighbours(t, 64<<20)
			var list []*transport.Slice
			for i := range n {
				list = append(list, near.slice(transport.Op(i%2), 0, i<<20, 1<<20))
			}
			list = list[:near.tr.Submit(list[:1])]
			near.awaitEnds(t, 5*time.Second, list...)
			for i := 1; i < n; i++ {
				s := near.slice(transport.Op(i%2), 0, i<<20, 1<<20)
				if near.tr.Submit([]*transport.Slice{s}) == 1 {
					list = append(list, s)
				}
			}
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			require.NoError(t, far.tr.Close(ctx))
			near.await(t, "LinkDown", 5*time.Second, func() bool { return near.dead != nil })
			near.awaitEnds(t, 5*time.Second, list...)
			requireGoodbye(t, near.dead)
			require.Equal(t, 1, near.downs)
			require.Nil(t, near.cause, "a rail went down in order")
			for _, s := range list {
				if err := near.ends[s].Err; err != nil {
					requireGoodbye(t, err)
				}
			}
		})
	}
}

// TestAPeerThatIsClosingIsNoFailure asks a peer of which the transport has closed, and the control plane not yet.
func TestAPeerThatIsClosingIsNoFailure(t *testing.T) {
	near, far := newTestEndpoint(t, Settings{}), newTestEndpoint(t, Settings{})
	require.NoError(t, far.tr.Close(context.Background()))
	_, err := near.tr.Attach(far.self)
	require.NoError(t, err)
	near.await(t, "LinkDown", 5*time.Second, func() bool { return near.dead != nil })
	requireGoodbye(t, near.dead)
}

// TestAnAnswerProvesThatNoWriteLands asks a peer that closes while its workers still read the lanes, and one that has
// closed.
func TestAnAnswerProvesThatNoWriteLands(t *testing.T) {
	near, far := neighbours(t, 1<<20)
	tr, hold := far.tr.(*Transport), make(chan struct{})
	release := sync.OnceFunc(func() { close(hold) })
	defer release()
	require.True(t, tr.spawn(func() { <-hold })) // Close waits for it before it stops the workers
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, tr.Close(ctx), context.Canceled, "it goes on in the background")
	hello := near.tr.(*Transport).links.Lookup(near.link).hello()
	_, err := tr.Serve(context.Background(), near.self, hello)
	require.Equal(t, errs.Timeout, errs.CodeOf(err), "%v", err)
	s := near.slice(transport.Write, 0, 0, 4096)
	require.Equal(t, 1, near.tr.Submit([]*transport.Slice{s}))
	near.awaitEnds(t, 5*time.Second, s)
	require.Nil(t, near.ends[s].Err, "it lands")
	release()
	require.NoError(t, tr.Close(context.Background()))
	_, err = tr.Serve(context.Background(), near.self, hello)
	require.Equal(t, errs.EngineClosed, errs.CodeOf(err), "%v", err)
}

func requireGoodbye(t *testing.T, err *errs.Error) {
	t.Helper()
	require.Equal(t, errs.PeerUnreachable, err.Code, "%v", err)
	require.Equal(t, errs.ScopeLink, err.Scope)
	require.Equal(t, errs.SideRemote, err.Side)
	require.True(t, errors.Is(err, &errs.Error{Code: errs.EngineClosed}), "%v", err)
}

// TestAKilledPeerSaysNoGoodbye is the other half: an end that was not announced is a failure.
func TestAKilledPeerSaysNoGoodbye(t *testing.T) {
	c := newCouple(t, Settings{}, 1<<20)
	c.child.Kill()
	c.await(t, "LinkDown", 5*time.Second, func() bool { return c.dead != nil })
	require.NotNil(t, c.cause)
	require.False(t, errors.Is(c.dead, &errs.Error{Code: errs.EngineClosed}), "%v", c.dead)
}

func (a *attachment) hasLeft() bool {
	a.t.attachments.mu.Lock()
	defer a.t.attachments.mu.Unlock()
	return a.left
}

func TestADetachedLinkIsForgottenAtOnce(t *testing.T) {
	attached := func(e *endpoint) int { return len(e.tr.(*Transport).attachments.ofPeer(nil)) }
	t.Run("idle", func(t *testing.T) {
		near, far := neighbours(t, 1<<20)
		s := near.slice(transport.Write, 0, 0, 1<<20)
		require.Equal(t, 1, near.tr.Submit([]*transport.Slice{s}))
		near.awaitEnds(t, 5*time.Second, s)
		require.Equal(t, 1, attached(far))
		near.tr.Detach(near.link)
		require.Eventually(t, func() bool { return attached(far) == 0 }, 5*time.Second, time.Millisecond)
	})
	t.Run("slices outstanding", func(t *testing.T) {
		near, far := neighbours(t, 1<<20)
		thaw := freeze(far.tr.(*Transport), isResponder)
		s := near.slice(transport.Write, 0, 0, 1<<20)
		require.Equal(t, 1, near.tr.Submit([]*transport.Slice{s}))
		near.tr.Detach(near.link)
		near.awaitEnds(t, 5*time.Second, s)
		require.NotNil(t, near.ends[s].Err)
		require.True(t, far.tr.(*Transport).attachments.ofPeer(nil)[0].hasLeft())
		thaw()
		require.Eventually(t, func() bool { return attached(far) == 0 }, 5*time.Second, time.Millisecond)
	})
}

// mute is a host of which no call comes through while it is cut off.
type mute struct {
	*endpoint
	cut  atomic.Bool
	last atomic.Int64 // clock.Time of the last call that did not
}

func (m *mute) Call(ctx context.Context, peer transport.Peer, message []byte) ([]byte, error) {
	if m.cut.Load() {
		m.last.Store(int64(clock.Now()))
		return nil, errs.New(errs.Timeout, "test", "cut off").WithScope(errs.ScopeLink, errs.SidePath)
	}
	return m.endpoint.Call(ctx, peer, message)
}

// TestADetachedLinkAsksUntilItHasAnAnswer: bytes of a WRITE lie in the peer's socket, and nobody can be asked. They may
// still land, so the slice has no end before the peer says that they do not, or this end closes.
func TestADetachedLinkAsksUntilItHasAnAnswer(t *testing.T) {
	const size = 4096
	for _, closes := range []bool{false, true} {
		far := newTestEndpoint(t, Settings{Lease: time.Hour})
		memory := mapping(t, size)
		_, d, err := far.tr.Register(context.Background(), regionOf(memory))
		require.NoError(t, err)
		m := &mute{endpoint: newTestEndpoint(t, Settings{})}
		require.NoError(t, m.tr.Close(context.Background()))
		m.tr, err = Factory{}.Open(context.Background(), Settings{}, m, m)
		require.NoError(t, err)
		near := &couple{endpoint: m.endpoint, memory: mapping(t, size)}
		near.key, _, err = near.tr.Register(context.Background(), regionOf(near.memory))
		require.NoError(t, err)
		near.link, err = near.tr.Attach(far.self)
		require.NoError(t, err)
		near.remote, err = near.tr.Import(near.link, d)
		require.NoError(t, err)
		near.await(t, "a rail", 5*time.Second, func() bool { return len(near.rails) == 1 })
		thaw := freeze(far.tr.(*Transport), isResponder)
		s := near.slice(transport.Write, 0, 0, size)
		require.Equal(t, 1, near.tr.Submit([]*transport.Slice{s}))
		m.cut.Store(true)
		detached := clock.Now()
		near.tr.Detach(near.link)
		require.Eventually(t, func() bool { return clock.Time(m.last.Load()) > detached.Add(1200*time.Millisecond) },
			10*time.Second, time.Millisecond, "it goes on asking")
		require.Nil(t, near.end(s).Slice, "nobody knows whether it lands")
		if closes {
			require.NoError(t, near.tr.Close(context.Background()))
			require.Equal(t, errs.PeerUnreachable, near.end(s).Err.Code)
			thaw()
			continue
		}
		m.cut.Store(false)
		near.awaitEnds(t, 5*time.Second, s)
		clear(memory)
		thaw()
		attached := func() bool { return len(far.tr.(*Transport).attachments.ofPeer(nil)) > 0 }
		require.Eventually(t, func() bool { return !attached() }, 5*time.Second, time.Millisecond)
		require.Equal(t, make([]byte, size), memory, "it has its end")
	}
}

// TestADetachedLinkAsksEverLessOften: its peer may never answer, and there may be any number of such. An answer that
// can be had again comes no later than a sixteenth of the outage.
func TestADetachedLinkAsksEverLessOften(t *testing.T) {
	l := newTestEndpoint(t, Settings{}).tr.(*Transport).newLink(visitor)
	lane := &initiatorLane{}
	lane.life.init(stateInDoubt, &initiatorMoves)
	l.lanes[1] = lane
	begin := clock.Now()
	l.state, l.leaveBy = linkLeaving, begin
	asked := 0
	for now := begin; now < begin.Add(24*time.Hour); asked++ {
		next := l.resolve(now)
		require.LessOrEqual(t, next.Sub(now), max(askMax, kit.Patience(now.Sub(begin))))
		now = next
	}
	require.Less(t, asked, 24*60*2+200)
	l.state = linkTrying
	due := l.askDue
	require.LessOrEqual(t, l.resolve(due).Sub(due), askMax, "a link that is needed asks on")
}

// TestALaneMayEndWhileItsGoodbyeIsWritten: the socket is full, its peer ends, and a worker closes the lane. For the
// race detector.
func TestALaneMayEndWhileItsGoodbyeIsWritten(t *testing.T) {
	tr := newTestEndpoint(t, Settings{}).tr.(*Transport)
	l := strangerLane(t, tr)
	defer func() { require.NoError(t, unix.Close(l.other)) }()
	l.admitted(t, 1)
	for _, err := unix.Write(l.fd, make([]byte, 4096)); err == nil; {
		_, err = unix.Write(l.fd, make([]byte, 4096))
	}
	l.writeMu.Lock() // the goroutine that writes the goodbye comes this far
	go tr.Disconnect(visitor.ID)
	require.Eventually(t, func() bool { return l.life.state() == stateParting }, 5*time.Second, time.Millisecond)
	l.writeMu.Unlock()
	<-time.After(5 * time.Millisecond) // it can only pass by mistake, never fail by one
	l.closeLane()
}
