package engine

import (
	"context"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/sim"
	"github.com/tent-engine/tent/transports/tcp"
	"github.com/tent-engine/tent/transports/transporttest"
)

// watcher counts the sleeps for batches of one class in which its transport was watched, and the completions that a
// sleeper read itself.
type watcher struct {
	transport.Parker
	watched, woken *atomic.Int64
}

func (w watcher) Watch(list []transport.Watch, classes transport.Classes) []transport.Watch {
	longer := w.Parker.Watch(list, classes)
	if len(longer) > len(list) && bits.OnesCount8(uint8(classes)) == 1 {
		w.watched.Add(1)
	}
	return longer
}

func (w watcher) Woken(list []transport.Watch) {
	for i := range list {
		if list[i].Ready != 0 {
			w.woken.Add(1)
		}
	}
	w.Parker.Woken(list)
}

// looker counts its looks by their numbers of classes.
type looker struct {
	transport.Poller
	looks *[9]atomic.Int64
}

func (l looker) Poll(budget int, classes transport.Classes) int {
	l.looks[bits.OnesCount8(uint8(classes))].Add(1)
	return l.Poller.Poll(budget, classes)
}

// blind has a completion queue, and no descriptor to sleep on.
type blind struct{ transport.Factory }

func (b blind) Open(ctx context.Context, config any, host transport.Host, sink transport.Sink) (transport.Transport,
	error) {
	inner, err := transporttest.Queued{Factory: b.Factory}.Open(ctx, config, host, sink)
	if err != nil {
		return nil, err
	}
	poller, _ := transport.Find[transport.Poller](inner)
	return struct {
		transport.Transport
		transport.Poller
	}{inner, poller}, nil
}

// drive lets a simulated network run beside the test until it ends. Events come at random moments.
func drive(t *testing.T, n *sim.Network, seed uint64) {
	stop := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		random := rand.New(rand.NewPCG(seed, 1))
		for {
			select {
			case <-stop:
				return
			case <-n.Changed():
			}
			for next := n.NextEvent(); next != clock.Never; next = n.NextEvent() {
				for range random.IntN(200) {
					runtime.Gosched()
				}
				n.Advance(next)
			}
		}
	})
	t.Cleanup(func() { close(stop); running.Wait() })
}

// mapped is memory outside of Go's heap: the race detector does not see the order that a socket makes.
func mapped(t *testing.T, size int) []byte {
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(b)) })
	return b
}

// openSleeper opens an engine over tcp, two transports with completion queues, and a third one that is blind. Its
// waiters never spin.
func openSleeper(t *testing.T, networks map[string]*sim.Network, watched, woken *[3]atomic.Int64,
	looks *[9]atomic.Int64) *Engine {
	names := []string{tcp.Name, "left", "right", "blind"}
	plugs := []Plug{{Factory: tcp.Factory{}, Settings: tcp.Settings{}}}
	for _, name := range names[1:] {
		s := sim.Factory{Settings: sim.Settings{Network: networks[name], Name: name, Rails: 2}}
		plug := Plug{Factory: transporttest.Queued{Factory: s}}
		if name == "blind" {
			plug.Factory = blind{s}
		}
		plugs = append(plugs, plug)
	}
	table := config.WithRails(names...)
	for i := range table {
		table[i].Number = uint8(i + 1)
	}
	c, err := config.Load(config.Options{Transports: table}, nil)
	require.NoError(t, err)
	e, err := Open(t.Context(), Options{Config: c, Transports: plugs})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.Empty(t, e.Close(patience, true))
		require.NoError(t, e.Forget())
	})
	e.spinner.cores = 1
	require.Len(t, e.pollers.parking, len(names)-1)
	require.Len(t, e.pollers.answering, len(names), "no copier is among them")
	for i := range e.pollers.parking {
		e.pollers.parking[i] = watcher{e.pollers.parking[i], &watched[i], &woken[i]}
	}
	for i := range e.pollers.answering {
		e.pollers.answering[i] = looker{e.pollers.answering[i], looks}
	}
	return e
}

