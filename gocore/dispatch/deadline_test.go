package dispatch

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/rail"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/transport"
)

// urgentRig is a rig with transports that serve by deadline.
func urgentRig(t *testing.T) *rig {
	r := newRig(t, Options{Rails: []RailOptions{{ByDeadline: true}, {ByDeadline: true}, {}}})
	return r
}

// measure has the rails of a link believe that they have measured a rate.
func (r *rig) measure(id plan.LinkID, rate float64) {
	for _, rail := range r.core.link(id).rails {
		m := &rail.meter
		m.Reset(rate)
		m.Begin(r.now)
		n := uint64(rate * (30 * ms).Seconds())
		for k := 1; k <= 5; k++ { // one sample is not believed
			m.Full(false)
			m.Delivered(n, n, 30*ms, k == 5, r.now.Add(time.Duration(k)*30*ms))
		}
		require.InEpsilon(r, rate, m.MaxBandwidth(), 1e-9)
	}
	r.now = r.now.Add(150 * ms)
}

// narrow adds a link with one rail that takes one slice at a time.
func (r *rig) narrow() plan.LinkID {
	id := r.link(1, 0, 1, 128*kib)
	r.core.link(id).rails[0].slicesMax = 1
	return id
}

// occupy fills the only slice of a rail, so that the next request waits.
func (r *rig) occupy(p *plan.Plan) {
	r.submitAll(TaskSpec{Terms: request.Terms{Op: transport.Write}, Plan: p, Local: 1, Remote: 1, Length: 64 * kib})
	require.Len(r, r.out, 1)
}

// order submits the wanted requests one by one behind an occupied rail and returns in which order they were served.
func (r *rig) order(p *plan.Plan, class uint8, requests []timed) (served []int) {
	r.occupy(p)
	for i, q := range requests {
		deadline := clock.Never
		if q.in != 0 {
			deadline = r.now.Add(q.in)
		}
		r.submitAll(TaskSpec{Terms: request.Terms{Op: transport.Write, Class: class, Deadline: deadline}, Plan: p,
			Local: uintptr(i+1) << 30, Remote: uint64(i) << 31,
			Length: q.bytes})
	}
	r.finish(0, nil)
	for len(r.out) > 0 {
		if i := int(r.out[0].Local>>30) - 1; !slices.Contains(served, i) {
			served = append(served, i)
		}
		r.finish(0, nil)
	}
	return served
}

type timed struct {
	in    time.Duration // of its deadline from now; 0: none
	bytes uint64
}

func TestAClassIsServedBySlack(t *testing.T) {
	for name, test := range map[string]struct {
		rate     float64 // 0: not measured
		requests []timed
		served   []int
	}{
		"a tighter deadline first": {0, []timed{{3 * time.Second, kib}, {time.Second, kib},
			{2 * time.Second, kib}}, []int{1, 2, 0}},
		"equals in their order": {0, []timed{{time.Second, kib}, {time.Second, kib}, {time.Second, kib}},
			[]int{0, 1, 2}},
		"without a deadline last": {0, []timed{{0, kib}, {time.Hour, kib}, {0, kib}, {time.Second, kib}},
			[]int{3, 1, 0, 2}},
		"none has one":                       {0, []timed{{0, 3 * kib}, {0, kib}, {0, 2 * kib}}, []int{0, 1, 2}},
		"the longer of two is more urgent":   {1e6, []timed{{time.Second, kib}, {time.Second, 64 * kib}}, []int{1, 0}},
		"longer, not urgent enough":          {1e6, []timed{{time.Second, kib}, {1100 * ms, 64 * kib}}, []int{0, 1}},
		"length says nothing without a rate": {0, []timed{{time.Second, kib}, {time.Second, 64 * kib}}, []int{0, 1}},
		"what is served keeps its place": {1e6, []timed{{time.Second, 128 * kib}, {time.Second, 96 * kib}},
			[]int{0, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			r := urgentRig(t)
			id := r.narrow()
			if test.rate > 0 {
				r.measure(id, test.rate)
			}
			require.Equal(t, test.served, r.order(to(r.core, id), Medium, test.requests))
		})
	}
}

