package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// sendNote sends a notification to ourselves over the transport of a workshop, which keeps it.
func (w *workshop) sendNote(deadline clock.Time) (id dispatch.BatchID, done func(*errs.Error)) {
	w.t.Helper()
	h := w.hands[0]
	id, err := w.Notify(Local, Note{Name: []byte("n")}, deadline)
	require.NoError(w.t, err)
	h.await(w.t, "the note", func() bool { return len(h.notes) == 1 })
	return id, h.notes[0].done
}

// A transport may try for longer than its notification is wanted. Its answer comes too late then, whichever it is.
func TestABatchEndsAtTheLimitOfItsNotification(t *testing.T) {
	for _, late := range []*errs.Error{nil, errs.New(errs.Lost, "hand", "the rail has broken")} {
		w := newWorkshop(t, "hand")
		limit := clock.Now().Add(20 * time.Millisecond)
		id, done := w.sendNote(limit)
		w.requireEnd(id, dispatch.TimedOut, errs.Timeout)
		sum, err := w.Summary(id)
		require.NoError(t, err)
		require.Contains(t, sum.Err.Hint, "notification_queue")
		require.GreaterOrEqual(t, clock.Now(), limit)
		done(late)
		w.requireEnd(id, dispatch.TimedOut, errs.Timeout)
		require.Empty(t, w.tails.notes.waiting)
	}
}

func TestABatchEndsWhenItIsCanceledDuringItsNotification(t *testing.T) {
	for _, late := range []*errs.Error{nil, errs.New(errs.Lost, "hand", "the rail has broken")} {
		w := newWorkshop(t, "hand")
		id, done := w.sendNote(0)
		waiting, err := w.Notify(Local, Note{Name: []byte("n")}, 0)
		require.NoError(t, err)
		for _, id := range []dispatch.BatchID{waiting, id} {
			n, err := w.Cancel(id, -1)
			require.NoError(t, err)
			require.Equal(t, 1, n)
			w.requireEnd(id, dispatch.Canceled, errs.Canceled)
		}
		done(late)
		w.requireEnd(id, dispatch.Canceled, errs.Canceled)
		n, err := w.Cancel(id, -1)
		require.NoError(t, err)
		require.Zero(t, n)
	}
}

// A notification that is under way cannot be had back. The batch ends as its peer answers, for as long as a fence may
// take: one that has it, and a transfer that was canceled, would not fit.
func TestACanceledBatchWaitsForTheAnswerToItsNotification(t *testing.T) {
	w := newWorkshop(t, "hand")
	w.config.Engine.FenceTimeoutHost = time.Minute
	id, done := w.sendNote(0)
	for range 2 {
		n, err := w.Cancel(id, -1)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, dispatch.Pending, w.Wait(id, 0))
	}
	done(nil)
	require.Equal(t, dispatch.Completed, w.Wait(id, 10*time.Second))
	n, err := w.Cancel(id, -1)
	require.NoError(t, err)
	require.Zero(t, n, "it has ended")
}

// The same is true of a deadline: nothing is sent behind it, and a notification of before has the fence bound for its
// answer.
func TestABatchPastItsDeadlineWaitsForTheAnswerToItsNotification(t *testing.T) {
	for _, cause := range []*errs.Error{nil, errs.New(errs.Lost, "hand", "the rail has broken")} {
		w := newWorkshop(t, "hand")
		w.config.Engine.FenceTimeoutHost = time.Minute
		id, done := w.sendNote(clock.Now().Add(200 * time.Millisecond))
		for !w.isClosing(id) {
			require.Equal(t, dispatch.Pending, w.Wait(id, 10*time.Millisecond))
		}
		n, err := w.Cancel(id, -1)
		require.NoError(t, err)
		require.Equal(t, 1, n, "it has not ended, and a cancel gives it no more time")
		done(cause)
		if cause == nil {
			require.Equal(t, dispatch.Completed, w.Wait(id, 10*time.Second))
		} else {
			w.requireEnd(id, dispatch.TimedOut, errs.Timeout)
		}
		require.Empty(t, w.tails.notes.waiting)
	}
}