// TestSleepersOfSeveralTransportsAreAlwaysWoken moves bytes by random ones of three transports that waiters sleep on,
// and of one that completes by its own goroutine. Nobody spins, and no wait has a limit that is reached. A wake-up that
// got lost leaves its waiter asleep for good.
func TestSleepersOfSeveralTransportsAreAlwaysWoken(t *testing.T) {
	const sleepers, rounds, slot = 6, 400, 16 << 10
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	networks := map[string]*sim.Network{"left": sim.New(seed), "right": sim.New(seed + 1),
		"blind": sim.New(seed + 2)}
	for name, n := range networks {
		n.Shape(sim.Anywhere, sim.Shape{Jitter: time.Millisecond})
		drive(t, n, seed+uint64(len(name)))
	}
	var watched, woken, other [3]atomic.Int64
	var looks, rest [9]atomic.Int64
	here, there := openSleeper(t, networks, &watched, &woken, &looks), openSleeper(t, networks, &other, &other, &rest)
	own, theirs := mapped(t, sleepers*slot), mapped(t, sleepers*slot)
	base := uintptr(unsafe.Pointer(&own[0]))
	_, err := here.Register(Memory{Addr: base, Size: uint64(len(own)), Location: mem.Wildcard})
	require.NoError(t, err)
	_, err = there.Register(Memory{Addr: uintptr(unsafe.Pointer(&theirs[0])), Size: uint64(len(theirs)), Name: "kv",
		Location: mem.Wildcard, Permission: mem.GlobalReadWrite})
	require.NoError(t, err)
	at, err := here.OpenSegment(context.Background(), there.Address()+"/kv")
	require.NoError(t, err)

	failures := make(chan string, sleepers)
	var running sync.WaitGroup
	for i := range uint64(sleepers) {
		running.Go(func() {
			random := rand.New(rand.NewPCG(seed, i+2))
			from, to := own[i*slot:(i+1)*slot], theirs[i*slot:(i+1)*slot]
			for round := range rounds {
				n := 1 + random.Uint64N(slot)
				for k := range from[:n] {
					from[k] = byte(random.Uint32())
				}
				chosen := here.ports[random.IntN(len(here.ports))]
				terms := Terms{Op: transport.Write, Require: 1 << chosen.number,
					Class: uint8(random.IntN(dispatch.ClassCount))}
				id, err := here.Move(&Request{Terms: terms, Source: base + uintptr(i*slot),
					Remote: Remote{Segment: at, Offset: i * slot}, Length: n})
				state := dispatch.Failed
				if err == nil {
					state = here.Wait(id, time.Hour)
				}
				if state != dispatch.Completed || string(from[:n]) != string(to[:n]) {
					failures <- fmt.Sprintf("seed %d, sleeper %d, round %d over %s: %s, %v", seed, i, round,
						chosen.name, state, err)
					return
				}
				_ = here.FreeBatch(id)
			}
		})
	}
	done := make(chan struct{})
	go func() { running.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		var stacks [1 << 16]byte
		t.Fatalf("a waiter sleeps for good:\n%s", stacks[:runtime.Stack(stacks[:], true)])
	}
	close(failures)
	for why := range failures {
		t.Error(why)
	}
	for i := range watched {
		require.Positive(t, watched[i].Load(), "nobody slept on %s", here.ports[i].name)
		require.Positive(t, woken[i].Load(), "%s woke nobody", here.ports[i].name)
	}
	require.True(t, looks[1].Load() > 0 && looks[0].Load() == 0, "looks by their numbers of classes: %v", &looks)
}

// lookout is a transport that is watched by a waiter which has seen its batch pending. It waits for the end, and notes
// whether the waiter would have slept on.
type lookout struct {
	w     *waiter
	ended *atomic.Int64
	round int64
	lost  int
}

func (*lookout) Poll(int, transport.Classes) int { return 0 }
func (*lookout) Arm()                            {}
func (*lookout) Woken([]transport.Watch)         {}

func (l *lookout) Watch(list []transport.Watch, _ transport.Classes) []transport.Watch {
	for l.ended.Load() < l.round {
		runtime.Gosched()
	}
	set := []unix.PollFd{{Fd: int32(l.w.signal.fd), Events: unix.POLLIN}}
	if n, err := unix.Poll(set, 0); n != 1 || err != nil {
		l.lost++
	}
	return list
}

// TestTheEndOfABatchWakesASleeperAtAnyMoment lets batches end just when their waiter goes to sleep, a few nanoseconds
// earlier or later each time. A waiter that has seen its batch pending must be woken.
func TestTheEndOfABatchWakesASleeperAtAnyMoment(t *testing.T) {
	const rounds = 20_000
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	e := &Engine{}
	e.page = newPage(1)
	w := e.waiters.get()
	defer w.close()
	var begun, ended atomic.Int64
	watched := &lookout{w: w, ended: &ended}
	e.pollers.parking, e.pollers.exclusives = []transport.Parker{watched}, make([]transport.Exclusive, 1)
	id := func(round int64) dispatch.BatchID { return dispatch.BatchID(round) << 32 }

	var running sync.WaitGroup
	running.Go(func() {
		for round := int64(1); round <= rounds; round++ {
			for begun.Load() < round {
				runtime.Gosched()
			}
			for n := random.IntN(100); n > 0; n-- {
				_ = begun.Load()
			}
			e.page.publish(id(round), dispatch.Completed, 0, 0, 1)
			w.wakeUp()
			ended.Store(round)
		}
	})
	until, slept := clock.Now().Add(time.Hour), 0
	for round := int64(1); round <= rounds; round++ {
		watched.round = round
		e.page.publish(id(round), dispatch.Pending, 0, 1, 0)
		begun.Store(round)
		e.parkInKernel(id(round), w, clock.Now(), until)
		for ended.Load() < round {
			runtime.Gosched()
		}
		select {
		case <-w.wake:
			slept++
		default:
		}
		w.signal.clear()
	}
	running.Wait()
	require.Zero(t, watched.lost, "seed %d: ends that woke nobody", seed)
	require.Equal(t, rounds, slept, "each end leaves a token")
}