func TestClassesComeBeforeDeadlines(t *testing.T) {
	r := urgentRig(t)
	id := r.narrow()
	p := to(r.core, id)
	r.occupy(p)
	low := r.submit(p, Low, kib, r.now.Add(5*ms))
	high := r.submit(p, High, kib, clock.Never)
	r.finish(0, nil)
	require.EqualValues(t, High, r.out[0].Class)
	r.finish(0, nil)
	require.Equal(t, Completed, r.status(high).State)
	r.finish(0, nil)
	require.Equal(t, Completed, r.status(low).State)
}

func TestArrivalDecidesWhereTheSettingIsOff(t *testing.T) {
	r := newRig(t, Options{})
	id := r.narrow()
	require.Equal(t, []int{0, 1, 2}, r.order(to(r.core, id), High, []timed{{0, kib}, {time.Second, kib}, {ms, kib}}))
}

func TestAMoreUrgentTaskGetsTheNextSlice(t *testing.T) {
	r := urgentRig(t)
	id := r.narrow()
	p := to(r.core, id)
	long := r.submit(p, High, 1<<20, r.now.Add(time.Second))
	require.Len(t, r.out, 1)
	urgent := r.submit(p, High, kib, r.now.Add(100*ms))
	r.finish(0, nil)
	require.EqualValues(t, kib, r.out[0].Length)
	r.drain()
	require.Equal(t, Completed, r.status(urgent).State)
	require.Equal(t, Completed, r.status(long).State)
}

func TestWhatCannotMakeItIsNotSent(t *testing.T) {
	const rate = 1e6 // bytes/s; a request of 1e5 bytes takes 50 ms at twice that
	for name, test := range map[string]struct {
		off, unmeasured bool
		in              time.Duration
		sent            bool
	}{
		"too late by far":          {in: 10 * ms},
		"too late by a hair":       {in: 50*ms - 1},
		"just in time":             {in: 50 * ms, sent: true},
		"the setting is off":       {in: 10 * ms, off: true, sent: true},
		"the rate is not measured": {in: 10 * ms, unmeasured: true, sent: true},
		"without a deadline":       {in: time.Duration(clock.Never) / 2, sent: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := urgentRig(t)
			if test.off {
				r = newRig(t, Options{})
			}
			id := r.link(1, 0, 1, 1<<20)
			if !test.unmeasured {
				r.measure(id, rate)
			}
			b := r.submit(to(r.core, id), High, 1e5, r.now.Add(test.in))
			require.Equal(t, test.sent, len(r.out) > 0)
			if test.sent {
				return
			}
			s := r.status(b)
			require.Equal(t, Status{State: TimedOut, Err: s.Err}, s)
			require.Equal(t, errs.Timeout, s.Err.Code)
			require.ErrorContains(t, s.Err, "100000 bytes take at least 50ms, and "+test.in.Round(time.Microsecond).
				String()+" are left")
			require.Contains(t, s.Err.Hint, "deadline_bw_arbitration")
			k := r.core.Counters(0, High)
			require.EqualValues(t, 1, k.Infeasible)
			require.Equal(t, [MissedStages]uint64{MissedQueued: 1}, k.Misses)
			require.Equal(t, []event.Kind{event.DeadlineMissed}, r.kinds())
		})
	}
}

func TestTheRestOfARequestThatBecameHopelessIsNotSent(t *testing.T) {
	r := urgentRig(t)
	id := r.narrow()
	r.measure(id, 1e6)
	b := r.submit(to(r.core, id), High, 256*kib, r.now.Add(200*ms)) // it needs 131 ms
	require.Len(t, r.out, 1)
	r.now = r.now.Add(150 * ms) // the rail was slower than that
	require.Empty(t, r.finish(0, nil))
	require.Equal(t, TimedOut, r.status(b).State)
	require.EqualValues(t, 64*kib, r.status(b).Bytes)
	require.Equal(t, [MissedStages]uint64{MissedSent: 1}, r.core.Counters(0, High).Misses)
}

