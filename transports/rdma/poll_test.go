package rdma

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/rdma/verbs"
	"github.com/tent-engine/tent/transports/transporttest"
)

// answered reports whether nothing is out, and no ring waits for the goroutine.
func (d *device) answered() bool {
	d.pollMu.Lock()
	defer d.pollMu.Unlock()
	set := []unix.PollFd{{Fd: d.bells[0].fd, Events: unix.POLLIN}}
	n, err := unix.Poll(set, 0)
	return err == nil && n == 0 && d.flying.Load() == 0
}

// TestAQueueThatHasNotRungIsNotArmedAgain counts the arms of sleepers over NICs on which nothing moves.
func TestAQueueThatHasNotRungIsNotArmedAgain(t *testing.T) {
	r := newRig(t, nil)
	tr := r.a.Transport.(*Transport)
	tr.Arm()
	before := r.f.Control(t, "arms")
	for range 20 {
		list := tr.Watch(nil, transport.AllClasses)
		require.Len(t, list, 2)
		tr.Arm()
		tr.Woken(list)
		tr.Arm()
	}
	require.Equal(t, before, r.f.Control(t, "arms"))
}

// TestBellsOfAnotherDeviceAreNotAnswered: the number of a device that is gone is taken by the next.
func TestBellsOfAnotherDeviceAreNotAnswered(t *testing.T) {
	r := newRig(t, overOne)
	tr := r.a.Transport.(*Transport)
	d := tr.nics()[0]
	list := tr.Watch(nil, transport.AllClasses)
	require.Len(t, list, 1)
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Close(epoll)) }()
	old := list[0]
	old.Tag -= 1 << 16
	old.Ready = unix.POLLIN
	before := r.f.Control(t, "drains")
	tr.Woken([]transport.Watch{old})
	require.Equal(t, before, r.f.Control(t, "drains"))
	require.Error(t, tr.Hang(epoll, old))
	require.NoError(t, tr.Hang(epoll, list[0]))
	list[0].Ready = unix.POLLIN
	tr.Woken(list)
	tr.Arm()
	require.Greater(t, r.f.Control(t, "drains"), before)

	d.lost.Store(true) // as far as a sleeper sees
	require.Empty(t, tr.Watch(nil, transport.AllClasses))
	d.lost.Store(false)
}

// TestABellThatItsGoroutineWouldLoseDoesNotHang: without its own entry a slice without a waiter would have no end.
func TestABellThatItsGoroutineWouldLoseDoesNotHang(t *testing.T) {
	r := newRig(t, overOne)
	tr := r.a.Transport.(*Transport)
	list := tr.Watch(nil, transport.AllClasses)
	tr.Arm()
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Close(epoll)) }()
	b := &tr.nics()[0].bells[0]
	own := b.epoll
	b.epoll = -1
	require.Error(t, tr.Hang(epoll, list[0]))
	b.epoll = own
	require.ErrorIs(t, unix.EpollCtl(epoll, unix.EPOLL_CTL_DEL, int(b.fd), nil), unix.ENOENT)
	require.NoError(t, tr.Hang(epoll, list[0]))
}

// TestOnlySlicesThatAreStillOutRing counts the arms of slices that end while they are posted, and of others.
func TestOnlySlicesThatAreStillOutRing(t *testing.T) {
	r := newRig(t, overOne)
	r.works(t) // connects
	rail := r.c.Rail(t)
	for prompt := 1; prompt >= 0; prompt-- {
		r.f.Control(t, "prompt %d", prompt)
		// Without a delay the poster may find a slice ended that is carried out beside it.
		r.f.Control(t, "delay %d", 5000*(1-prompt))
		before := r.f.Control(t, "arms")
		for i := range 8 {
			s := r.slice(t, rail, uint64(i)*4096, 4096)
			require.Equal(t, 1, r.c.Send(s))
			require.Nil(t, r.c.Wait(t, s)[0].Err)
		}
		require.Equal(t, prompt == 0, r.f.Control(t, "arms") > before, "prompt %d", prompt)
	}
}

// overOnePatiently are settings of one rail. Its device asks for an answer again and again, for a minute.
func overOnePatiently(s *Settings) {
	overOne(s)
	s.Timeout, s.Retries = 21, 7
}

// behind makes a posting that the NIC carries out once it has returned. A posting that finds the end of its slices
// itself arms nothing.
func (r *rig) behind(t *testing.T, post func()) {
	r.f.Control(t, "silence fake0 1")
	post()
	r.f.Control(t, "silence fake0 0")
}

