package transporttest

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// must returns an optional interface that the rule was selected by.
func must[T any](tr transport.Transport) T {
	v, _ := transport.Find[T](tr)
	return v
}

// needs skips a rule over transports without an optional interface, for a reason.
func needs[T any](reason string) func(Harness, transport.Transport) string {
	return func(_ Harness, tr transport.Transport) string {
		_, is := transport.Find[T](tr)
		return unless(is, reason)
	}
}

func optionalRules() []rule {
	polls, notifies := needs[transport.Poller]("not a Poller"), needs[transport.Notifier]("not a Notifier")
	matches := func(h Harness, tr transport.Transport) string {
		_, is := transport.Find[transport.Matcher](tr)
		return unless(is && h.Partial > 0, "every key works on every rail")
	}
	return []rule{
		{"KeysWorkOnTheRailsOfTheirMatch", matches, testMatch},
		{"PollFindsCompletionsAndArmHandsBack", polls, testPoller},
		{"PollersMayBeMany", polls, testPollers},
		{"NotificationsArriveOnceAndAreAcknowledged", notifies, testNotify},
		{"NotificationsWaitForRoom", notifies, testNotifyRoom},
		{"ProbesAreAnsweredOnce", needs[transport.Prober]("not a Prober"), testProbe},
		{"WitnessesHaveHeardOfWhoAnswers", needs[transport.Witness]("not a Witness"), testWitness},
		{"ExplainSaysSomething", needs[transport.Explainer]("not an Explainer"), testExplain},
		{"AllocatedMemoryIsZeroedAndWorks", needs[transport.Allocator]("not an Allocator"), testAllocator},
	}
}

// pollUntil plays a waiter of the engine: it looks itself until the slices have ended.
func (p *pair) pollUntil(t *testing.T, list []*transport.Slice) {
	defer must[transport.Poller](p.a.Transport).Arm()
	p.c.Poll(t, 16, list...)
}

// Poll polls until slices have ended. Poll's own count would not do: a goroutine of the transport that was awake before
// may find some of the ends.
func (c *Conn) Poll(t *testing.T, budget int, list ...*transport.Slice) {
	t.Helper()
	poller, w := must[transport.Poller](c.Node.Transport), c.Node.w
	for late := clock.Now().Add(w.h.Patience); ; runtime.Gosched() {
		poller.Poll(budget, transport.AllClasses)
		w.mu.Lock()
		ended := c.endedLocked(list)
		w.mu.Unlock()
		if ended {
			return
		}
		require.Less(t, clock.Now(), late, "Poll does not find the completions")
	}
}

func testPoller(t *testing.T, h Harness) {
	p := newPair(t, h)
	const n = 20
	size := fit(p.c, 40_000)
	local, remote := p.operands(t, n*size)
	local.Fill(tagMoved, 0, local.Size)
	for round := range 20 {
		remote.Fill(tagBefore, 0, remote.Size)
		list := p.launch(transport.Write, p.c.Rail(t), local, remote, n, size)
		if round%3 == 2 { // the waiter leaves early: the transport's own goroutines must go on
			must[transport.Poller](p.a.Transport).Poll(1, transport.AllClasses)
			must[transport.Poller](p.a.Transport).Arm()
		} else {
			p.pollUntil(t, list)
		}
		p.arrive(t, list, remote.Memory, size)
	}
}

func testPollers(t *testing.T, h Harness) {
	p := newPair(t, h)
	var jobs []*job
	for i := range 3 {
		jobs = append(jobs, newJob(t, p.c, transport.Op(i&1), 60, 20_000))
	}
	p.meanwhile(3, func() {
		poller := must[transport.Poller](p.a.Transport)
		for range 10 {
			poller.Poll(4, transport.AllClasses)
		}
		poller.Arm()
	}, func() { runJobs(t, jobs) })
}

// meanwhile calls do over and over on n goroutines until other has returned.
func (p *pair) meanwhile(n int, do, other func()) {
	stop := make(chan struct{})
	var wait sync.WaitGroup
	for range n {
		wait.Go(func() {
			for {
				do()
				select {
				case <-stop:
					return
				default:
					runtime.Gosched()
				}
			}
		})
	}
	defer wait.Wait()
	defer close(stop)
	other()
}