func TestAnotherRouteMayStillMakeIt(t *testing.T) {
	for name, test := range map[string]struct {
		second float64 // 0: not measured
		up     bool
		sent   bool
	}{
		"faster":       {1e9, true, true},
		"not measured": {0, true, true},
		"slow too":     {1e6, true, false},
		"down":         {1e9, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := urgentRig(t)
			first, second := r.link(1, 0, 1, 1<<20), r.link(1, 1, 1, 1<<20)
			r.measure(first, 1e6)
			if test.second > 0 {
				r.measure(second, test.second)
			}
			if !test.up {
				r.core.DropLink(second, nil, r.now)
			}
			r.submit(to(r.core, first, second), High, 1e5, r.now.Add(10*ms))
			require.Equal(t, test.sent, len(r.out) > 0)
		})
	}
}

func TestNothingIsSentBehindItsDeadlineHoweverManyWait(t *testing.T) {
	for _, byDeadline := range []bool{false, true} {
		r := newRig(t, Options{Rails: []RailOptions{{ByDeadline: byDeadline}}})
		id := r.narrow()
		p := to(r.core, id)
		deadline := r.now.Add(10 * ms)
		specs := make([]TaskSpec, 3*expireMost)
		for i := range specs {
			specs[i] = TaskSpec{Terms: request.Terms{Op: transport.Write, Deadline: deadline}, Plan: p,
				Local: uintptr(i+1) << 20, Remote: 1, Length: 64 * kib}
		}
		b := r.submitAll(specs...)
		require.Len(t, r.out, 1)
		r.now = deadline
		for range 2 * len(specs) / expireMost * (expireMost/cutsMost + 1) { // room is there all the time
			if len(r.out) > 0 {
				require.Empty(t, r.finish(0, nil))
			}
			require.Empty(t, r.step())
		}
		s, err := r.core.Summary(b)
		require.Nil(t, err)
		require.Equal(t, TimedOut, s.State)
		require.EqualValues(t, 64*kib, s.Bytes)
		require.Zero(t, s.Pending)
		k := r.core.Counters(0, High)
		require.EqualValues(t, len(specs)-1, k.TimedOut)
		require.Equal(t, [MissedStages]uint64{MissedQueued: uint64(len(specs)) - 1}, k.Misses)
	}
}