// isClosing reports whether a batch waits for the answer to its notification alone.
func (w *workshop) isClosing(id dispatch.BatchID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	b, err := w.lookup(id)
	return err == nil && b.note.closing
}

// A peer without room has answered: its batch ends, whether it was past its time before or is cancelled behind that.
func TestABatchDoesNotWaitForAPeerThatHasRefusedItsNotification(t *testing.T) {
	full := errs.New(errs.TooManyRequests, "hand", "the queue is full")
	for _, before := range []bool{true, false} {
		w := newWorkshop(t, "hand")
		w.config.Engine.FenceTimeoutHost = time.Minute
		w.notes.limit = 0
		id, done := w.sendNote(0)
		if before {
			_, err := w.Cancel(id, -1)
			require.NoError(t, err)
			require.Equal(t, dispatch.Pending, w.Wait(id, 0))
			done(full)
		} else {
			done(full)
			_, err := w.Cancel(id, -1)
			require.NoError(t, err)
		}
		w.requireEnd(id, dispatch.Canceled, errs.Canceled)
	}
}

// The cancel comes too late for the bytes, and not for the notification: nobody is told.
func TestACanceledBatchSendsNoNotificationWhenItsBytesArriveNevertheless(t *testing.T) {
	w := newWorkshop(t, "hand")
	h := w.hands[0]
	r := w.request(w.region("own"), w.region("far")) // links are made by the first transfer
	first, err := w.Move(&r)
	require.NoError(t, err)
	h.complete(nil)
	require.Equal(t, dispatch.Completed, w.Wait(first, 10*time.Second))
	id, err := w.NewBatch(1)
	require.NoError(t, err)
	_, err = w.Submit(id, []Request{r}, &Note{Name: []byte("page")})
	require.NoError(t, err)
	var delivered []*transport.Slice // the withdrawal finds none
	h.locked(func() { delivered, h.slices = h.slices, nil })
	n, err := w.Cancel(id, -1)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	h.locked(func() { h.slices = delivered })
	h.complete(nil)
	w.requireEnd(id, dispatch.Canceled, errs.Canceled)
	s, err := w.Status(id, 0)
	require.NoError(t, err)
	require.Equal(t, dispatch.Completed, s.State)
	h.locked(func() { require.Empty(t, h.notes) })
}

// The limits of a crowd are kept in their order, and without those that were taken.
func TestEachNotificationHasALimitOfItsOwn(t *testing.T) {
	w := newWorkshop(t, "hand")
	now := clock.Now()
	never, done := w.sendNote(0)
	var late []dispatch.BatchID
	for i := range 20 {
		id, err := w.Notify(Local, Note{Name: []byte("n")}, now.Add(time.Duration((i*7)%20)*time.Millisecond))
		require.NoError(t, err)
		late = append(late, id)
	}
	for _, id := range late {
		w.requireEnd(id, dispatch.TimedOut, errs.Timeout)
	}
	require.Equal(t, dispatch.Pending, w.Wait(never, 0))
	done(nil)
	require.Equal(t, dispatch.Completed, w.Wait(never, 10*time.Second))
	require.Empty(t, w.tails.notes.waiting)
}

// The next step comes a minute late. The stall limit is put off by that, and a deadline is not.
func TestAStopOfThisProcessPutsOffTheLimitOfANotification(t *testing.T) {
	w := newWorkshop(t, "hand")
	stays, done := w.sendNote(0)
	ends, err := w.Notify(Local, Note{Name: []byte("n")}, clock.Now().Add(30*time.Second))
	require.NoError(t, err)
	w.mu.Lock()
	w.stepAt(clock.Now().Add(time.Minute))
	w.unlockAndDrain()
	w.requireEnd(ends, dispatch.TimedOut, errs.Timeout)
	require.Equal(t, dispatch.Pending, w.Wait(stays, 0))
	done(nil)
	require.Equal(t, dispatch.Completed, w.Wait(stays, 10*time.Second))
	require.False(t, w.tails.wait())
}