// TestARingIsHeardByOneSleeperOrByTheGoroutine: a sleeper with the bell takes it from the goroutine. Slices posted
// when it has left are heard all the same, and so is a ring beside a sleeper that looks at the descriptor alone.
func TestARingIsHeardByOneSleeperOrByTheGoroutine(t *testing.T) {
	r := newRig(t, overOnePatiently)
	r.works(t)
	tr := r.a.Transport.(*Transport)
	r.f.Control(t, "delay 2000")
	const rounds = 9
	for round := range uint64(rounds) {
		await(t, "the goroutine to answer rings of before", tr.nics()[0].answered)
		before := r.f.Control(t, "drains")
		list := tr.Watch(nil, transport.AllClasses)
		tr.Arm()
		s := r.slice(t, r.c.Rail(t), round*4096, 4096)
		post := func() { require.Equal(t, 1, r.c.Send(s)) }
		switch round % 3 {
		case 0:
			transporttest.RingInSleep(t, tr, list, 20*time.Second, func() { r.behind(t, post) })
			require.NotZero(t, list[0].Ready)
		case 1:
			post()
			set := []unix.PollFd{{Fd: list[0].Fd, Events: unix.POLLIN}}
			_, err := unix.Poll(set, 100) // the goroutine may be faster
			require.NoError(t, err)
		case 2:
			post()
		}
		tr.Woken(list)
		tr.Arm()
		require.Nil(t, r.c.Wait(t, s)[0].Err)
		if round%3 == 0 { // the peer's goroutine may begin meanwhile, and asks once
			require.LessOrEqual(t, r.f.Control(t, "drains")-before, 2)
		}
	}
}

// TestPostingsBehindTheLastRingRing takes completions of two rails. Between the two, the device's goroutine hears a
// ring while nothing is out, so it does not arm. The second rail then posts slices that have waited.
func TestPostingsBehindTheLastRingRing(t *testing.T) {
	r := newRigOver(t, 1, func(s *Settings) { s.Lanes, s.Requests = 1, 8 })
	r.works(t)
	tr := r.a.Transport.(*Transport)
	d := tr.nics()[0]
	other := r.a.Connect(t, r.w.Open("c"))
	await(t, "the rail to another peer", func() bool { return len(other.Rails()) == 1 })
	probe := func(done func(*errs.Error)) {
		tr.Probe(other.Rails()[0], func(_ clock.Time, err *errs.Error) { done(err) })
	}
	other.AwaitProbe(t, other.Rails()[0])
	quiet := func() bool {
		d.pollMu.Lock()
		defer d.pollMu.Unlock()
		return !d.armed && d.flying.Load() == 0
	}
	await(t, "rings of before", func() bool {
		if !quiet() && d.answered() { // armed behind the last completion: the next one rings
			other.AwaitProbe(t, other.Rails()[0])
		}
		return quiet()
	})

	tr.polling.Store(true) // postings are left to this goroutine
	written := r.f.Control(t, "writes")
	var arms atomic.Bool
	for early := true; early; { // the device's goroutine may still look, behind a ring of before
		taken := make(chan bool, 1)
		probe(func(*errs.Error) {
			if taken <- !arms.Load(); !arms.Load() {
				return
			}
			probe(func(*errs.Error) {})
			await(t, "the ring", quiet)
		})
		written++
		await(t, "the probe", func() bool { return r.f.Control(t, "writes") == written })
		select {
		case early = <-taken:
		case <-time.After(10 * time.Millisecond): // nobody looks any more
			early = false
		}
	}
	arms.Store(true)
	var list []*transport.Slice
	for i := range uint64(20) {
		list = append(list, r.slice(t, r.c.Rail(t), i*4096, 4096))
	}
	require.Equal(t, len(list), r.c.Send(list...))
	await(t, "all that was posted", func() bool {
		return int64(r.f.Control(t, "writes")-written)+2 == d.flying.Load() // and a flush
	})
	tr.polling.Store(false)
	d.arm()
	for _, end := range r.c.Wait(t, list...) {
		require.Nil(t, end.Err)
	}
}

