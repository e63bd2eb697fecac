package main

import (
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/forked"
	"github.com/tent-engine/tent/tests/netbed"
)

// Load is an actor that keeps its engine busy and records the time of each event. Times are of the monotonic clock,
// which all processes of a machine share.
type Load struct{ netbed.Actor }

// LoadArgs describe the work: bulk of the lowest class without a pause, and small requests of the highest at an
// interval.
type LoadArgs struct {
	For        time.Duration
	Bulk       uint64        // bytes of one bulk request; four are always under way. 0: none
	Small      uint64        // bytes of one small request
	SmallEvery time.Duration // 0: none
	SmallBurst int           // as many at once, so that every rail has some
}

// Trace is the record of one run.
type Trace struct {
	Begin, End clock.Time
	Samples    []Sample
	Small      []Span
	Events     []Happened
	News       []clock.Time // when the kernel said that an interface went down
	Failed     []string
}

// Sample is the number of bytes acknowledged at a time.
type Sample struct {
	At    clock.Time
	Bytes uint64
}

// Span is the life of one request.
type Span struct {
	Begin, End clock.Time
	Moved      bool // some of it was sent more than once
}

// Happened is an event of the engine.
type Happened struct {
	At   clock.Time
	Kind string
	Rail string
}

const (
	bulkCount   = 4
	sampleEvery = 500 * time.Microsecond
)

// Run works for the given time and returns the trace.
func (l *Load) Run(args LoadArgs, trace *Trace) error {
	follower, err := l.Engine.Follow()
	if err != nil {
		return err
	}
	defer l.Engine.Unfollow(follower)
	stop := make(chan struct{})
	var work sync.WaitGroup
	var mu sync.Mutex
	end := func(out netbed.Outcome, err error) bool {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err != nil:
			trace.Failed = append(trace.Failed, err.Error())
		case out.State != dispatch.Completed.String():
			trace.Failed = append(trace.Failed, out.State+": "+out.Error)
		default:
			return true
		}
		return false
	}
	if args.Bulk > 0 {
		for i := range bulkCount {
			work.Go(func() { l.bulk(args.Bulk, uint64(i), stop, end) })
		}
	}
	if args.SmallEvery > 0 {
		work.Go(func() {
			l.smalls(args, stop, end, func(s Span) { mu.Lock(); trace.Small = append(trace.Small, s); mu.Unlock() })
		})
	}
	work.Go(func() {
		l.listen(stop, func(at clock.Time) { mu.Lock(); trace.News = append(trace.News, at); mu.Unlock() })
	})
	trace.Begin = clock.Now()
	trace.Samples = l.sample(args.For)
	close(stop)
	trace.End = clock.Now()
	work.Wait()
	return l.note(follower, trace)
}

// Whole moves the whole region by one request. It returns the life of that, and the events until its end.
func (l *Load) Whole(_ forked.Nothing, trace *Trace) error {
	follower, err := l.Engine.Follow()
	if err != nil {
		return err
	}
	defer l.Engine.Unfollow(follower)
	var out netbed.Outcome
	trace.Begin = clock.Now()
	if err := l.Move(netbed.MoveArgs{Op: transport.Write}, &out); err != nil {
		return err
	}
	trace.End = clock.Now()
	if out.State != dispatch.Completed.String() {
		trace.Failed = append(trace.Failed, out.State+": "+out.Error)
	}
	return l.note(follower, trace)
}

// note adds the events of a follower to a trace.
func (l *Load) note(follower engine.FollowerID, trace *Trace) error {
	events, _, err := l.Engine.Events(follower, 1<<16)
	for _, e := range events {
		trace.Events = append(trace.Events, Happened{e.Time, e.Kind.String(), e.Rail})
	}
	return err
}

// bulk moves one place of the region again and again.
func (l *Load) bulk(size, place uint64, stop chan struct{}, end func(netbed.Outcome, error) bool) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		var out netbed.Outcome
		err := l.Move(netbed.MoveArgs{Op: transport.Write, Class: dispatch.Low, Offset: place * size, Bytes: size},
			&out)
		if !end(out, err) {
			return
		}
	}
}

// smalls starts a request at each tick, also while earlier ones are pending.
func (l *Load) smalls(args LoadArgs, stop chan struct{}, end func(netbed.Outcome, error) bool, seen func(Span)) {
	var running sync.WaitGroup
	defer running.Wait()
	tick := time.NewTicker(args.SmallEvery)
	defer tick.Stop()
	places, first := smallsBytes/args.Small, uint64(len(l.Memory))-smallsBytes
	for n := uint64(0); ; n++ {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		for i := range uint64(args.SmallBurst) {
			running.Go(func() {
				var out netbed.Outcome
				begin := clock.Now()
				place := first + (n*uint64(args.SmallBurst)+i)%places*args.Small
				err := l.Move(netbed.MoveArgs{Op: transport.Write, Class: dispatch.High, Offset: place,
					Bytes: args.Small}, &out)
				if end(out, err) {
					seen(Span{begin, clock.Now(), out.Attempts > 1})
				}
			})
		}
	}
}

func (l *Load) sample(long time.Duration) (list []Sample) {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for until := clock.Now().Add(long); clock.Now() < until; <-tick.C {
		s := Sample{At: clock.Now()}
		_ = l.Acknowledged(forked.Nothing{}, &s.Bytes) // cannot fail
		list = append(list, s)
	}
	return list
}

// listen writes down when the kernel says that an interface does not run any more.
func (l *Load) listen(stop chan struct{}, down func(clock.Time)) {
	news := make(chan netlink.LinkUpdate, 64)
	done := make(chan struct{})
	if netlink.LinkSubscribe(news, done) != nil {
		return // then the row says that it has no such times
	}
	for {
		select {
		case <-stop:
			close(done)
			for range news { // until the subscription has ended
			}
			return
		case u := <-news:
			if u.IfInfomsg.Flags&unix.IFF_RUNNING == 0 {
				down(clock.Now())
			}
		}
	}
}