// The transport fails the notification when its link goes, behind the end of the notifier.
func TestCloseEndsABatchWhoseNotificationIsUnderWay(t *testing.T) {
	w := newWorkshop(t, "hand")
	id, done := w.sendNote(0)
	waited := make(chan dispatch.State)
	go func() { waited <- w.Wait(id, time.Minute) }()
	require.Empty(t, w.Close(0, true))
	require.Equal(t, dispatch.Canceled, <-waited)
	done(errs.New(errs.InvalidEntry, "hand", "the link was detached"))
	require.Equal(t, dispatch.Canceled, w.Wait(id, 0))
}

// alias is the peer of a handle under another address.
func (w *workshop) alias(of *peer) *peer {
	identity := of.identity
	identity.Address = "alias:1"
	return newPeer(w.Engine, identity)
}

// The receiver takes numbers of an engine that grow. Of two messages at once, under two addresses, it would take the
// later one and drop the other for a repetition.
func TestOneMessageAtATimeGoesToAnEngineUnderAllItsAddresses(t *testing.T) {
	w := newWorkshop(t, "hand")
	h, failure := w.segments.get(Local)
	require.Nil(t, failure)
	n, other := newNotifier(w.Engine), w.alias(h.peer)
	for _, p := range []*peer{h.peer, h.peer, other, h.peer} {
		n.queue(&note{peer: p, place: -1})
	}
	for _, want := range []struct {
		to      *peer
		numbers []uint64
	}{{h.peer, []uint64{1, 2}}, {other, []uint64{3}}, {h.peer, []uint64{4}}} {
		o := n.next()
		require.NotNil(t, o)
		require.Same(t, want.to, o.peer)
		_, numbers, err := decodeNotes(o.message, "")
		require.NoError(t, err)
		require.Equal(t, want.numbers, numbers)
		require.Nil(t, n.next(), "a message is under way")
		o.flying = nil
	}
}

// An address may lead elsewhere by now, so the end of a peer under one address is none under the others.
func TestNotificationsUnderAnotherAddressOutliveAPeerThatHasGone(t *testing.T) {
	w := newWorkshop(t, "hand")
	h, failure := w.segments.get(Local)
	require.Nil(t, failure)
	n, other := newNotifier(w.Engine), w.alias(h.peer)
	for _, p := range []*peer{other, h.peer, other} {
		n.queue(&note{peer: p, place: -1})
	}
	n.gone(other, errs.New(errs.PeerRestarted, "peer", "gone"))
	o := n.next()
	require.NotNil(t, o)
	_, numbers, err := decodeNotes(o.message, "")
	require.NoError(t, err)
	require.Equal(t, []uint64{2}, numbers)
	o.flying = nil
	require.Nil(t, n.next())
}

// The record of a peer that nobody has open goes with its last note, also where that is taken back.
func TestTheRecordOfAPeerGoesWithItsLastNote(t *testing.T) {
	w := newWorkshop(t, "hand")
	h, failure := w.segments.get(Local)
	require.Nil(t, failure)
	n := newNotifier(w.Engine)
	taken := &note{peer: h.peer, place: -1}
	n.queue(taken)
	n.forget(h.peer)
	require.Len(t, n.peers, 1)
	n.forgo(taken)
	require.Empty(t, n.peers)
}

func TestNoNotificationOutlivesTheNotifier(t *testing.T) {
	w := newWorkshop(t, "hand")
	under, done := w.sendNote(0)
	waiting, err := w.Notify(Local, Note{Name: []byte("n")}, 0)
	require.NoError(t, err)
	w.notifier.close()
	for _, id := range []dispatch.BatchID{under, waiting} {
		w.requireEnd(id, dispatch.Failed, errs.EngineClosed)
	}
	done(errs.New(errs.InvalidEntry, "hand", "the link was detached"))
	late, err := w.Notify(Local, Note{Name: []byte("n")}, clock.Now().Add(time.Millisecond))
	require.NoError(t, err)
	w.requireEnd(late, dispatch.TimedOut, errs.Timeout)
}