// TestARingIsTakenByOneCall counts the calls by which sleepers take the rings of their slices: each reads a descriptor.
func TestARingIsTakenByOneCall(t *testing.T) {
	r := newRig(t, overOnePatiently)
	r.works(t)
	tr := r.a.Transport.(*Transport)
	r.f.Control(t, "delay 2000")
	const slices = 8
	await(t, "the goroutine to answer rings of before", tr.nics()[0].answered)
	before := r.f.Control(t, "drains")
	for i := range uint64(slices) {
		list := tr.Watch(nil, transport.AllClasses)
		tr.Arm()
		s := r.slice(t, r.c.Rail(t), i*4096, 4096)
		transporttest.RingInSleep(t, tr, list, 20*time.Second, func() {
			r.behind(t, func() { require.Equal(t, 1, r.c.Send(s)) })
		})
		require.NotZero(t, list[0].Ready)
		tr.Woken(list)
		tr.Arm()
		require.Nil(t, r.c.Wait(t, s)[0].Err)
	}
	// the peer's goroutine may begin meanwhile, and asks once
	require.LessOrEqual(t, r.f.Control(t, "drains")-before, slices+1)
}

// TestANewQueueIsArmedBesideArmedOnesOnly counts arms. A queue that is armed without a note rings twice in front of one
// answer, which takes one ring a queue: from then on the bell is one ring ahead.
func TestANewQueueIsArmedBesideArmedOnesOnly(t *testing.T) {
	r := newRig(t, overOne)
	r.works(t)
	d := r.a.Transport.(*Transport).nics()[0]
	await(t, "the goroutine to answer rings of before", d.answered)
	for _, armed := range []bool{false, true} {
		d.pollMu.Lock()
		d.armed = armed
		d.pollMu.Unlock()
		arms, queues := r.f.Control(t, "arms"), len(d.queues())
		room := verbs.Room{Requests: d.queues()[queues-1].room + 1, Ranges: 1}
		pair, in, err := d.newPair(room)
		require.NoError(t, err)
		require.Len(t, d.queues(), queues+1)
		want := arms
		if armed {
			want++
		}
		require.Equal(t, want, r.f.Control(t, "arms"), "armed %t", armed)
		require.NoError(t, d.endPair(pair, in, room.Requests))
	}
}

// TestAQueueHasRoomForAllRequestsOfItsQueuePairs: one that overflows is lost with all of them. A queue pair that fails
// gives each request back.
func TestAQueueHasRoomForAllRequestsOfItsQueuePairs(t *testing.T) {
	r := newRigOver(t, 1, func(s *Settings) { s.Entries, s.Requests, s.Lanes = 64, 32, 4 })
	d := r.first().device
	d.mu.Lock()
	defer d.mu.Unlock()
	require.Len(t, d.queues(), 2)
	for _, w := range d.queues() {
		require.Equal(t, 64, w.queue.Entries)
		require.Zero(t, w.room)
	}
}

// TestTheRoomOfAQueuePairIsFreeBehindItsCompletions: they lie in the queue until somebody takes them. The device has no
// goroutine that would.
func TestTheRoomOfAQueuePairIsFreeBehindItsCompletions(t *testing.T) {
	r := newRigOver(t, 1, nil)
	d, err := r.a.Transport.(*Transport).openDevice(1, "fake0")
	require.NoError(t, err)
	list, err := d.addresses()
	require.NoError(t, err)
	const requests = 8
	var pairs [2]*verbs.Pair
	var in *waiting
	for i := range pairs {
		pairs[i], in, err = d.newPair(verbs.Room{Requests: requests})
		require.NoError(t, err)
	}
	for i, pair := range pairs {
		path := d.path(&end{gid: list[0].GID, reads: 1}, &laneEnd{pair: pairs[1-i].Number}, &end{mtu: 5}, 0)
		path.SourceGID, path.Global = uint8(list[0].Index), true
		require.NoError(t, join(pair, &path))
	}
	room, written := in.room, r.f.Control(t, "writes")
	pairs[0].Chain[0].Like(&verbs.WR{Op: verbs.OpWrite, Flags: verbs.Signaled})
	_, err = pairs[0].Post(1)
	require.NoError(t, err)
	await(t, "the completion", func() bool { return r.f.Control(t, "writes") > written })
	require.NoError(t, d.endPair(pairs[0], in, requests))
	require.Equal(t, room+requests, in.room)
	var left [verbs.Batch]verbs.WC
	n, err := in.queue.Poll(left[:])
	require.NoError(t, err)
	require.Zero(t, n)
	require.NoError(t, d.endPair(pairs[1], in, requests))
	d.close()
}
