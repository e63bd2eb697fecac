package tcp

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// forget takes the errors that a test asked for out of the log, and returns them.
func (l *errorLog) forget() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := string(l.text)
	l.text = nil
	return text
}

// requirePanic waits until the rail has gone down by a panic and is back, and returns its next generation.
func (c *couple) requirePanic(t *testing.T, downs int) {
	t.Helper()
	c.await(t, "the rail to go down and come back", 5*time.Second,
		func() bool { return c.downs == downs && len(c.rails) == 1 })
	c.change(func() {
		require.Equal(t, errs.Internal, c.cause.Code)
		require.Equal(t, errs.ScopeRail, c.cause.Scope)
		require.Contains(t, c.cause.Error(), "panic: on purpose")
	})
	require.Contains(t, c.errors.forget(), "on purpose")
	s := c.slice(transport.Write, 0, 0, 1<<20)
	require.Equal(t, 1, c.tr.Submit([]*transport.Slice{s}))
	c.awaitEnds(t, 5*time.Second, s)
	require.Nil(t, c.ends[s].Err)
}

// A reader that panics leaves neither its lock nor fewer workers behind.
func TestAPanicOfAReaderEndsItsLane(t *testing.T) {
	near, _ := neighbours(t, 1<<20)
	l := near.tr.(*Transport).links.Lookup(near.link)
	for i := range near.tr.(*Transport).settings.Workers + 1 {
		set := near.tr.(*Transport).setOf(near.rails[0].Rail)
		var done func(clock.Time, *errs.Error)
		done = func(_ clock.Time, err *errs.Error) {
			if err == nil {
				panic("on purpose")
			}
			if near.tr.(*Transport).setOf(set.id()) == set { // its limit came first, on the link's goroutine
				l.ping(set, done)
			}
		}
		l.ping(set, done) // a Probe of lanes that look stuck would dial
		near.requirePanic(t, i+1)
	}
}

// unwilling panics when it is to write.
type unwilling struct{ *initiatorLane }

func (unwilling) gather(*transmitter) { panic("on purpose") }

func TestAPanicOfAWriterEndsItsLane(t *testing.T) {
	e := newTestEndpoint(t, Settings{})
	lane, _ := handLane(t, e.tr.(*Transport))
	lane.lane = unwilling{lane}
	require.True(t, lane.post(header{kind: kindPing}))
	lane.pump(submitBudget)
	require.True(t, lane.isDown())
	require.Contains(t, lane.endCause().Error(), "panic: on purpose")
	require.Contains(t, e.errors.forget(), "on purpose")
	lane.link.settleLane(lane, e.tr.(*Transport).newWorker()) // no lock is held any more
}

func TestAPanicOnALinksGoroutineEndsItsRails(t *testing.T) {
	near, far := neighbours(t, 4<<20)
	l := near.tr.(*Transport).links.Lookup(near.link)
	thaw := freeze(far.tr.(*Transport), isResponder)
	s := near.slice(transport.Read, 0, 0, 1<<20)
	require.Equal(t, 1, near.tr.Submit([]*transport.Slice{s}))
	var behind sync.WaitGroup
	behind.Add(1)
	l.runOnLink(func(clock.Time) {
		l.runOnLink(func(clock.Time) { panic("on purpose") })
		l.runOnLink(func(clock.Time) { behind.Done() })
	})
	behind.Wait()
	near.awaitEnds(t, 5*time.Second, s)
	require.Contains(t, near.ends[s].Err.Error(), "panic: on purpose")
	thaw()
	near.requirePanic(t, 1)
}

// fragile is a host and core of which a call panics, once.
type fragile struct {
	*endpoint
	call, complete, place atomic.Bool
}

func breakOnce(flag *atomic.Bool) {
	if flag.Swap(false) {
		panic("on purpose")
	}
}

func (f *fragile) Call(ctx context.Context, peer transport.Peer, message []byte) ([]byte, error) {
	breakOnce(&f.call)
	return f.endpoint.Call(ctx, peer, message)
}

func (f *fragile) Complete(list []transport.Completion) {
	breakOnce(&f.complete)
	f.endpoint.Complete(list)
}

// A call and a dial that panic are failures like others, and the next try follows. A lane of which the core panicked
// over a completion ends.
func TestAPanicOfWhatATransportCallsIsAFailure(t *testing.T) {
	far, e := newTestEndpoint(t, Settings{}), newTestEndpoint(t, Settings{})
	_, d, err := far.tr.Register(context.Background(), regionOf(mapping(t, 2<<20)))
	require.NoError(t, err)
	f := &fragile{endpoint: e}
	f.call.Store(true)
	f.place.Store(true)
	require.NoError(t, e.tr.Close(context.Background()))
	e.tr, err = Factory{Interface: func(netip.Addr) string { breakOnce(&f.place); return "" }}.Open(
		context.Background(), Settings{}, f, f)
	require.NoError(t, err)
	c := &couple{endpoint: e, memory: mapping(t, 2<<20)}
	c.key, _, err = c.tr.Register(context.Background(), regionOf(c.memory))
	require.NoError(t, err)
	c.link, err = c.tr.Attach(far.self)
	require.NoError(t, err)
	c.remote, err = c.tr.Import(c.link, d)
	require.NoError(t, err)
	c.requirePanic(t, 1)
	require.False(t, f.call.Load() || f.place.Load())

	f.complete.Store(true)
	lost := c.slice(transport.Write, 0, 1<<20, 1<<10)
	require.Equal(t, 1, c.tr.Submit([]*transport.Slice{lost}))
	c.requirePanic(t, 2)
	require.NotContains(t, c.ends, lost, "the core that lost it is not told again")
}

func TestAPanicInADialClosesItsSockets(t *testing.T) {
	e := newTestEndpoint(t, Settings{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	d := &dial{t: e.tr.(*Transport), local: netip.MustParseAddr("127.0.0.1"), // without a link
		remote: l.Addr().(*net.TCPAddr).AddrPort()}
	require.ErrorContains(t, d.bringUp(), "panic: ")
	require.Empty(t, d.fds)
	require.Contains(t, e.errors.forget(), "nil pointer")
}
