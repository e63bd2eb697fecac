package main

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/tests/forked"
	"github.com/tent-engine/tent/tests/netbed"
)

// world is two hosts with an engine each, and rails of a rate.
type world struct {
	*netbed.Bed
	near, far *forked.Child
	settings  map[string]string // of both engines, beside their addresses
	load      LoadArgs          // the load of a run but for its length
	seed      uint64
}

const (
	bulkBytes   = 8 << 20
	smallBytes  = 64 << 10
	smallsBytes = 1 << 20 // where small requests go, at the end of the region
	regionBytes = bulkCount*bulkBytes + smallsBytes
)

// newWorld makes a world with a rail for each rate, 0 for as fast as the machine is. A fifth of the rates goes to small
// requests.
func newWorld(settings map[string]string, rates ...uint64) (*world, error) {
	return newWorldOf(regionBytes, settings, rates...)
}

// newWorldOf does so with regions of a size; runs need regionBytes.
func newWorldOf(bytes int, settings map[string]string, rates ...uint64) (_ *world, err error) {
	burst := max(4, len(rates)) // one for each rail
	w := &world{settings: settings, load: LoadArgs{Bulk: bulkBytes, Small: smallBytes, SmallBurst: burst,
		SmallEvery: 5 * time.Millisecond}}
	sum := uint64(0)
	for _, rate := range rates {
		sum += rate
	}
	if sum > 0 {
		w.load.SmallEvery = time.Duration(float64(burst) * smallBytes * 5 * float64(time.Second) / float64(sum))
	}
	if w.Bed, err = netbed.New(len(rates)); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	for i, rate := range rates {
		if rate == 0 {
			continue
		}
		if err := w.Rails[i].Limit(rate); err != nil {
			return nil, err
		}
	}
	var address string
	if w.far, address, err = w.start(w.B, bytes); err != nil {
		return nil, err
	}
	if w.near, _, err = w.start(w.A, bytes); err != nil {
		return nil, err
	}
	if err := w.near.Call("Load.Connect", address, &forked.Nothing{}); err != nil {
		return nil, err
	}
	return w, w.awaitRails()
}

func (w *world) start(h *netbed.Host, bytes int) (c *forked.Child, address string, err error) {
	if c, err = h.Start(); err != nil {
		return nil, "", err
	}
	args := netbed.OpenArgs{Settings: h.Settings(), Bytes: bytes}
	maps.Copy(args.Settings, w.settings)
	err = c.Call("Load.Open", args, &address)
	return c, address, err
}

func (w *world) close() {
	for _, c := range []*forked.Child{w.near, w.far} {
		if c != nil {
			_ = c.Call("Load.Close", forked.Nothing{}, &[]string{})
			_ = c.Close()
		}
	}
	w.Bed.Close()
}

// awaitRails waits until every rail is up.
func (w *world) awaitRails() error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for late := time.Now().Add(forked.Patience); time.Now().Before(late); <-tick.C {
		var m map[string]float64
		if err := w.near.Call("Load.Metrics", forked.Nothing{}, &m); err != nil {
			return err
		}
		if m[`tent_rails{transport="tcp",state="up"}`] >= float64(len(w.Rails)) {
			return nil
		}
	}
	return errors.New("rails do not come up")
}

// fault is a fault in the middle of a run.
type fault struct {
	make  func() (clock.Time, error) // returns when it began
	mend  func() error
	after time.Duration // of the begin of the run
	lasts time.Duration
}

// faultTimes are when a fault began, was there for certain, and was mended.
type faultTimes struct{ began, there, mended clock.Time }

// comeAndGo makes the fault at its time and mends it.
func (f *fault) comeAndGo() (at faultTimes, err error) {
	<-time.After(f.after)
	at.began, err = f.make()
	at.there = clock.Now()
	<-time.After(f.lasts)
	at.mended = clock.Now()
	return at, errors.Join(err, f.mend())
}

// run keeps both engines busy while a fault comes and goes, and verifies every byte afterwards. Along runs from the
// mending until it is satisfied or the work is over.
func (w *world) run(long time.Duration, f *fault, along func(at faultTimes, over func() bool) error) (*Trace,
	faultTimes, error) {
	args := w.load
	args.For = long
	trace, at, err := w.traced("Load.Run", args, f, along)
	if err == nil {
		err = w.verify()
	}
	return trace, at, err
}

// traced calls the near engine's load for a trace while a fault, if there is one, comes and goes. Both regions have
// fresh patterns then.
func (w *world) traced(method string, args any, f *fault, along func(at faultTimes, over func() bool) error) (*Trace,
	faultTimes, error) {
	w.seed += 2
	var at faultTimes
	if err := errors.Join(w.near.Call("Load.Fill", w.seed, &forked.Nothing{}),
		w.far.Call("Load.Fill", w.seed+1, &forked.Nothing{})); err != nil {
		return nil, at, err
	}
	trace := &Trace{}
	call := w.near.Begin(method, args, trace)
	var failed error
	if f != nil {
		at, failed = f.comeAndGo()
		if along != nil {
			failed = errors.Join(failed, along(at, func() bool { return len(call.Done) > 0 }))
		}
	}
	if err := errors.Join(failed, w.near.End(call)); err != nil {
		return nil, at, err
	}
	if len(trace.Failed) > 0 {
		return nil, at, fmt.Errorf("%d requests failed: %s", len(trace.Failed), trace.Failed[0])
	}
	return trace, at, nil
}

// verify looks at every byte, then overwrites the destination and looks again when all rails are well: late bytes would
// show.
func (w *world) verify() error {
	const border = regionBytes - smallsBytes // the place of the small requests is behind it
	moved, rest := netbed.PartArgs{Seed: w.seed, Bytes: regionBytes}, netbed.PartArgs{Seed: w.seed + 1}
	switch {
	case w.load.Bulk == 0:
		moved.Offset, moved.Bytes = border, smallsBytes
		rest.Bytes = border
	case w.load.SmallEvery == 0:
		moved.Bytes = border
		rest.Offset, rest.Bytes = border, smallsBytes
	}
	if err := errors.Join(w.near.Call("Load.Check", w.seed, &forked.Nothing{}),
		w.far.Call("Load.CheckPart", moved, &forked.Nothing{}),
		w.far.Call("Load.CheckPart", rest, &forked.Nothing{})); err != nil {
		return wrong{err}
	}
	if err := errors.Join(w.far.Call("Load.Fill", w.seed+1, &forked.Nothing{}), w.awaitRails()); err != nil {
		return err
	}
	if err := w.far.Call("Load.Check", w.seed+1, &forked.Nothing{}); err != nil {
		return wrong{err}
	}
	return nil
}

// wrong is the error of bytes that differ from the pattern.
type wrong struct{ error }

// share watches a rail from now on and returns when its host sends at least half of a rate on it, over any 10 ms.
func (w *world) share(rail int, rate float64, over func() bool) (clock.Time, error) {
	const window = 10
	var sent [window]uint64
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for n := 0; !over(); n++ {
		now, err := w.Rails[rail].Sent(w.A)
		if err != nil {
			return 0, err
		}
		if n >= window && float64(now-sent[n%window]) >= rate/2*window/1000 {
			return clock.Now(), nil
		}
		sent[n%window] = now
		<-tick.C
	}
	return 0, nil
}
