package engine

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/transport"
)

// tower is a transport with bells, of which the sleepers answer those that rang.
type tower struct {
	mu    sync.Mutex
	bells []*signal
	born  []uint64 // tags
	hangs int      // calls of Hang
	quiet []int    // answers, by bell
	own   int      // epoll of a goroutine that nobody runs: its entries are the last
}

func newTower(t *testing.T, bells int) *tower {
	own, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	require.NoError(t, err)
	w := &tower{own: own}
	for range bells {
		w.build(t)
	}
	t.Cleanup(func() {
		require.NoError(t, unix.Close(own))
		for _, b := range w.bells {
			require.NoError(t, b.close())
		}
	})
	return w
}

// build adds a bell.
func (w *tower) build(t *testing.T) {
	s, err := newSignal()
	require.NoError(t, err)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.bells, w.born, w.quiet = append(w.bells, s), append(w.born, uint64(len(w.born))), append(w.quiet, 0)
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLEXCLUSIVE}
	require.NoError(t, unix.EpollCtl(w.own, unix.EPOLL_CTL_ADD, s.fd, &event))
}

func (*tower) Poll(int, transport.Classes) int { return 0 }
func (*tower) Arm()                            {}

func (w *tower) Watch(list []transport.Watch, _ transport.Classes) []transport.Watch {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, s := range w.bells {
		list = append(list, transport.Watch{Fd: int32(s.fd), Events: unix.POLLIN, Tag: w.born[i]})
	}
	return list
}

func (w *tower) Hang(epoll int, bell transport.Watch) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hangs++
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLEXCLUSIVE, Fd: bell.Fd}
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, int(bell.Fd), &event); err != nil {
		return err
	}
	if err := unix.EpollCtl(w.own, unix.EPOLL_CTL_DEL, int(bell.Fd), nil); err != nil {
		return err
	}
	return unix.EpollCtl(w.own, unix.EPOLL_CTL_ADD, int(bell.Fd), &event)
}

func (w *tower) Woken(list []transport.Watch) {
	for i := range list {
		if list[i].Ready != 0 {
			w.mu.Lock()
			w.bells[i].clear()
			w.quiet[i]++
			w.mu.Unlock()
		}
	}
}

// heardByOwn reports whether the transport's own epoll has a ring.
func (w *tower) heardByOwn(t *testing.T) bool {
	var event [1]unix.EpollEvent
	n, err := unix.EpollWait(w.own, event[:], 0)
	require.NoError(t, err)
	return n > 0
}

// keeper is an engine over such transports, and no more than sleeps need.
func keeper(rings ...transport.Exclusive) *Engine {
	e := &Engine{}
	for _, r := range rings {
		e.pollers.parking, e.pollers.exclusives = append(e.pollers.parking, r), append(e.pollers.exclusives, r)
	}
	return e
}

// sleeper sleeps with an engine's transports on a thread of its own, again and again, until the test ends it.
type sleeper struct {
	*waiter
	thread atomic.Int64
	woken  atomic.Int64
	stop   atomic.Bool
}

func (s *sleeper) run(e *Engine) {
	runtime.LockOSThread()
	defer s.close()
	s.thread.Store(int64(unix.Gettid()))
	for !s.stop.Load() {
		e.sleep(s.waiter, time.Minute)
		for i := range s.watches {
			if s.watches[i].Ready != 0 { // not by a signal of the runtime
				s.woken.Add(1)
			}
		}
	}
}

// sleeps reports whether the thread does.
func (s *sleeper) sleeps(t *testing.T) bool {
	if s.thread.Load() == 0 {
		return false
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/stat", s.thread.Load()))
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(text), ") ")
	return strings.HasPrefix(rest, "S")
}