// notifyAll sends messages, again where the transport gives one back, until each is acknowledged.
func (p *pair) notifyAll(t *testing.T, messages []string) {
	t.Helper()
	notifier := must[transport.Notifier](p.a.Transport)
	calls, acked := make([]int, len(messages)), make([]bool, len(messages))
	sent := make([]int, len(messages))
	for {
		var again []int
		p.w.Await(t, "notifications to be acknowledged", func() bool {
			again = again[:0]
			missing := 0
			for i := range messages {
				if calls[i] > sent[i] {
					p.w.complain("done of notification %d was called twice", i)
					calls[i] = sent[i]
				}
				if !acked[i] {
					if missing++; calls[i] == sent[i] {
						again = append(again, i)
					}
				}
			}
			return len(again) > 0 || missing == 0
		})
		if len(again) == 0 {
			return
		}
		for _, i := range again {
			p.w.locked(func() { sent[i]++ })
			if !notifier.Notify(p.c.Link, []byte(messages[i]), func(err *errs.Error) {
				p.w.locked(func() { calls[i]++; acked[i] = acked[i] || err == nil })
			}) {
				p.w.locked(func() { sent[i]-- })
				runtime.Gosched()
			}
		}
	}
}

func testNotify(t *testing.T, h Harness) {
	p := newPair(t, h)
	back := p.b.Connect(t, p.a)
	var messages []string
	for i := range 200 {
		messages = append(messages, fmt.Sprintf("message %d %s", i, strings.Repeat("x", i*i%3000)))
	}
	messages = append(messages, strings.Repeat("long", 16<<10)) // 64 KiB, the longest that users may send
	pairOf(back).notifyAll(t, messages[:10])
	p.notifyAll(t, messages)
	p.w.locked(func() {
		got := map[string]int{}
		for _, n := range p.b.notes {
			require.Equal(t, p.a.Peer.Address, n.from)
			got[n.message]++
		}
		for i, m := range messages {
			require.Equal(t, 1, got[m], "notification %d", i)
		}
		require.Len(t, p.b.notes, len(messages))
		require.Len(t, p.a.notes, 10)
	})
	if h.CutRail != nil {
		p.notifyUnderCuts(t)
	}
}

// notifyUnderCuts notifies while rails break. A notification that was taken has one answer, one that was refused none.
// Few are out at once: a simulated network would have more events at each moment than it gets through.
func (p *pair) notifyUnderCuts(t *testing.T) {
	notifier := must[transport.Notifier](p.a.Transport)
	const most = 64
	due := 0 // answers
	notify := func() {
		full := false
		p.w.locked(func() {
			if full = due >= most; !full {
				due++
			}
		})
		if full {
			runtime.Gosched()
			return
		}
		answers, answersMax := 0, 1
		taken := notifier.Notify(p.c.Link, []byte("news"), func(*errs.Error) {
			p.w.locked(func() {
				due--
				if answers++; answers > answersMax {
					p.w.complain("done of a notification was called %d times, %d is right", answers, answersMax)
				}
			})
		})
		p.w.locked(func() {
			if taken {
				return
			}
			due--
			if answersMax = 0; answers > 0 {
				p.w.complain("done of a notification that was refused")
			}
		})
	}
	for range 6 {
		rail := p.c.Rail(t)
		p.meanwhile(2, notify, func() {
			p.w.h.CutRail(t, p.a, rail)
			p.comesBack(t, rail)
		})
	}
	p.w.Await(t, "the answers to notifications", func() bool { return due <= 0 })
}