// The places where work waits: each has a deadline end it, and nothing of it is ever sent.
func TestADeadlineIsKeptWhereverItsTaskWaits(t *testing.T) {
	type wait struct {
		prepare func(r *rig) (*plan.Plan, func()) // and the event that would let the task go on, behind its deadline
		sent    int                               // slices that were sent before
	}
	for name, w := range map[string]wait{
		"for a link that is being dialled": {prepare: func(r *rig) (*plan.Plan, func()) {
			id := r.link(1, 0, 0, 0)
			return to(r.core, id), func() { r.railUp(id, 0, 1, 1<<20) }
		}},
		"for a window that is full": {sent: 1, prepare: func(r *rig) (*plan.Plan, func()) {
			id := r.narrow()
			r.occupy(to(r.core, id))
			return to(r.core, id), func() { r.finish(0, nil) }
		}},
		"for a rail that takes nothing": {prepare: func(r *rig) (*plan.Plan, func()) {
			id := r.link(1, 0, 1, 1<<20)
			r.core.fill(r.core.link(id).rails[0], r.now)
			return to(r.core, id), func() { r.core.Ready(id, railOf(id, 0, 1)) }
		}},
		"for rails that are all suspected": {sent: 1, prepare: func(r *rig) (*plan.Plan, func()) {
			id := r.narrow()
			r.occupy(to(r.core, id))
			r.core.observe(r.core.link(id).rails[0], rail.Silenced, r.now)
			return to(r.core, id), func() { r.finish(0, nil) }
		}},
		"for a peer to confirm a withdrawal": {sent: 1, prepare: withdrawalOpen},
		"for a stage": {sent: 1, prepare: func(r *rig) (*plan.Plan, func()) {
			id := r.link(1, 0, 1, 1<<20)
			stage, err := r.core.AddStage(StageSpec{Slots: 1, SlotBytes: 64 * kib, Local: 1 << 40, Remote: 1 << 40})
			require.Nil(r, err)
			p := to(r.core, id)
			p.Routes[0].Hops = []plan.Hop{{Link: id, Op: transport.Write, Remote: stage},
				{Link: id, Op: transport.Write, Local: stage}}
			r.submit(p, High, 64*kib, clock.Never)
			require.Len(r, r.out, 1)
			return p, func() { r.finish(0, nil) }
		}},
	} {
		for _, byDeadline := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				r := newRig(t, Options{LinkWait: time.Second, SuspectAfter: time.Second,
					Rails: []RailOptions{{ByDeadline: byDeadline}}})
				p, release := w.prepare(r)
				local := uintptr(7) << 30
				b := r.submitAll(TaskSpec{Terms: request.Terms{Op: transport.Write, Deadline: r.now.Add(10 * ms)},
					Plan: p, Local: local, Remote: 1, Length: kib})
				require.Len(t, r.out, w.sent)
				require.LessOrEqual(t, r.core.Deadline(), r.now.Add(10*ms))
				r.wait(10*ms - 1)
				require.Equal(t, Pending, r.status(b).State)
				r.wait(1)
				require.Equal(t, TimedOut, r.status(b).State)
				require.Zero(t, r.status(b).Attempts)
				require.EqualValues(t, 1, r.core.Counters(0, High).Misses[MissedQueued])
				release()
				for range 10 {
					for _, s := range append(r.step(), r.out...) {
						require.NotEqual(t, local, s.Local, "it is sent behind its deadline")
					}
				}
			})
		}
	}
}

// withdrawalOpen ends a task dirty: its peer owes the confirmation of a withdrawal. The function that it returns gives
// it.
func withdrawalOpen(r *rig) (*plan.Plan, func()) {
	id, other := r.link(1, 0, 1, 1<<20), r.link(1, 1, 1, 1<<20)
	r.submit(to(r.core, other), High, kib, r.now.Add(ms))
	r.wait(ms)
	r.wait(time.Second)
	require.Equal(r, 1, r.core.peers[1].open)
	return to(r.core, id), func() { r.finish(0, withdrawn) }
}

func TestADeadlineIsKeptInThePauseBeforeARetry(t *testing.T) {
	r := newRig(t, Options{RetryAfter: 20 * ms})
	b := r.submit(to(r.core, r.link(1, 0, 1, 1<<20)), High, kib, r.now.Add(10*ms))
	require.Empty(t, r.finish(0, broken(errs.ScopeSlice)))
	require.Empty(t, r.wait(10*ms))
	require.Equal(t, TimedOut, r.status(b).State)
	require.Empty(t, r.wait(20*ms))
	require.Equal(t, [MissedStages]uint64{MissedSent: 1}, r.core.Counters(0, High).Misses)
}

