package tcp

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/transport"
)

// TestTheModelOfALaneIsTheCode carries out each function of the model and of the package from the same state, alone.
func TestTheModelOfALaneIsTheCode(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	c := newSelf(t, Settings{Lanes: 1, Workers: 1}, 4096)
	tr := c.tr.(*Transport)
	lane := tr.setOf(c.rails[0].Rail).groups[0].lanes()[0]
	epfd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC) // where no worker looks
	require.NoError(t, err)
	defer unix.Close(epfd)
	lane.armMu.Lock()
	require.NoError(t, unix.EpollCtl(lane.epfd, unix.EPOLL_CTL_DEL, lane.fd, nil))
	event := lane.key.event(unix.EPOLLONESHOT)
	require.NoError(t, unix.EpollCtl(epfd, unix.EPOLL_CTL_ADD, lane.fd, &event))
	before := lane.epfd
	lane.epfd = epfd
	lane.armMu.Unlock()
	defer func() { lane.epfd = before }()

	tr.sweeper.Stop()
	sweeper := tr.sweeper
	tr.sweeper = time.NewTimer(time.Hour) // nobody sweeps but the test
	defer func() { tr.sweeper = sweeper }()
	worker := tr.borrow()
	defer tr.giveBack(worker)
	functions := map[string]func(events uint8){
		"arm":     func(uint8) { lane.arm() },
		"disarm":  func(uint8) { lane.disarm() },
		"attend":  func(uint8) { lane.attend() },
		"settle":  func(uint8) { lane.settle() },
		"sleepOn": func(uint8) { lane.sleepOn() },
		"letGo":   func(uint8) { lane.readMu.Lock(); lane.letGo() },
		"serve":   func(events uint8) { tr.serve(worker, &lane.conn, kernelEvents(events), false) },
		"Poll":    func(uint8) { tr.Poll(1, transport.AllClasses) },
		"Arm":     func(uint8) { tr.Arm() },
		"sweep":   func(uint8) { tr.sweep() },
		"Watch":   func(uint8) { tr.Watch(nil, transport.AllClasses) },
		"Woken":   func(uint8) { tr.Woken([]transport.Watch{{Fd: int32(lane.fd), Tag: uint64(lane.key)}}) },
	}
	for name, function := range functions {
		for range 300 {
			w, calm := randomWorld(random), random.IntN(2) == 0
			if name == "Woken" {
				w.sleepers++
			}
			events := uint8(1 + random.IntN(3))
			lane.become(&w, calm)
			function(events)
			want := alone(w, name, events, calm)
			require.Equal(t, want, lane.world(), "%s of %+v, events %d, calm for long %v", name, w, events, calm)
		}
	}
	lane.become(&world{interest: in}, false)
}

func kernelEvents(events uint8) (k uint32) {
	if events&in != 0 {
		k |= unix.EPOLLIN | unix.EPOLLRDHUP
	}
	if events&out != 0 {
		k |= unix.EPOLLOUT
	}
	return k
}

// randomWorld is a lane on which nothing is outstanding and nobody is inside.
func randomWorld(r *rand.Rand) world {
	bit := func() bool { return r.IntN(2) == 0 }
	return world{interest: uint8(r.IntN(4)), sleepers: uint8(r.IntN(2)), held: bit(), missed: bit(), wantOut: bit(),
		busy: bit(), bulk: bit(), deaf: bit(), attended: bit(), rests: bit(), sweeping: bit(), polling: bit()}
}

// alone is the world behind a function of the model that nobody disturbs.
func alone(w world, function string, events uint8, calm bool) world {
	x := laneModel("", false)
	t := &w.threads[0]
	t.stack[0], t.depth, t.pc, t.events = x.labels["end"], 1, x.labels[function], events
	for t.pc != x.labels["end"] {
		in := &x.code[t.pc]
		if in.jump == "settle: end" && !calm {
			t.pc = x.labels[in.jump]
		} else {
			in.step(&w, t)
		}
	}
	w.kernel, w.dirty, w.threads[0] = 0, false, thread{}
	return w
}

// become gives the lane the state of a world.
func (l *initiatorLane) become(w *world, calm bool) {
	l.armMu.Lock()
	defer l.armMu.Unlock()
	l.setInterest(kernelEvents(w.interest))
	l.sleepers, l.held = int(w.sleepers), w.held
	l.missed.Store(w.missed)
	l.wantOut.Store(w.wantOut)
	l.busy.Store(w.busy)
	l.bulk.Store(w.bulk)
	l.deaf.Store(w.deaf)
	l.rests.Store(w.rests)
	l.t.sweeping.Store(w.sweeping)
	l.t.polling[l.group].Store(w.polling)
	if w.attended {
		l.attend()
	} else {
		l.t.attended[l.group].remove(l, false)
	}
	if l.calm.Store(0); calm {
		l.calm.Store(calmTurns)
	}
}

// world is the state of the lane.
func (l *initiatorLane) world() world {
	l.armMu.Lock()
	defer l.armMu.Unlock()
	w := world{sleepers: uint8(l.sleepers), held: l.held, missed: l.missed.Load(), wantOut: l.wantOut.Load(),
		busy: l.busy.Load(), bulk: l.bulk.Load(), deaf: l.deaf.Load(), attended: l.attended.Load(),
		rests: l.rests.Load(), sweeping: l.t.sweeping.Load(), polling: l.polled()}
	if l.interest&unix.EPOLLIN != 0 {
		w.interest |= in
	}
	if l.interest&unix.EPOLLOUT != 0 {
		w.interest |= out
	}
	return w
}