func testNotifyRoom(t *testing.T, h Harness) {
	p := newPair(t, h)
	p.w.locked(func() { p.b.refuseNotes = true })
	acked := false
	notifier := must[transport.Notifier](p.a.Transport)
	ends := 0
	require.True(t, notifier.Notify(p.c.Link, []byte("no room"), func(err *errs.Error) {
		p.w.locked(func() { acked = err == nil; ends++ })
	}))
	p.w.Await(t, "the peer to refuse a message", func() bool { return p.b.noteRefused > 0 })
	p.w.locked(func() {
		require.False(t, acked, "acknowledged although the queue was full")
		p.b.refuseNotes = false
	})
	p.w.Await(t, "the end of the refused message", func() bool { return ends > 0 })
	if !acked { // given back to the sender
		p.notifyAll(t, []string{"no room"})
	}
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	require.Equal(t, []note{{p.a.Peer.Address, "no room"}}, p.b.notes)
}

func testProbe(t *testing.T, h Harness) {
	p := newPair(t, h)
	const n = 20
	answers := 0
	for _, rail := range p.c.Rails() {
		p.c.AwaitProbe(t, rail)
		before := answers
		for range n {
			p.c.probe(rail, func(rtt clock.Time, err *errs.Error) {
				p.w.locked(func() {
					if answers++; err != nil || rtt < 0 {
						p.w.complain("probe of a healthy rail: %d ns, %v", rtt, err)
					}
				})
			})
		}
		p.w.Await(t, "answers to probes", func() bool { return answers >= before+n })
	}
	stale := p.c.Rail(t)
	stale.Generation += 1000
	var failed *errs.Error
	healthy := answers
	p.c.probe(stale, func(_ clock.Time, err *errs.Error) { p.w.locked(func() { answers++; failed = err }) })
	p.w.Await(t, "the answer to a stale probe", func() bool { return answers > healthy })
	require.NotNil(t, failed)
}

// probe asks a rail. A second answer is a complaint.
func (c *Conn) probe(rail transport.Rail, done func(rtt clock.Time, err *errs.Error)) {
	w, answers := c.Node.w, 0
	must[transport.Prober](c.Node.Transport).Probe(rail, func(rtt clock.Time, err *errs.Error) {
		again := false
		w.locked(func() {
			if answers++; answers > 1 {
				w.complain("a probe was answered %d times", answers)
				again = true
			}
		})
		if !again {
			done(rtt, err)
		}
	})
}

// AwaitProbe waits until a rail answers a probe. A rail takes nothing before RailUp has returned, and tests hear of it
// within that.
func (c *Conn) AwaitProbe(t *testing.T, rail transport.Rail) {
	t.Helper()
	for late := clock.Now().Add(c.Node.w.h.Patience); ; runtime.Gosched() {
		answer := make(chan *errs.Error, 1)
		c.probe(rail, func(_ clock.Time, err *errs.Error) { answer <- err })
		err := <-answer
		if err == nil {
			return
		}
		require.Equal(t, errs.StaleGeneration, err.Code, "%v", err)
		require.Less(t, clock.Now(), late, "the rail takes no probe: %v", err)
	}
}

// testMatch tries memory that works on some rails only on every rail. It moves where Match says so, is refused
// elsewhere, and the rail lives on.
func testMatch(t *testing.T, h Harness) {
	p := newPair(t, h)
	p.w.Await(t, "two rails", func() bool { return len(p.c.railsLocked()) >= 2 })
	matcher := must[transport.Matcher](p.a.Transport)
	local, remote := p.operands(t, h.Partial)
	match, err := matcher.Match(p.c.Link, local.Key, remote.Key)
	require.NoError(t, err)
	require.NotZero(t, match.Rails)
	require.NotEmpty(t, match.Why)
	size := fit(p.c, h.Partial)
	out := 0
	for _, rail := range p.c.Rails() {
		for _, op := range []transport.Op{transport.Write, transport.Read} {
			local.Fill(tagMoved, 0, local.Size)
			remote.Fill(tagMoved, 0, remote.Size)
			from, to := local, remote.Operand
			if op == transport.Read {
				from, to = to, from
			}
			to.Fill(tagBefore, 0, to.Size)
			err := p.c.One(t, p.c.Slice(op, rail, local, 0, remote, 0, size))
			if match.Rails>>min(rail.Index, 63)&1 != 0 {
				require.Nil(t, err, "rail %d", rail.Index)
				require.NoError(t, to.Check(tagMoved, 0, 0, size))
				continue
			}
			out++
			require.NotNil(t, err, "rail %d", rail.Index)
			require.Equal(t, errs.NotHere, err.Code, "%v", err)
			require.Equal(t, errs.ScopeRail, err.Scope, "%v", err)
			require.NoError(t, to.Check(tagBefore, 0, 0, size), "%v on rail %d", op, rail.Index)
			require.NoError(t, from.Check(tagMoved, 0, 0, size))
			whole, far := p.operands(t, 64)
			p.c.Must(t, p.c.Slice(op, rail, whole, 0, far, 0, fit(p.c, 64)))
		}
	}
	require.NotZero(t, out, "a rail is left out")
	all, free := p.operands(t, 64)
	match, err = matcher.Match(p.c.Link, all.Key, free.Key)
	require.NoError(t, err)
	require.Equal(t, transport.Match{}, match, "other memory works everywhere")
}

