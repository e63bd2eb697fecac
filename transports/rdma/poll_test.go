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

// TestADeviceWithNothingOutIsLeftToItsGoroutine: beside another that has something out. A sleeper that watches it
// already keeps it. Slices that are posted there meanwhile end all the same.
func TestADeviceWithNothingOutIsLeftToItsGoroutine(t *testing.T) {
	r := newRig(t, nil)
	tr := r.a.Transport.(*Transport)
	busy, idle := tr.nics()[0], tr.nics()[1]
	deaf := func(d *device) bool {
		d.pollMu.Lock()
		defer d.pollMu.Unlock()
		return d.deaf
	}
	all := tr.Watch(nil, transport.AllClasses)
	require.Len(t, all, 2, "nothing is out: the next slice may be on any")
	require.True(t, deaf(busy) && deaf(idle))
	busy.flying.Add(1)
	second := tr.Watch(nil, transport.AllClasses)
	require.Len(t, second, 2, "the first sleeper may leave before the second one")
	for _, list := range [][]transport.Watch{all, second} {
		tr.Woken(list)
		tr.Arm()
	}
	require.False(t, deaf(busy) || deaf(idle))

	one := tr.Watch(nil, transport.AllClasses)
	require.Len(t, one, 1)
	tr.Arm()
	require.True(t, deaf(busy))
	require.False(t, deaf(idle))
	var list []*transport.Slice
	for i, rail := range r.c.Rails() {
		if tr.links.Lookup(r.c.Link).rail(rail.Index).device == idle {
			list = append(list, r.slice(t, rail, uint64(i)*4096, 4096))
		}
	}
	require.NotEmpty(t, list)
	require.Equal(t, len(list), r.c.Send(list...))
	for _, end := range r.c.Wait(t, list...) {
		require.Nil(t, end.Err)
	}
	tr.Woken(one)
	busy.flying.Add(-1)
	tr.Arm()

	idle.flying.Add(1)
	other := tr.Watch(nil, transport.AllClasses)
	require.Len(t, other, 1, "the other one")
	idle.flying.Add(-1)
	tr.Woken(other)
	tr.Arm()

	for _, given := range []bool{true, false} { // lost and closed, as far as a sleeper sees
		busy.given.Store(given)
		idle.given.Store(given)
		if given {
			require.Empty(t, tr.Watch(nil, transport.AllClasses))
			require.Zero(t, tr.watchers.Load(), "Woken is not called for nothing")
		}
	}
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

// TestARingThatNoSleeperSawIsAnswered: something else has woken the sleeper. The goroutine hears the ring when the last
// sleeper arms. If it has heard it before and left it, the sleeper answers. A later ring is heard all the same.
func TestARingThatNoSleeperSawIsAnswered(t *testing.T) {
	r := newRig(t, overOne)
	tr := r.a.Transport.(*Transport)
	d := tr.nics()[0]
	for turn := range 6 {
		await(t, "the goroutine to answer rings of before", d.answered)
		list := tr.Watch(nil, transport.AllClasses)
		tr.Arm()
		heard := turn%2 == 1
		if heard {
			d.hear(true)
		}
		tr.polling.Store(true) // the completion is left to the bell
		d.flying.Add(1)
		d.arm()
		d.flying.Add(-1)
		written := r.f.Control(t, "writes")
		first := r.slice(t, r.c.Rail(t), 0, 4096)
		require.Equal(t, 1, r.c.Send(first))
		await(t, "the slice is written", func() bool { return r.f.Control(t, "writes") > written })
		if heard {
			await(t, "the ring is left to the sleeper", d.bells[0].missed.Load)
		}
		require.False(t, d.bells[0].missed.Load() && !heard, "the goroutine is deaf")
		tr.Woken(list) // no descriptor is ready for it
		tr.Arm()
		second := r.slice(t, r.c.Rail(t), 4096, 4096)
		require.Equal(t, 1, r.c.Send(second))
		for _, end := range r.c.Wait(t, first, second) {
			require.Nil(t, end.Err)
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
	connected := make(chan *errs.Error, 1)
	probe(func(err *errs.Error) { connected <- err })
	require.Nil(t, <-connected)
	quiet := func() bool {
		d.pollMu.Lock()
		defer d.pollMu.Unlock()
		return !d.armed && d.flying.Load() == 0
	}
	await(t, "rings of before", quiet)

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
	r := newRig(t, overOne)
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
		require.Equal(t, 1, r.c.Send(s))
		set := []unix.PollFd{{Fd: list[0].Fd, Events: unix.POLLIN}}
		await(t, "the ring", func() bool { _, err := unix.Poll(set, 100); return err == nil && set[0].Revents != 0 })
		list[0].Ready = set[0].Revents
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
		d.endPair(pair, in, room.Requests)
	}
}
