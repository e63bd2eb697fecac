package tests

import (
	"context"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/transport"
)

// A peer that was closed and opened again is the same peer to the receiver. Notifications after the second opening
// arrive too, each once and in order.
func TestNotificationsArriveAfterThePeerWasOpenedAgain(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		here, there := w.open(t, nil), w.open(t, nil)
		for i := range 5 {
			s, err := here.OpenSegment(context.Background(), there.Address())
			require.NoError(t, err)
			for _, text := range []string{"a", "b"} {
				b, err := here.Notify(s, engine.Note{Name: []byte(text), Message: []byte{byte(i)}},
					clock.Now().Add(patience))
				require.NoError(t, err)
				require.Equal(t, dispatch.Completed, ended(t, here, b).State)
			}
			require.NoError(t, here.CloseSegment(s))
			var got []string
			there.NotesDrain(func(n *engine.Notification) bool {
				require.Equal(t, []byte{byte(i)}, n.Message)
				got = append(got, string(n.Name))
				return true
			})
			require.Equal(t, []string{"a", "b"}, got, "opening %d", i)
		}
	})
}

// An engine that is open under two addresses is one to the receiver. Each of the notifications that are sent under both
// at once arrives, once and in order.
func TestNotificationsUnderTwoAddressesArriveOnce(t *testing.T) {
	const n = 300
	here, there := openTCP(t, nil), openTCP(t, nil)
	_, port, err := net.SplitHostPort(there.Address())
	require.NoError(t, err)
	var senders sync.WaitGroup
	for _, host := range []string{"127.0.0.1", "localhost"} {
		s, err := here.OpenSegment(context.Background(), net.JoinHostPort(host, port))
		require.NoError(t, err)
		senders.Go(func() {
			var sent []dispatch.BatchID
			for i := range n {
				b, err := here.Notify(s, engine.Note{Name: []byte(host), Message: []byte(strconv.Itoa(i))}, 0)
				assert.NoError(t, err)
				sent = append(sent, b)
			}
			for _, b := range sent {
				assert.Equal(t, dispatch.Completed, here.Wait(b, patience))
			}
		})
	}
	senders.Wait()
	next := map[string]int{}
	there.NotesDrain(func(note *engine.Notification) bool {
		require.Equal(t, strconv.Itoa(next[string(note.Name)]), string(note.Message))
		next[string(note.Name)]++
		return true
	})
	require.Equal(t, map[string]int{"127.0.0.1": n, "localhost": n}, next)
}

// A peer that reads no notifications takes none beyond its queue. A WRITE with one ends in time nevertheless: at its
// deadline, or when it is cancelled.
func TestDeadlinesAndCancelsHoldForNotifications(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		const queue, limit, slack = 4, 100 * time.Millisecond, 2 * time.Second
		here, there := w.open(t, nil), w.open(t, map[string]any{"notification_queue": queue})
		own, theirs := memory(t, 4096), memory(t, 4096)
		offer(t, here, own, "")
		offer(t, there, theirs, "kv")
		at := segment(t, here, there, "kv")
		for range queue {
			id, err := here.Notify(at, engine.Note{Name: []byte("n")}, 0)
			require.NoError(t, err)
			require.Equal(t, dispatch.Completed, ended(t, here, id).State)
		}
		write := func(deadline clock.Time) dispatch.BatchID {
			c, err := here.Begin(engine.Terms{Op: transport.Write, Deadline: deadline})
			require.NoError(t, err)
			require.NoError(t, c.AddRange(address(own), engine.Remote{Segment: at}, 4096))
			id, err := c.Commit(&engine.Note{Name: []byte("n")})
			require.NoError(t, err)
			return id
		}
		first, second := write(clock.Now().Add(limit)), write(0)
		require.Equal(t, dispatch.TimedOut, here.Wait(first, limit+slack))
		n, err := here.Cancel(second, -1)
		require.NoError(t, err)
		require.NotZero(t, n)
		require.Equal(t, dispatch.Canceled, here.Wait(second, slack))
	})
}
