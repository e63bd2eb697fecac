package delegate

import (
	"bytes"
	"context"
	"encoding/binary"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// serve gives the owner a message of a peer.
func serve(t *testing.T, owner *side, from transport.Peer, m *message) *answer {
	b, err := owner.open.Serve(t.Context(), from, m.encode(nil))
	require.NoError(t, err)
	a, failure := readAnswer(b)
	require.Nil(t, failure)
	return a
}

// The messages of orders that have ended come again, as those of calls that their sender gave up on do. None of them is
// carried out, or its bytes would land in memory that is used again.
func TestALateMessageCarriesNothingOutAgain(t *testing.T) {
	asker, owner, slice := pair(t)
	var mu sync.Mutex
	var late []*message
	asker.through(func(b []byte) bool {
		m, err := decode(b)
		require.Nil(t, err)
		mu.Lock()
		defer mu.Unlock()
		if m.kind == begin {
			late = append(late, m)
		}
		return false
	}, nil)
	const n = 20
	newest := map[uint64]uint64{}
	for range n {
		require.Equal(t, 1, asker.open.Submit([]*transport.Slice{slice()}))
		require.Nil(t, asker.end().Err)
	}
	require.Len(t, late, n)
	for _, m := range late {
		newest[m.lane] = max(newest[m.lane], m.seq)
	}
	for _, m := range late {
		for _, kind := range []uint8{begin, ask, cancel} {
			m.kind = kind
			a := serve(t, owner, asker.self, m)
			require.EqualValues(t, ended, a.state)
			if m.seq < newest[m.lane] {
				require.Equal(t, errs.Protocol, a.err.Code)
			} else {
				require.Nil(t, a.err, "the newest has ended well, also for somebody that takes it back")
			}
		}
	}
	require.Equal(t, n, owner.count())
}

// An order that nobody knows is begun by its sender again: the question for it begins none.
func TestAQuestionBeginsNothing(t *testing.T) {
	asker, owner, _ := pair(t)
	a := serve(t, owner, asker.self, &message{kind: ask, lane: 7, seq: 1})
	require.EqualValues(t, unknown, a.state)
	require.Empty(t, owner.open.(*delegate).desk.lanes)
}

// Memory that is lent to a peer is there for our orders, and for those of nobody else.
func TestAnOrderNeverReachesLentMemory(t *testing.T) {
	asker, owner, slice := pair(t)
	lent, _, err := owner.open.Register(t.Context(), mem.Region{Kind: mem.Host, Addr: 1 << 20, Size: 1 << 20})
	require.NoError(t, err)
	s := slice()
	s.RemoteKey = transport.RemoteKey(lent)
	require.Equal(t, 1, asker.open.Submit([]*transport.Slice{s}))
	require.Equal(t, errs.AddressNotRegistered, asker.end().Err.Code)
	require.Zero(t, owner.count())
}

// A revocation ends the orders for its region, of its peer, from before its epoch; others go on.
func TestARevocationLeavesOtherOrders(t *testing.T) {
	stranger := transport.Peer{ID: transport.ID{9}}
	for name, revoke := range map[string]func(owner *side, one, other transport.LocalKey) error{
		"another region": func(owner *side, _, other transport.LocalKey) error {
			return owner.open.Revoke(context.Background(), other, nil, transport.ForGood)
		},
		"another peer": func(owner *side, one, _ transport.LocalKey) error {
			return owner.open.Revoke(context.Background(), one, &stranger, transport.ForGood)
		},
		"an epoch of before": func(owner *side, one, _ transport.LocalKey) error {
			return owner.open.Revoke(context.Background(), one, nil, 4)
		},
	} {
		t.Run(name, func(t *testing.T) {
			asker, owner, slice := pair(t)
			release := owner.holding()
			other, _, err := owner.open.Register(t.Context(), mem.Region{Kind: mem.Cuda, Addr: 1 << 31, Size: 1 << 20})
			require.NoError(t, err)
			s := slice()
			s.Epoch = 4
			require.Equal(t, 1, asker.open.Submit([]*transport.Slice{s}))
			owner.awaitOrders(1)
			require.NoError(t, revoke(owner, transport.LocalKey(s.RemoteKey), other))
			release()
			require.Nil(t, asker.end().Err)
			require.Zero(t, owner.canceled)
		})
	}
}

// A fence is told to the peers that it is for, and believed from the owner of the region alone.
func TestAFenceIsHeardFromItsOwnerByThoseThatItIsFor(t *testing.T) {
	asker, owner, slice := pair(t)
	require.Equal(t, 1, asker.open.Submit([]*transport.Slice{slice()}))
	require.Nil(t, asker.end().Err)
	key := slice().RemoteKey
	stranger := transport.Peer{ID: transport.ID{9}, Address: "stranger"}
	m := &message{kind: fenced, lane: uint64(key), seq: 7}
	_, err := asker.open.Serve(t.Context(), stranger, m.encode(nil))
	require.NoError(t, err)
	require.NoError(t, owner.open.Revoke(t.Context(), transport.LocalKey(key), &stranger, 5))
	require.Empty(t, asker.fences)
	require.NoError(t, owner.open.Revoke(t.Context(), transport.LocalKey(key), nil, 6))
	require.Equal(t, []transport.Epoch{6}, asker.fences)
}

// A peer may read the description of a region, and greet its owner behind a fence of it. Its orders would be refused
// for good with the epoch of before.
func TestAPeerThatGreetsHearsOfTheFenceOfBefore(t *testing.T) {
	asker, owner, slice := pair(t)
	key := slice().RemoteKey
	fences := func() []transport.Epoch {
		asker.mu.Lock()
		defer asker.mu.Unlock()
		return slices.Clone(asker.fences)
	}
	d := &owner.open.(*delegate).desk
	greeted := func() bool { return len(d.listening(nil)) == 1 }
	require.Eventually(t, greeted, patience, time.Millisecond)
	d.mu.Lock()
	clear(d.listeners)
	d.mu.Unlock()
	require.NoError(t, owner.open.Revoke(t.Context(), transport.LocalKey(key), nil, 6))
	require.Empty(t, fences())
	for range 2 {
		serve(t, owner, asker.self, &message{kind: hello, seq: 1})
	}
	require.Eventually(t, func() bool { return len(fences()) == 1 }, patience, time.Millisecond)
	require.Equal(t, []transport.Epoch{6}, fences())
}

func TestTheListenersOfFencesAreBounded(t *testing.T) {
	owner := newSide(t, 2)
	var last transport.ID
	for i := range uint64(listenersMost + 100) {
		binary.LittleEndian.PutUint64(last[:], i+1)
		require.EqualValues(t, unknown, serve(t, owner, transport.Peer{ID: last}, &message{kind: hello, seq: 1}).state)
	}
	d := &owner.open.(*delegate).desk
	require.Len(t, d.listeners, listenersMost)
	require.Contains(t, d.listeners, last, "the newest is one of them")
}

// A lane goes when no message of its order can come any more. It is the oldest of its own peer, or of any one where the
// table is full. Lanes of running orders stay.
func TestALaneIsForgottenWhenNoMessageOfItComesAnyMore(t *testing.T) {
	var d desk
	begins := func(from byte, lane uint64, ends bool) bool {
		run := func(_ context.Context, s *served) {
			if ends {
				s.finish(answer{state: ended})
			}
		}
		_, now := d.take(transport.ID{from, 1}, &message{kind: begin, lane: lane, seq: 1}, run)
		return now.state != busy
	}
	ages := func(from byte, lane uint64, by time.Duration) {
		s := d.lanes[laneKey{transport.ID{from, 1}, lane}]
		s.since = s.since.Add(-by)
	}
	known := func(from byte, lane uint64) bool { return d.lanes[laneKey{transport.ID{from, 1}, lane}] != nil }

	require.True(t, begins(2, 0, true))
	ages(2, 0, time.Hour)
	for lane := range uint64(lanesMost) {
		require.True(t, begins(1, lane, lane > 0))
		ages(1, lane, keptFor-time.Minute)
	}
	require.False(t, begins(1, 100, true), "messages of its orders may come yet")
	ages(1, 0, time.Hour) // is running
	order := []uint64{6, 1, 9, 3, 12, 5, 2, 11}
	for i, lane := range order {
		ages(1, lane, time.Hour-time.Duration(i)*time.Minute)
	}
	for _, oldest := range order {
		require.True(t, begins(1, 100+oldest, true))
		require.False(t, known(1, oldest))
	}
	require.False(t, begins(1, 200, true))
	require.True(t, known(1, 0))
	require.True(t, known(2, 0), "a lane of a peer that has its share takes nobody else's place")
	require.Len(t, d.lanes, lanesMost+1)

	for i := range lanesAll - lanesMost - 1 {
		from := transport.ID{byte(i), byte(i >> 8), 3}
		s, _ := d.take(from, &message{kind: begin, seq: 1}, func(_ context.Context, s *served) { s.finish(answer{}) })
		require.NotNil(t, s)
	}
	require.Len(t, d.lanes, lanesAll)
	require.True(t, begins(4, 0, true), "the place of the oldest")
	require.False(t, known(2, 0))
	require.False(t, begins(5, 0, true), "the table is full")
	require.Len(t, d.lanes, lanesAll)
	require.NotContains(t, d.ofPeer, transport.ID{2, 1})
	require.Equal(t, lanesMost, d.ofPeer[transport.ID{1, 1}])
}

// A message that is cut, has bytes too many, or an unknown kind is no order, and it is counted as the peer's.
func TestMalformedMessagesAreRefused(t *testing.T) {
	asker, owner, slice := pair(t)
	order := orderOf(slice())
	order.Offset, order.Lent = 0, transport.Lent{ID: 1, Size: 1 << 20, Descriptors: map[string]transport.Descriptor{
		"tcp": {1, 2, 3}}}
	good := (&message{kind: begin, lane: 1, seq: 1, order: order}).encode(nil)
	bad := [][]byte{append(bytes.Clone(good), 0), append((&message{kind: ask, lane: 1, seq: 1}).encode(nil), 0),
		(&message{kind: begin, lane: 1, order: order}).encode(nil)}
	for n := range good {
		bad = append(bad, good[:n])
	}
	for kind := range 256 {
		if m := (&message{kind: uint8(kind), lane: 1, seq: 1}); m.kind < begin || m.kind > fenced {
			bad = append(bad, m.encode(nil))
		}
	}
	for i, b := range bad {
		_, err := owner.open.Serve(t.Context(), asker.self, b)
		require.Equal(t, errs.Protocol, errs.CodeOf(err), "%x", b)
		require.Equal(t, i+1, owner.malformed)
	}
	require.Zero(t, owner.count())
	_, err := owner.open.Serve(t.Context(), asker.self, good)
	require.NoError(t, err)
}

// An owner that closes ends the order for this link. Its word is no end of our own transport.
func TestAnOwnerThatHasClosedEndsItsOrdersAlone(t *testing.T) {
	asker, owner, slice := pair(t)
	require.NoError(t, owner.open.Close(t.Context()))
	require.Equal(t, 1, asker.open.Submit([]*transport.Slice{slice()}))
	err := asker.end().Err
	require.Equal(t, errs.EngineClosed, err.Code)
	require.Equal(t, errs.ScopeLink, err.Scope)
	require.Equal(t, errs.SideRemote, err.Side)
}

// An answer with numbers that no error has is none: a code beyond the last bit would be cut to OK.
func TestAnswersWithoutSenseAreMalformed(t *testing.T) {
	good := answer{state: ended, err: errs.New(errs.Lost, Name, "gone").WithScope(errs.ScopeLink, errs.SideRemote)}
	for name, change := range map[string]func(b []byte){
		"as it was": func([]byte) {},
		"code":      func(b []byte) { binary.LittleEndian.PutUint32(b[2:], 1<<16) },
		"scope":     func(b []byte) { b[6] = byte(errs.ScopeTransport) },
		"side":      func(b []byte) { b[7] = byte(errs.SidePath) + 1 },
	} {
		b := good.encode()
		change(b)
		a, err := readAnswer(b)
		if name == "as it was" {
			require.Nil(t, err)
			require.Equal(t, good.err, a.err)
			continue
		}
		require.Equal(t, errs.Protocol, errs.CodeOf(err), name)
	}
}

// The end of an order is the error of the owner's transfer, as one of the far side: the paths in it are the owner's.
func TestTheOwnersErrorIsTheAskers(t *testing.T) {
	asker, owner, slice := pair(t)
	owner.failure = errs.New(errs.OutOfMemory, "copy", "the device is full").WithScope(errs.ScopeTransport,
		errs.SideLocal).WithPeer("10.0.0.1:7000", "nvlink", "cuda:0").WithHint("free some")
	require.Equal(t, 1, asker.open.Submit([]*transport.Slice{slice()}))
	err := asker.end().Err
	require.Equal(t, errs.OutOfMemory, err.Code)
	require.Equal(t, []string{"the device is full", "free some", "", "", ""},
		[]string{err.Cause, err.Hint, err.Peer, err.Transport, err.Rail})
	require.Equal(t, errs.SideRemote, err.Side)
	require.Equal(t, errs.ScopeLink, err.Scope, "other peers of this transport are not to blame")
}

// A message that its sender repeats takes nothing back, and an order after order on one lane is one lane.
func TestOrdersOfALaneFollowOneAnother(t *testing.T) {
	asker, owner, slice := pair(t)
	release := owner.holding()
	order := orderOf(slice())
	order.Offset, order.Lent = 0, transport.Lent{ID: 1, Size: 1 << 20}
	gone, cancel := context.WithCancel(t.Context())
	cancel() // the caller waits for no end
	for seq := range uint64(2 * lanesMost) {
		m := &message{kind: begin, lane: 1, seq: seq + 1, order: order}
		for range 2 {
			_, err := owner.open.Serve(gone, asker.self, m.encode(nil))
			require.NoError(t, err)
		}
		if seq == 0 {
			owner.awaitOrders(1)
			require.Zero(t, owner.canceled)
			release()
		}
		a := serve(t, owner, asker.self, &message{kind: ask, lane: 1, seq: seq + 1})
		require.EqualValues(t, ended, a.state)
		require.Nil(t, a.err)
	}
	require.Equal(t, 2*lanesMost, owner.count())
	d := &owner.open.(*delegate).desk
	require.Equal(t, map[transport.ID]int{asker.self.ID: 1}, d.ofPeer)

	for lane := range uint64(lanesMost) {
		a := serve(t, owner, asker.self, &message{kind: begin, lane: lane, seq: 100, order: order})
		require.EqualValues(t, ended, a.state)
	}
	a := serve(t, owner, asker.self, &message{kind: begin, lane: 1, seq: 101, order: order})
	require.EqualValues(t, ended, a.state, "a lane that it has needs no room")
	require.Len(t, d.lanes, lanesMost)
}