func TestMissesAreToldAtABoundedRate(t *testing.T) {
	r := newRig(t, Options{LinkWait: time.Hour})
	p := to(r.core, r.link(1, 0, 0, 0))
	miss := func(n int) {
		specs := make([]TaskSpec, n)
		for i := range specs {
			specs[i] = TaskSpec{Terms: request.Terms{Op: transport.Write, Deadline: r.now}, Plan: p,
				Local: uintptr(i + 1), Remote: 1, Length: 1}
		}
		r.submitAll(specs...)
	}
	told := func() (n []int) {
		for _, e := range r.events {
			if e.Kind == event.DeadlineMissed {
				require.Equal(t, "10.0.0.1:7000", e.Peer)
				require.Equal(t, "rdma", e.Transport)
				require.Equal(t, e.N, e.M, "none was sent")
				require.Equal(t, errs.Timeout, e.Err.Code)
				n = append(n, e.N)
			}
		}
		return n
	}
	miss(5)
	require.Equal(t, []int{5}, told(), "the first at once")
	for range 50 {
		r.now = r.now.Add(ms)
		miss(2)
	}
	require.Equal(t, []int{5}, told())
	r.now = r.core.Deadline()
	r.step()
	require.Equal(t, []int{5, 100}, told(), "the others together, also if no more follow")
	require.Greater(t, r.core.Deadline().Sub(r.now), missesEvery, "nothing is left to be told")
	r.now = r.now.Add(missesEvery)
	miss(1)
	require.Equal(t, []int{5, 100, 1}, told())
}

// Fresh bytes are counted where they wait. A queue by slack yields the order of a sort, even if tasks leave it
// meanwhile.
func TestAQueueBySlackIsSortedAndCountsItsBytes(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	r := urgentRig(t)
	id := r.link(1, 0, 0, 0)
	p := to(r.core, id)
	specs := make([]TaskSpec, 500)
	for i := range specs {
		specs[i] = TaskSpec{Terms: request.Terms{Op: transport.Write, Class: uint8(random.IntN(ClassCount)),
			Deadline: r.now.Add(time.Duration(1+random.IntN(50)) * time.Hour)}, Plan: p, Local: uintptr(i + 1),
			Remote: 1,
			Length: 1 + random.Uint64N(kib)}
		if random.IntN(4) == 0 {
			specs[i].Deadline = clock.Never
		}
	}
	b := r.submitAll(specs...)
	waiting := make([]int, len(specs))
	for i := range waiting {
		waiting[i] = i
	}
	random.Shuffle(len(waiting), func(i, j int) { waiting[i], waiting[j] = waiting[j], waiting[i] })
	for _, i := range waiting[:200] {
		_, err := r.core.Cancel(b, i, 1, r.now)
		require.Nil(t, err)
	}
	waiting = waiting[200:]
	slices.SortFunc(waiting, func(i, j int) int {
		if d := int64(specs[i].Deadline - specs[j].Deadline); d != 0 {
			return int(d >> 32) // hours
		}
		return i - j
	})
	bytes := [ClassCount]uint64{}
	for _, i := range waiting {
		bytes[specs[i].Class] += specs[i].Length
	}
	require.Equal(t, bytes, r.core.Gauges(0).QueuedBytes)
	for _, i := range waiting {
		q := &r.core.link(id).queues[specs[i].Class]
		require.Equal(t, uint32(i), q.next().index)
		_, err := r.core.Cancel(b, i, 1, r.now)
		require.Nil(t, err)
	}
	require.Equal(t, [ClassCount]uint64{}, r.core.Gauges(0).QueuedBytes)
}

func TestNeighboursMergeInAQueueBySlack(t *testing.T) {
	r := newRig(t, Options{Merge: true, Rails: []RailOptions{{ByDeadline: true}}})
	p := to(r.core, r.link(1, 0, 1, 1<<20))
	specs := make([]TaskSpec, 16)
	for i := range specs {
		specs[i] = TaskSpec{Terms: request.Terms{Op: transport.Write, Deadline: r.now.Add(time.Second)}, Plan: p,
			Local: uintptr(1<<20 + i*kib), Remote: uint64(i * kib), Length: kib}
	}
	b := r.submitAll(specs...)
	require.Len(t, r.out, 1)
	require.EqualValues(t, 16*kib, r.out[0].Length)
	r.drain()
	s, err := r.core.Summary(b)
	require.Nil(t, err)
	require.Equal(t, Completed, s.State)
}