// finder is a transport that has an answer at once: reading it ends the batch of the waiter that was woken.
type finder struct {
	w      *waiter
	answer *signal
	end    func()
}

func (*finder) Poll(int, transport.Classes) int { return 0 }
func (*finder) Arm()                            {}

func (f *finder) Watch(list []transport.Watch, classes transport.Classes) []transport.Watch {
	return append(list, transport.Watch{Fd: int32(f.answer.fd), Events: unix.POLLIN})
}

func (f *finder) Woken([]transport.Watch) {
	f.end()
	f.w.wakeUp()
}

// TestASleeperThatReadsItsOwnEndRaisesNoSignal: it would wake the next sleep for nothing, and costs three system calls.
func TestASleeperThatReadsItsOwnEndRaisesNoSignal(t *testing.T) {
	e := &Engine{}
	e.page = newPage(1)
	w := e.waiters.get()
	defer w.close()
	answer, err := newSignal()
	require.NoError(t, err)
	defer func() { require.NoError(t, answer.close()) }()
	answer.raise()
	const id = dispatch.BatchID(1) << 32
	e.page.publish(id, dispatch.Pending, 0, 1, 0)
	find := func() { e.page.publish(id, dispatch.Completed, 0, 0, 1) }
	e.pollers.parking = []transport.Parker{&finder{w, answer, find}}
	e.pollers.exclusives = make([]transport.Exclusive, 1)
	require.False(t, e.parkInKernel(id, w, clock.Now(), clock.Now().Add(time.Hour)))
	set := []unix.PollFd{{Fd: int32(w.signal.fd), Events: unix.POLLIN}}
	n, err := unix.Poll(set, 0)
	require.NoError(t, err)
	require.Zero(t, n, "the thread was awake")
	require.False(t, w.parked.Load())
}

// TestAWaitPassesTheSchedulerOnOneProcessor: with a second one, yielding costs a caller from Python more.
func TestAWaitPassesTheSchedulerOnOneProcessor(t *testing.T) {
	start := clock.Now()
	one, two := spinner{cores: 1}, spinner{cores: 2}
	one.passScheduler(start)
	two.passScheduler(start)
	require.False(t, one.passes.Pass(start), "it has passed just now")
	require.True(t, two.passes.Pass(start), "it had not passed")
}

// TestAWaitSpinsForTheTimeOfTheSettingBesideAnyPrediction covers both rules: the prediction decides without the
// setting, and never makes a wait shorter with it.
func TestAWaitSpinsForTheTimeOfTheSettingBesideAnyPrediction(t *testing.T) {
	const long, longer = 20 * time.Microsecond, 5 * time.Millisecond
	for _, c := range []struct {
		cores       int
		busy, usual time.Duration
		short       bool
		want        time.Duration
	}{
		{2, 0, 0, true, spinMost},
		{2, 0, 0, false, 0},
		{2, 0, 2 * spinMost, true, 0},
		{2, long, 0, true, spinMost},
		{2, long, 0, false, long},
		{2, longer, 0, true, longer},
		{2, longer, 0, false, longer},
		{2, longer, 2 * spinMost, true, longer},
		{1, longer, 0, true, 0},
	} {
		e := &Engine{spinner: spinner{cores: c.cores, busyPoll: c.busy}}
		e.spinner.usual.Store(int64(c.usual))
		require.Equal(t, c.want, e.spinner.limit(c.short), "%+v", c)
	}
}

// TestAWaitDoesNotSpinBesideThreadsThatCompute leaves them the processor at once, but for busy polling.
func TestAWaitDoesNotSpinBesideThreadsThatCompute(t *testing.T) {
	for _, busy := range []time.Duration{0, time.Millisecond} {
		e := &Engine{spinner: spinner{cores: 2, busyPoll: busy}}
		e.spinner.company.Note(time.Second)
		require.Equal(t, busy, e.spinner.limit(true))
		for e.spinner.company.Sleeps() {
		}
		require.Equal(t, max(busy, spinMost), e.spinner.limit(true), "it tries again")
	}
}

// A batch to which nothing was submitted has ended, as its state says. So a thread that waits for two of three batches
// does not park when another one has ended since its look.
func TestABatchWithoutTasksCountsAsEndedForThoseThatWait(t *testing.T) {
	w := newWorkshop(t, "hand")
	empty, err := w.NewBatch(1)
	require.NoError(t, err)
	ended, err := w.NewBatch(1)
	require.NoError(t, err)
	r := w.request(w.region("own"), w.region("far"))
	pending, err := w.Move(&r)
	require.NoError(t, err)
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		w.parkAny([]dispatch.BatchID{empty, ended, pending}, 2, time.Hour)
	}()
	select {
	case <-returned:
	case <-time.After(patience):
		require.Fail(t, "it waits for the third one")
	}
	require.Equal(t, 2, w.WaitMany([]dispatch.BatchID{empty, ended, pending}, 2, time.Hour))
}