// TestARingWakesOneSleeper of those that sleep. Without one it is heard by the transport itself.
func TestARingWakesOneSleeper(t *testing.T) {
	const rings = 100
	w := newTower(t, 2)
	e := keeper(w)
	var running sync.WaitGroup
	var sleepers [3]*sleeper
	for i := range sleepers {
		sleepers[i] = &sleeper{waiter: e.waiters.get()}
		running.Go(func() { sleepers[i].run(e) })
	}
	eventually := func(what string, f func() bool) {
		require.Eventually(t, f, 10*time.Second, 20*time.Microsecond, what)
	}
	count := func() (woken int64) {
		for _, s := range sleepers {
			woken += s.woken.Load()
		}
		return woken
	}
	allSleep := func() bool {
		for _, s := range sleepers {
			if !s.sleeps(t) {
				return false
			}
		}
		return true
	}
	for ring := range rings {
		eventually("sleep", allSleep)
		before := count()
		w.bells[ring%2].raise()
		eventually("an answer", func() bool { return count() > before })
	}
	eventually("sleep", allSleep)
	woken := count()
	require.Less(t, woken, int64(rings*3/2), "each ring wakes one, but for sleepers on their way to sleep")
	require.Equal(t, 2*len(sleepers), w.hangs, "once a sleeper and bell")
	for _, s := range sleepers {
		s.stop.Store(true)
		s.signal.raise()
	}
	running.Wait()

	w.bells[0].raise()
	require.True(t, w.heardByOwn(t), "nobody sleeps")
}

// TestAnEpollSetFollowsItsBells: new ones hang, one that is gone does not, and a descriptor that is another bell by now
// hangs anew.
func TestAnEpollSetFollowsItsBells(t *testing.T) {
	w := newTower(t, 2)
	e := keeper(w)
	s := e.waiters.get()
	defer s.close()
	ready := func() (list []int) {
		s.watches = w.Watch(s.watches[:0], transport.AllClasses)
		e.hang(s, w, s.watches)
		s.sleep(time.Millisecond)
		for i := range s.watches {
			require.True(t, s.watches[i].Hangs)
			if s.watches[i].Ready != 0 {
				list = append(list, i)
			}
		}
		return list
	}
	w.bells[1].raise()
	require.Equal(t, []int{1}, ready())
	w.build(t)
	w.bells[2].raise()
	require.Equal(t, []int{1, 2}, ready())
	require.Len(t, s.bells.hung, 3)

	last := w.bells[2]
	w.bells = w.bells[:2]
	require.Equal(t, []int{1}, ready(), "it is not watched any more, and rings")
	require.Len(t, s.bells.hung, 2)
	w.bells = append(w.bells, last)
	require.Equal(t, []int{1, 2}, ready())

	fd := last.fd
	require.NoError(t, last.close())
	w.bells = w.bells[:2]
	w.build(t)
	require.Equal(t, fd, w.bells[2].fd, "the number is taken again")
	w.born = append(w.born[:2], w.born[3])
	require.Equal(t, []int{1}, ready())
	w.bells[2].raise()
	require.Equal(t, []int{1, 2}, ready())
}

// TestASleeperHearsBellsBesideOthers: another descriptor, its own signal, and its time.
func TestASleeperHearsBellsBesideOthers(t *testing.T) {
	w := newTower(t, 1)
	answer, err := newSignal()
	require.NoError(t, err)
	defer func() { require.NoError(t, answer.close()) }()
	for _, beside := range []bool{false, true} {
		e := keeper(w)
		s := e.waiters.get()
		if beside {
			e.pollers.parking = append(e.pollers.parking, &finder{s, answer, func() {}})
			e.pollers.exclusives = append(e.pollers.exclusives, nil)
		}
		sleep := func(limit time.Duration) (ready []bool) {
			begin := clock.Now()
			require.True(t, e.sleep(s, limit))
			require.GreaterOrEqual(t, clock.Now().Sub(begin), min(limit, time.Millisecond)*9/10)
			for _, each := range s.watches {
				ready = append(ready, each.Ready != 0)
			}
			return ready
		}
		nothing := make([]bool, len(e.pollers.parking))
		require.Equal(t, nothing, sleep(200*time.Microsecond))
		require.Equal(t, nothing, sleep(2*time.Millisecond))
		for _, raised := range []*signal{w.bells[0], s.signal, answer} {
			if raised == answer && !beside {
				continue
			}
			raised.raise()
			s.watches = s.watches[:0]
			e.sleep(s, time.Hour)
			for i, each := range s.watches {
				rang := raised == w.bells[0] && i == 0 || raised == answer && i == 1
				require.Equal(t, rang, each.Ready != 0, "beside %v", beside)
			}
			answer.clear()
		}
		s.close()
	}
}
