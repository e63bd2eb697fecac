package engine

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

func newTestNotes(t testing.TB, limit int) *notes {
	s, err := newSignal()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.close()) })
	return newNotes(limit, s)
}

func message(first uint64, texts ...string) []byte {
	var list []*note
	for i, text := range texts {
		list = append(list, &note{number: first + uint64(i), name: []byte("n"), message: []byte(text)})
	}
	return encodeNotes(nil, list)
}

func read(q *notes, most int) (texts []string) {
	q.drain(func(n *Notification) bool {
		if len(texts) == most {
			return false
		}
		texts = append(texts, string(n.Message))
		return true
	})
	return texts
}

var sender1 = transport.Peer{Address: "a", ID: transport.NumberedID(1)}

func TestNotificationsAreTakenOnceInOrderWhicheverWayTheyCome(t *testing.T) {
	q := newTestNotes(t, 100)
	require.NoError(t, q.take(sender1, message(1, "a", "b")))
	require.NoError(t, q.take(sender1, message(1, "a", "b")), "a repetition is taken as done")
	require.NoError(t, q.take(sender1, message(2, "b", "c")), "a part of it is new")
	require.NoError(t, q.take(transport.Peer{Address: "a", ID: transport.NumberedID(2)}, message(1, "x")),
		"another incarnation counts anew")
	require.Equal(t, []string{"a", "b", "c", "x"}, read(q, 10))
}

func TestAFullQueueTakesAllOfAMessageOrNothing(t *testing.T) {
	q := newTestNotes(t, 3)
	require.NoError(t, q.take(sender1, message(1, "a", "b")))
	err := q.take(sender1, message(3, "c", "d"))
	require.Equal(t, errs.TooManyRequests, errs.CodeOf(err))
	require.Equal(t, []string{"a"}, read(q, 1))
	require.NoError(t, q.take(sender1, message(3, "c", "d")))
	require.Equal(t, []string{"b", "c", "d"}, read(q, 10))
}

func TestReadingALittleAtATimeKeepsOrderAndReadiness(t *testing.T) {
	q := newTestNotes(t, 1000)
	next := 0
	for i := range 300 {
		require.NoError(t, q.take(sender1, message(uint64(3*i+1), fmt.Sprint(3*i), fmt.Sprint(3*i+1),
			fmt.Sprint(3*i+2))))
		for _, text := range read(q, 1+i%4) {
			require.Equal(t, fmt.Sprint(next), text)
			next++
		}
	}
	for _, text := range read(q, 1000) {
		require.Equal(t, fmt.Sprint(next), text)
		next++
	}
	require.Equal(t, 900, next)
	require.Zero(t, q.wait(0))
}

func TestWaitingForANotificationEndsWithItOrInTime(t *testing.T) {
	q := newTestNotes(t, 10)
	require.Zero(t, q.wait(time.Millisecond))
	done := make(chan int)
	go func() { done <- q.wait(time.Minute) }()
	require.NoError(t, q.take(sender1, message(1, "a")))
	require.Equal(t, 1, <-done)
}

func TestTheNumberOfRememberedSendersIsBounded(t *testing.T) {
	q := newTestNotes(t, 10*sendersMax)
	for i := range 2 * sendersMax {
		require.NoError(t, q.take(transport.Peer{ID: transport.NumberedID(uint64(i + 1))}, message(1, "a")))
	}
	require.LessOrEqual(t, len(q.last), sendersMax)
}

func FuzzNotificationsFromHostilePeers(f *testing.F) {
	f.Add(message(1, "a", "bc"))
	f.Add([]byte{})
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, data []byte) {
		list, numbers, err := decodeNotes(data, "peer")
		if err != nil {
			require.Equal(t, errs.Protocol, errs.CodeOf(err))
			return
		}
		require.Len(t, numbers, len(list))
		var again []*note
		for i, n := range list {
			again = append(again, &note{number: numbers[i], name: n.Name, message: n.Message})
		}
		require.Equal(t, data, encodeNotes(nil, again))
	})
}
