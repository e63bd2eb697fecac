package tests

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/transport"
)

// watched waits for a batch as an event loop does: it never enters the engine, it sleeps on the descriptor.
func watched(t *testing.T, e *engine.Engine, id dispatch.BatchID) {
	t.Helper()
	require.NoError(t, e.Watch(id))
	var ids [8]uint64
	for until := time.Now().Add(patience); ; {
		left := time.Until(until)
		require.Positive(t, left, "nobody said that the batch has ended: %s", stateOf(e, id))
		set := []unix.PollFd{{Fd: int32(e.EventFd()), Events: unix.POLLIN}}
		if n, err := unix.Poll(set, int(left.Milliseconds())+1); n == 0 || err != nil {
			continue
		}
		if slices.Contains(ids[:e.Drain(ids[:])], uint64(id)) {
			return
		}
	}
}

func stateOf(e *engine.Engine, id dispatch.BatchID) dispatch.State {
	sum, _ := e.Summary(id)
	return sum.State
}

func TestWhoOnlyWatchesHearsOfEveryEnd(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		here, there := w.open(t, nil), w.open(t, nil)
		own, theirs := memory(t, 1<<20), memory(t, 1<<20)
		offer(t, here, own, "")
		offer(t, there, theirs, "kv")
		at := segment(t, here, there, "kv")
		// Somebody looks all the time: an end that comes while the engine's mutex is held must not be left behind.
		looked, err := here.NewBatch(1)
		require.NoError(t, err)
		stop, done := make(chan struct{}), make(chan struct{})
		defer func() { close(stop); <-done }()
		go func() {
			defer close(done)
			for {
				select {
				case <-stop:
					return
				default:
					here.Elapsed(looked)
				}
			}
		}()
		moves := 2000
		if raceDetector { // which is slow beside a thread that looks all the time
			moves = 500
		}
		for i := range moves {
			length := uint64(4096)
			if i%50 == 0 {
				length = 1 << 20
			}
			id, err := here.Move(&engine.Request{Terms: engine.Terms{Op: transport.Op(i & 1)}, Source: address(own),
				Length: length,
				Remote: engine.Remote{Segment: at}})
			require.NoError(t, err)
			if i%3 == 0 {
				here.Progress() // somebody looked, and left
			}
			watched(t, here, id)
			require.NoError(t, here.FreeBatch(id))
			note, err := here.Notify(at, engine.Note{Name: []byte("n")}, 0)
			require.NoError(t, err)
			watched(t, here, note)
			require.NoError(t, here.FreeBatch(note))
			there.NotesDrain(func(*engine.Notification) bool { return true })
		}
	})
}
