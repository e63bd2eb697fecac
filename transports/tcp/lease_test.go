package tcp

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// TestNothingLandsWhileTheSenderIsAsked has a WRITE in the socket of a lane that is asked about. It lands when the
// sender still wants it, and never when the lane ends in the meantime.
func TestNothingLandsWhileTheSenderIsAsked(t *testing.T) {
	e := newTestEndpoint(t, Settings{Workers: 1})
	tr := e.tr.(*Transport)
	memory := mapping(t, 4096)
	key, _, err := tr.Register(context.Background(), regionOf(memory))
	require.NoError(t, err)
	before := bytes.Clone(memory)
	lost := errs.New(errs.Lost, "test", "cut")
	for name, c := range map[string]struct {
		next  func(*responderLane)
		lands bool
	}{
		"no answer yet":  {func(*responderLane) {}, false},
		"wanted":         {func(l *responderLane) { l.life.advance(eventWanted) }, true},
		"broken":         {func(l *responderLane) { l.broke(lost) }, false},
		"broken, wanted": {func(l *responderLane) { l.broke(lost); l.life.advance(eventWanted) }, false},
		"fenced":         {func(l *responderLane) { l.fence() }, false},
		"stale when broken": {func(l *responderLane) {
			l.life.advance(eventWanted)
			l.broke(lost)
			l.life.advance(eventStale)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			copy(memory, before)
			l := strangerLane(t, tr)
			defer func() { l.closeLane(); require.NoError(t, unix.Close(l.other)) }()
			l.admitted(t, 1)
			_, err := unix.Write(l.other, append(appendFrame(nil, header{kind: kindWrite, length: 8, seq: 1},
				record{id: uint64(key), length: 8}), "new data"...))
			require.NoError(t, err)
			l.readMu.Lock()
			l.life.advance(eventStale)
			c.next(l.responderLane)
			l.drain(tr.newWorker(), workerBudget)
			l.readMu.Unlock()
			require.Equal(t, c.lands, bytes.HasPrefix(memory, []byte("new data")))
			require.Equal(t, before[8:], memory[8:])
		})
	}
}

func TestASenderSaysThatItStillWantsItsBytes(t *testing.T) {
	_, far := neighbours(t, 4096)
	awaitProofs(far.tr.(*Transport))
	a := far.tr.(*Transport).attachments.ofPeer(nil)[0]
	for _, l := range a.allLanes() {
		void, err := l.unwanted(a)
		require.NoError(t, err)
		require.Empty(t, void)
		unknown := &responderLane{}
		unknown.t, unknown.id = l.t, 1<<40
		_, err = unknown.unwanted(a)
		require.Error(t, err)
	}
}

// TestASenderNamesAllThatItHasGivenUp: one that it left out would be written.
func TestASenderNamesAllThatItHasGivenUp(t *testing.T) {
	const n, size = recordsMax + 44, 64
	near, far := neighbours(t, n*size)
	awaitProofs(far.tr.(*Transport))
	thaw := freeze(far.tr.(*Transport), isResponder)
	defer thaw()
	var list []*transport.Slice
	for i := range n {
		list = append(list, near.slice(transport.Write, 0, i*size, size))
	}
	require.Equal(t, n, near.tr.Submit(list))
	near.tr.Withdraw(list)
	given := 0
	a := far.tr.(*Transport).attachments.ofPeer(nil)[0]
	for _, l := range a.allLanes() {
		void, err := l.unwanted(a)
		require.NoError(t, err)
		given += len(void)
	}
	require.Equal(t, n, given)
}
