package tcp

import (
	"context"
	"encoding/binary"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/transport"
)

// client is one of several peers of a responder in this process.
type client struct {
	*couple
	slices []*transport.Slice
}

// stopWorkers ends a transport's workers; the test serves lanes by hand until the returned function starts them again.
func stopWorkers(t *testing.T, tr *Transport) (restart func()) {
	awaitProofs(tr)
	_, err := unix.Write(tr.stopFd, binary.NativeEndian.AppendUint64(nil, 1))
	require.NoError(t, err)
	tr.workers.Wait()
	var b [8]byte
	_, err = unix.Read(tr.stopFd, b[:])
	require.NoError(t, err)
	return func() {
		tr.workers.Add(1)
		go tr.work()
	}
}

// newClient attaches an endpoint to a responder; d describes its region.
func newClient(t *testing.T, s Settings, to transport.Peer, d transport.Descriptor) *client {
	c := &client{couple: &couple{endpoint: newTestEndpoint(t, s)}}
	c.memory = mapping(t, 64<<10)
	var err error
	c.key, _, err = c.tr.Register(context.Background(), regionOf(c.memory))
	require.NoError(t, err)
	c.link, err = c.tr.Attach(to)
	require.NoError(t, err)
	c.remote, err = c.tr.Import(c.link, d)
	require.NoError(t, err)
	c.await(t, "rails", 5*time.Second, func() bool { return len(c.rails) >= len(s.Addresses) })
	return c
}

// send submits a page of a class over a rail.
func (c *client) send(t *testing.T, op transport.Op, class uint8, rail, page int) {
	s := c.slice(op, rail, page<<12, 1<<12)
	s.Class = class
	require.Equal(t, 1, c.tr.Submit([]*transport.Slice{s}))
	c.slices = append(c.slices, s)
}

// served counts the client's slices that are answered. It waits for want, and finds out if there are more.
func (c *client) served(t *testing.T, want int) {
	t.Helper()
	count := func() (n int) {
		for _, s := range c.slices {
			if _, ended := c.ends[s]; ended {
				n++
			}
		}
		return n
	}
	c.await(t, "answers", 5*time.Second, func() bool { return count() >= want })
	c.change(func() { require.Equal(t, want, count()) })
}

// arrived waits until that number of a responder's lanes have something to read.
func arrived(t *testing.T, tr *Transport, lanes int) {
	t.Helper()
	for end := clock.Now().Add(5 * time.Second); len(waiting(tr)) != lanes; runtime.Gosched() {
		require.Less(t, clock.Now(), end, "%d of %d lanes have something", len(waiting(tr)), lanes)
	}
}

// A saturating peer has something on every LOW lane, all the time, and another peer sends HIGH. It is served first,
// and its later slices are served behind one turn of the others.
func TestHighOfOnePeerWaitsForOneTurnOfAnothers(t *testing.T) {
	for _, op := range []transport.Op{transport.Read, transport.Write} {
		t.Run(op.String(), func(t *testing.T) {
			s := Settings{Addresses: []string{"127.0.0.1", "127.0.0.2", "127.0.0.3"}, Lanes: 1}
			owner := newTestEndpoint(t, s)
			tr := owner.tr.(*Transport)
			_, d, err := tr.Register(context.Background(), regionOf(mapping(t, 64<<10)))
			require.NoError(t, err)
			flood, quick := newClient(t, s, owner.self, d), newClient(t, s, owner.self, d)
			restart := stopWorkers(t, tr)
			t.Cleanup(restart) // before the endpoints close
			w := tr.newWorker()

			for rail := range 3 {
				flood.send(t, op, uint8(1+rail%2), rail, rail)
			}
			quick.send(t, op, 0, 1, 3)
			arrived(t, tr, 4)
			require.False(t, tr.urgent(w))
			quick.served(t, 1)
			arrived(t, tr, 3)
			flood.served(t, 0)

			quick.send(t, op, 0, 2, 4)
			arrived(t, tr, 4)
			more, stop := tr.bulkTurn(w, false)
			require.True(t, more && !stop)
			quick.served(t, 2)
			arrived(t, tr, 2)
			flood.served(t, 1)

			for left := range 2 {
				more, _ = tr.bulkTurn(w, false)
				require.True(t, more)
				flood.served(t, 2+left)
			}
			more, _ = tr.bulkTurn(w, false)
			require.False(t, more)

			// A worker that waits hears of both.
			flood.send(t, op, 2, 0, 5)
			quick.send(t, op, 0, 0, 6)
			arrived(t, tr, 2)
			for i := 0; len(waiting(tr)) > 0; i++ {
				require.Less(t, i, 4)
				require.False(t, tr.round(w, 0))
			}
			flood.served(t, 4)
			quick.served(t, 3)
		})
	}
}

// waiting lists the responder's lanes with something to read.
func waiting(tr *Transport) (list []*conn) {
	for _, c := range tr.conns.All() {
		if n, err := unix.IoctlGetInt(c.fd, unix.TIOCINQ); isResponder(c) && err == nil && n > 0 {
			list = append(list, c)
		}
	}
	return list
}

// TestALaneThatJoinsItsGroupLosesNoEvents serves a greeting for the second epoll among more events than one look
// brings.
func TestALaneThatJoinsItsGroupLosesNoEvents(t *testing.T) {
	e := newTestEndpoint(t, Settings{})
	tr := e.tr.(*Transport)
	var guests []net.Conn
	for range 5 {
		guests = append(guests, e.guest(t))
	}
	t.Cleanup(stopWorkers(t, tr))
	w := tr.newWorker()
	before := tr.conns.Len()
	o := e.offerTo(t, visitor)
	late, seen := e.call(t, o, 1, 1)
	for end := clock.Now().Add(5 * time.Second); tr.conns.Len() == before; runtime.Gosched() {
		require.Less(t, clock.Now(), end, "nobody was accepted")
		require.False(t, tr.urgent(w))
	}
	proof, err := seen.answer(&o.secret, readChallenge(t, late))
	require.NoError(t, err)
	_, err = late.Write(proof)
	require.NoError(t, err)
	for _, c := range guests {
		_, err := c.Write(appendFrame(nil, header{kind: kindPing, seq: 7}))
		require.NoError(t, err)
	}
	arrived(t, tr, 1+len(guests)) // the proof, which came first, and a ping each
	for range 2 + len(guests) {
		require.False(t, tr.urgent(w))
	}
	require.Empty(t, waiting(tr))
	for _, c := range guests {
		require.Equal(t, header{kind: kindPong, seq: 7}, readHeader(t, c))
	}
}

// TestAWorkerPassesTheSchedulerBeforeItWaits: the runtime's monitor leaves it alone then.
func TestAWorkerPassesTheSchedulerBeforeItWaits(t *testing.T) {
	tr := newTestEndpoint(t, Settings{}).tr.(*Transport)
	w, before := tr.newWorker(), clock.Now()
	tr.round(w, 0)
	require.False(t, w.passes.Pass(before), "it has passed since")
}
