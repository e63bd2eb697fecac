package tcp

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
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

// asleep is a pair of endpoints of which the owner sleeps while a WRITE lies in its sockets. They are on a rail of one
// lane, since the owner has one reader.
func asleep(t *testing.T) (near *couple, memory []byte, s *transport.Slice, lane *responderLane) {
	far := newTestEndpoint(t, Settings{})
	memory = mapping(t, 4096)
	_, d, err := far.tr.Register(context.Background(), regionOf(memory))
	require.NoError(t, err)
	near = &couple{endpoint: newTestEndpoint(t, Settings{Lanes: 1}), memory: mapping(t, 4096)}
	near.key, _, err = near.tr.Register(context.Background(), regionOf(near.memory))
	require.NoError(t, err)
	near.link, err = near.tr.Attach(far.self)
	require.NoError(t, err)
	near.remote, err = near.tr.Import(near.link, d)
	require.NoError(t, err)
	near.await(t, "a rail", 5*time.Second, func() bool { return len(near.rails) == 1 })
	stopWorkers(t, far.tr.(*Transport))
	s = near.slice(transport.Write, 0, 0, 4096)
	require.Equal(t, 1, near.tr.Submit([]*transport.Slice{s}))
	for _, l := range far.tr.(*Transport).attachments.ofPeer(nil)[0].allLanes() {
		if l.id == near.tr.(*Transport).initiatorOf(connKey(s.Scratch[scratchConn])).id {
			lane = l
		}
	}
	require.NotNil(t, lane)
	require.Eventually(t, func() bool { _, waiting := arrivalAge(lane.fd); return waiting }, 5*time.Second,
		time.Millisecond)
	return near, memory, s, lane
}

// wakesUp is the first look of a reader behind a sleep.
func (l *responderLane) wakesUp(t *testing.T) {
	l.readMu.Lock()
	defer l.letGo()
	l.rx.last = clock.Now().Add(-time.Minute)
	l.t.pulse.woke.Store(int64(clock.Now()))
	n, open := l.drain(l.t.newWorker(), workerBudget)
	require.Zero(t, n)
	require.True(t, open)
	require.False(t, l.life.state().receives(), "the question is on its way, or has a bad answer already")
	n, _ = l.drain(l.t.newWorker(), workerBudget)
	require.Zero(t, n, "nothing is read")
}

// goesOn reads the lane when it is open again, until the initiator has heard of the slice's end.
func (l *responderLane) goesOn(t *testing.T, near *couple, s *transport.Slice) {
	require.Eventually(t, func() bool { return l.life.state() == stateOpen }, 5*time.Second, time.Millisecond)
	near.await(t, "the end", 5*time.Second, func() bool {
		l.readMu.Lock()
		l.drain(l.t.newWorker(), workerBudget)
		l.readMu.Unlock()
		return near.ends[s].Slice != nil
	})
}

func TestASleeperWritesWhatIsStillWanted(t *testing.T) {
	near, memory, s, lane := asleep(t)
	lane.wakesUp(t)
	lane.goesOn(t, near, s)
	require.Nil(t, near.ends[s].Err)
	require.Equal(t, near.memory, memory)
}

func TestASleeperDoesNotWriteWhatWasWithdrawn(t *testing.T) {
	near, memory, s, lane := asleep(t)
	before := bytes.Clone(memory)
	near.tr.Withdraw([]*transport.Slice{s})
	lane.wakesUp(t)
	lane.goesOn(t, near, s)
	require.Equal(t, errs.Withdrawn, near.ends[s].Err.Code)
	require.Equal(t, before, memory)
}

// A sender that does not know the lane any more has given all of it up.
func TestASleeperWritesNothingOfALaneThatIsForgotten(t *testing.T) {
	near, memory, _, lane := asleep(t)
	before := bytes.Clone(memory)
	l := near.tr.(*Transport).links.Lookup(near.link)
	l.mu.Lock()
	l.key = attachmentID{1}
	l.mu.Unlock()
	lane.wakesUp(t)
	require.Eventually(t, func() bool { return !lane.life.state().live() }, 5*time.Second, time.Millisecond)
	lane.readMu.Lock()
	lane.drain(lane.t.newWorker(), workerBudget)
	lane.readMu.Unlock()
	require.Equal(t, before, memory)
}

func TestALateBeatIsASleep(t *testing.T) {
	tr := newTestEndpoint(t, Settings{Lease: time.Hour}).tr.(*Transport)
	p := &tr.pulse
	begin := clock.Now()
	slept := func(looked clock.Time) bool { return p.sleptSince(looked, clock.Now(), time.Hour) }
	tr.beginPulse()
	require.False(t, slept(begin))
	tr.beat()
	require.False(t, slept(begin), "a beat in time")
	p.last.Store(int64(begin.Add(-2 * time.Hour)))
	require.True(t, slept(begin), "the beat has not come yet")
	tr.beat()
	require.True(t, slept(begin), "it has come before the first look")
	require.False(t, slept(clock.Now()), "that was the first look")
}

// The rest of a chunk comes after the sleep, and looks new. The bytes before it do not.
func TestASleeperWithHalfAChunkAsks(t *testing.T) {
	p := newPackets(t, 1<<16, shields[0])
	frame, _ := p.frame(1, 40_000)
	require.True(t, p.send(chunkOf(p.out, frame)[:20_000], 10_000))
	require.True(t, p.rx.holdsChunk())
	p.readMu.Lock()
	defer p.readMu.Unlock()
	p.rx.last = clock.Now().Add(-time.Minute)
	require.True(t, p.overLease())
	require.False(t, p.life.state().receives(), "its sender is asked, or has not answered already")
}
