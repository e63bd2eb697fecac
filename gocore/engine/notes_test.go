package engine

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

func newTestNotes(t testing.TB, limit int) *notes {
	q, err := newNotes(limit, 64<<20, func(transport.ID) bool { return false })
	require.NoError(t, err)
	t.Cleanup(q.close)
	return q
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

// Others keep the queue full but for one place at a time: a message of many finds its way all the same.
func TestAFullQueueTakesThePartOfAMessageForWhichItHasRoom(t *testing.T) {
	q := newTestNotes(t, 3)
	many, other := message(1, "a", "b", "c"), transport.Peer{ID: transport.NumberedID(2)}
	require.NoError(t, q.take(other, message(1, "x", "y", "z")))
	require.Equal(t, errs.TooManyRequests, errs.CodeOf(q.take(sender1, many)))
	for _, left := range []int{2, 1, 0} {
		require.Len(t, read(q, 1), 1)
		require.Equal(t, left > 0, q.take(sender1, many) != nil, "it comes again until all of it was taken")
		require.Equal(t, 3, q.wait(0))
	}
	require.Equal(t, []string{"a", "b", "c"}, read(q, 10))
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
		read(q, 1)
	}
	require.LessOrEqual(t, len(q.last), sendersMax)
}

// A sender that is connected may be in the middle of a repetition: its number is never forgotten, or the repetition
// would be taken twice.
func TestOnlySendersThatAreNotConnectedAreForgotten(t *testing.T) {
	q := newTestNotes(t, 10*sendersMax)
	q.connected = func(id transport.ID) bool { return id == sender1.ID }
	require.NoError(t, q.take(sender1, message(1, "once")))
	require.Equal(t, []string{"once"}, read(q, 1))
	for i := range 2 * sendersMax {
		require.NoError(t, q.take(transport.Peer{ID: transport.NumberedID(uint64(i + 2))}, message(1, "a")))
		read(q, 1)
	}
	require.NoError(t, q.take(sender1, message(1, "once")), "a repetition is taken as done")
	require.Empty(t, read(q, 1))
	q.connected = func(transport.ID) bool { return true }
	err := q.take(transport.Peer{ID: transport.NumberedID(1 << 40)}, message(1, "a"))
	require.Equal(t, errs.TooManyRequests, errs.CodeOf(err), "the stranger hears of it")
	require.LessOrEqual(t, len(q.last), sendersMax)
}

// A number that no engine reaches is refused, and the numbers below it stay good.
func TestAJumpOfNumbersIsRefused(t *testing.T) {
	q := newTestNotes(t, 100)
	require.NoError(t, q.take(sender1, message(7, "a")))
	for _, number := range []uint64{1<<64 - 1, 1<<63 + 1, noteJump + 8} {
		require.Equal(t, errs.Protocol, errs.CodeOf(q.take(sender1, message(number, "far"))), "%d", number)
	}
	require.NoError(t, q.take(sender1, message(8, "b")))
	require.Equal(t, []string{"a", "b"}, read(q, 10))
	for _, numbers := range [][2]uint64{{5, 5}, {5, 4}, {0, 1}} {
		m := encodeNotes(nil, []*note{{number: numbers[0]}, {number: numbers[1]}})
		require.Equal(t, errs.Protocol, errs.CodeOf(q.take(sender1, m)), "%v", numbers)
	}
}

// The queue is bounded in bytes. One sender fills an eighth of it and is told so, others still find room.
func TestOneSenderFillsAnEighthOfTheQueue(t *testing.T) {
	for name, each := range map[string]struct{ size, share, limit int }{
		"bytes":  {64 << 10, 8 << 20 / (64<<10 + noteCost + 1), 1 << 16},
		"number": {0, 1 << 13, 1 << 16},
		"few":    {0, 64, 64},
	} {
		t.Run(name, func(t *testing.T) {
			q, text := newTestNotes(t, each.limit), strings.Repeat("x", each.size)
			fill := func(from transport.Peer) (n int) {
				for n < 1<<17 && q.take(from, message(uint64(n+1), text)) == nil {
					n++
				}
				return n
			}
			require.Equal(t, each.share, fill(sender1))
			err := q.take(sender1, message(uint64(each.share+1), text))
			require.Equal(t, errs.TooManyRequests, errs.CodeOf(err))
			total := each.share
			for i := range uint64(20) {
				total += fill(transport.Peer{ID: transport.NumberedID(i + 2)})
			}
			require.LessOrEqual(t, total, each.limit)
			require.LessOrEqual(t, q.bytes, q.bytesMax)
			read(q, 1)
			require.NoError(t, q.take(sender1, message(uint64(each.share+1), text)), "what was refused comes again")
			read(q, total)
			require.Zero(t, q.bytes)
			require.Equal(t, uint64(each.share+1), q.last[sender1.ID].number)
			require.Zero(t, q.last[sender1.ID].waits+q.last[sender1.ID].bytes)
		})
	}
}

func FuzzNotificationsFromHostilePeers(f *testing.F) {
	f.Add(message(1, "a", "bc"))
	f.Add([]byte("\x01\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01\x01\x02\x00\x00\x00ntme")) // with a trace
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
			again = append(again, &note{number: numbers[i], name: n.Name, trace: string(n.Trace),
				message: n.Message})
		}
		require.Equal(t, data, encodeNotes(nil, again))
	})
}