// heardGrain is how early a system's account of the last sign of life may be.
const heardGrain = 20 * time.Millisecond

func testWitness(t *testing.T, h Harness) {
	p := newPair(t, h)
	witness := must[transport.Witness](p.a.Transport)
	rail := p.c.Rail(t)
	size := fit(p.c, 64<<10)
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		local, remote := p.operands(t, size)
		begin := clock.Now()
		require.Nil(t, p.c.One(t, p.c.Slice(op, rail, local, 0, remote, 0, size)))
		signs, now := witness.Heard(rail), clock.Now()
		for what, at := range map[string]clock.Time{"heard of": signs.Heard, "moving": signs.Moved,
			"speaking": signs.Spoke} {
			require.GreaterOrEqual(t, at, begin.Add(-heardGrain), "%v has completed, so the peer was %s", op, what)
			require.LessOrEqual(t, at, now)
		}
		require.False(t, signs.Held, "nothing waits")
	}
	rail.Generation += 1000
	require.Zero(t, witness.Heard(rail), "a stale rail was not heard of")
}

func testExplain(t *testing.T, h Harness) {
	p := newPair(t, h)
	explainer := must[transport.Explainer](p.a.Transport)
	require.NotEmpty(t, explainer.Explain(p.c.Link))
	_ = explainer.Explain(p.c.Link + 1000) // no crash
}

func testAllocator(t *testing.T, h Harness) {
	p := newPair(t, h)
	allocator := must[transport.Allocator](p.b.Transport)
	device, at := hostDevice, mem.Location("cpu:0")
	if h.Remote != nil {
		device, at = h.Remote, h.Remote.Location
	}
	region, err := allocator.Allocate(transport.Allocation{Size: 1 << 20, Location: at})
	require.NoError(t, err)
	own := &Operand{Memory: &Memory{Addr: region.Addr, Size: region.Size, device: device, fd: -1}, Node: p.b}
	whole := make([]byte, region.Size)
	own.Load(whole, 0)
	require.Equal(t, make([]byte, region.Size), whole)
	region.ID, region.Permission = 1, mem.GlobalReadWrite
	own.Key, own.Descriptor, err = p.b.Transport.Register(t.Context(), region)
	require.NoError(t, err)
	local := p.a.Register(t, 1<<20, mem.LocalReadWrite)
	local.Fill(tagMoved, 0, local.Size)
	size := fit(p.c, 1<<20)
	p.c.Must(t, p.c.Slice(transport.Write, p.c.Rail(t), local, 0, p.c.Import(t, own), 0, size))
	require.NoError(t, own.Check(tagMoved, 0, 0, size))
	own.Deregister(t)
	require.NoError(t, allocator.Free(region))
}

// hostDevice is plain memory that the suite did not map.
var hostDevice = &Device{
	Load:  func(into []byte, addr uintptr) { copy(into, mem.Bytes(addr, len(into))) },
	Store: func(addr uintptr, from []byte) { copy(mem.Bytes(addr, len(from)), from) },
}
