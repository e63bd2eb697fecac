package transporttest

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/transport"
)

func parkRules() []rule {
	parks := needs[transport.Parker]("not a Parker")
	return []rule{
		{"SleepersFindWhatWokeThem", parks, testSleeper},
		{"SleepersMayBeMany", parks, testSleepers},
	}
}

// sleepMost is how long a sleeper of the suite sleeps at once. In an engine the end of a batch wakes it.
const sleepMost = 20 * time.Millisecond

// sleepOnce plays a waiter of the engine for some classes that parks, up to its Arm. It returns the number of
// descriptors.
func (p *pair) sleepOnce(t *testing.T, classes transport.Classes) (watched int) {
	parker := must[transport.Parker](p.a.Transport)
	list := parker.Watch(nil, classes)
	parker.Arm()
	if len(list) == 0 {
		return 0
	}
	if len(list) > transport.WatchesMost {
		t.Errorf("%d descriptors to sleep on", len(list))
	}
	if exclusive, is := transport.Find[transport.Exclusive](p.a.Transport); is {
		sleepWithBells(t, exclusive, list, sleepMost)
	} else {
		sleepOn(list)
	}
	parker.Woken(list)
	return len(list)
}

// sleepOn sleeps until one of the descriptors is ready.
func sleepOn(list []transport.Watch) {
	set := make([]unix.PollFd, len(list))
	for i, w := range list {
		set[i] = unix.PollFd{Fd: w.Fd, Events: w.Events}
	}
	limit := unix.NsecToTimespec(int64(sleepMost))
	if _, err := unix.Ppoll(set, &limit, nil); err == nil {
		for i := range set {
			list[i].Ready = set[i].Revents
		}
	}
}

// sleepWithBells sleeps until one of the bells rings, or for so long, and notes those that rang.
func sleepWithBells(t *testing.T, exclusive transport.Exclusive, bells []transport.Watch, most time.Duration) {
	epoll := hang(t, exclusive, bells)
	defer func() { require.NoError(t, unix.Close(epoll)) }()
	_ = sleepIn(epoll, bells, most)
}

// RingInSleep sleeps until one of the bells rings, or for so long, and notes those that rang. It calls ring once it is
// asleep: the kernel wakes somebody else for a bell that rings before. If such a ring has woken it, it calls ring, too.
func RingInSleep(t *testing.T, exclusive transport.Exclusive, bells []transport.Watch, most time.Duration,
	ring func()) {
	t.Helper()
	epoll := hang(t, exclusive, bells)
	defer func() { require.NoError(t, unix.Close(epoll)) }()
	thread, woken := make(chan int, 1), make(chan struct{})
	go func() {
		defer close(woken)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		thread <- unix.Gettid()
		for sleepIn(epoll, bells, most) != nil {
		}
	}()
	defer func() { <-woken }()
	path, in := fmt.Sprintf("/proc/self/task/%d/syscall", <-thread), fmt.Sprintf("0x%x", epoll)
	for ready := false; !ready; runtime.Gosched() {
		call, err := os.ReadFile(path) // its number and arguments, while it sleeps
		require.NoError(t, err)
		words := strings.Fields(string(call))
		select {
		case <-woken:
			ready = true
		default:
			ready = len(words) > 1 && words[1] == in
		}
	}
	ring()
}

// hang returns an epoll instance in which bells hang.
func hang(t *testing.T, exclusive transport.Exclusive, bells []transport.Watch) int {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	require.NoError(t, err)
	for _, b := range bells {
		if err := exclusive.Hang(epoll, b); err != nil {
			t.Errorf("bell %d: %v", b.Tag, err)
		}
	}
	return epoll
}

// sleepIn returns an error after a signal.
func sleepIn(epoll int, bells []transport.Watch, most time.Duration) error {
	events := make([]unix.EpollEvent, len(bells))
	n, err := unix.EpollWait(epoll, events, int(most.Milliseconds()))
	for _, e := range events[:max(n, 0)] {
		for i := range bells {
			if bells[i].Fd == e.Fd {
				bells[i].Ready = unix.POLLIN
			}
		}
	}
	return err
}

// sleepUntil sleeps as a waiter for some classes until the slices have ended.
func (p *pair) sleepUntil(t *testing.T, classes transport.Classes, list []*transport.Slice) {
	defer must[transport.Parker](p.a.Transport).Arm()
	late := clock.Now().Add(p.w.h.Patience)
	for {
		watched := p.sleepOnce(t, classes)
		p.w.mu.Lock()
		ended := p.c.endedLocked(list)
		p.w.mu.Unlock()
		if ended {
			return
		}
		if watched == 0 { // nothing is expected any more: the transport's own goroutines end them
			must[transport.Parker](p.a.Transport).Arm()
			p.c.Wait(t, list...)
			return
		}
		require.Less(t, clock.Now(), late, "a sleeper does not find the completions")
	}
}

// bySleeper reports whether it is called from within sleepOnce.
func bySleeper() bool {
	var stack [64]uintptr
	frames := runtime.CallersFrames(stack[:runtime.Callers(1, stack[:])])
	for {
		frame, more := frames.Next()
		if strings.HasSuffix(frame.Function, ".sleepOnce") {
			return true
		} else if !more {
			return false
		}
	}
}

func testSleeper(t *testing.T, h Harness) {
	p := newPair(t, h)
	var found atomic.Int32
	p.w.locked(func() {
		p.a.onComplete = func(transport.Completion) {
			if bySleeper() {
				found.Add(1)
			}
		}
	})
	const n = 20
	size := fit(p.c, 40_000)
	local, remote := p.operands(t, n*size)
	local.Fill(tagMoved, 0, local.Size)
	for round := range 30 {
		remote.Fill(tagBefore, 0, remote.Size)
		must[transport.Poller](p.a.Transport).Poll(0, transport.AllClasses) // as a waiter that looks first
		list := p.launch(transport.Write, p.c.Rail(t), local, remote, n, size)
		switch round % 3 {
		case 0:
			p.sleepUntil(t, transport.AllClasses, list)
		case 1: // it waits for something else, and must not hold the slices up
			p.sleepUntil(t, transport.AllClasses&^1, list)
		case 2: // something else wakes the sleeper, which leaves: the transport's own goroutines must go on
			parker := must[transport.Parker](p.a.Transport)
			if list := parker.Watch(nil, transport.AllClasses); len(list) > 0 {
				parker.Arm()
				parker.Woken(list)
			}
			parker.Arm()
		}
		p.arrive(t, list, remote.Memory, size)
	}
	require.Positive(t, found.Load(), "others found all that it slept for")
}

func testSleepers(t *testing.T, h Harness) {
	p := newPair(t, h)
	var jobs []*job
	for i := range 3 {
		jobs = append(jobs, newJob(t, p.c, transport.Op(i&1), 60, 20_000))
	}
	p.meanwhile(3, func() {
		for range 3 {
			p.sleepOnce(t, transport.AllClasses)
		}
		must[transport.Parker](p.a.Transport).Arm()
	}, func() { runJobs(t, jobs) })
}
