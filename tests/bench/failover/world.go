package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/tests/netbed"
)

// world is two hosts with an engine each, and rails of a rate.
type world struct {
	*netbed.Bed
	near, far *netbed.Child
	seed      uint64
}

const (
	bulkBytes   = 8 << 20
	smallBytes  = 64 << 10
	regionBytes = bulkCount*bulkBytes + 4<<20
)

// load is what a run does but for its length.
var load = LoadArgs{Bulk: bulkBytes, Small: smallBytes, SmallEvery: 2 * time.Millisecond}

func newWorld(rates ...uint64) (w *world, err error) {
	w = &world{}
	if w.Bed, err = netbed.New(len(rates)); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	for i, rate := range rates {
		if err := w.Rails[i].Limit(rate); err != nil {
			return nil, err
		}
	}
	var address string
	if w.far, address, err = w.start(w.B); err != nil {
		return nil, err
	}
	if w.near, _, err = w.start(w.A); err != nil {
		return nil, err
	}
	if err := w.near.Call("Load.Connect", address, &netbed.Nothing{}); err != nil {
		return nil, err
	}
	return w, w.awaitRails()
}

func (w *world) start(h *netbed.Host) (c *netbed.Child, address string, err error) {
	if c, err = h.Start(); err != nil {
		return nil, "", err
	}
	return c, address, c.Call("Load.Open", netbed.OpenArgs{Settings: h.Settings(), Bytes: regionBytes}, &address)
}

func (w *world) close() {
	for _, c := range []*netbed.Child{w.near, w.far} {
		if c != nil {
			_ = c.Call("Load.Close", netbed.Nothing{}, &[]string{})
			_ = c.Close()
		}
	}
	w.Bed.Close()
}

// awaitRails waits until every rail is up.
func (w *world) awaitRails() error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for late := time.Now().Add(netbed.Patience); time.Now().Before(late); <-tick.C {
		var m map[string]float64
		if err := w.near.Call("Load.Metrics", netbed.Nothing{}, &m); err != nil {
			return err
		}
		if m[`tent_rails{transport="tcp",state="up"}`] >= float64(len(w.Rails)) {
			return nil
		}
	}
	return errors.New("rails do not come up")
}

// fault is what happens in the middle of a run.
type fault struct {
	make, mend func() error
	after      time.Duration // of the begin
	lasts      time.Duration
}

// faultTimes are when a fault was asked for and there, and the same of its end.
type faultTimes struct{ asked, there, mended, well clock.Time }

// run keeps both engines busy while a fault comes and goes, and verifies every byte afterwards. Along runs from the mending
// until it is satisfied or the work is over.
func (w *world) run(long time.Duration, f *fault, along func(at faultTimes, over func() bool) error) (*Trace, faultTimes, error) {
	w.seed += 2
	var at faultTimes
	if err := errors.Join(w.near.Call("Load.Fill", w.seed, &netbed.Nothing{}), w.far.Call("Load.Fill", w.seed+1, &netbed.Nothing{})); err != nil {
		return nil, at, err
	}
	args := load
	args.For = long
	trace := &Trace{}
	call := w.near.Begin("Load.Run", args, trace)
	var failed error
	if f != nil {
		<-time.After(f.after)
		at.asked = clock.Now()
		failed = f.make()
		at.there = clock.Now()
		<-time.After(f.lasts)
		at.mended = clock.Now()
		failed = errors.Join(failed, f.mend())
		at.well = clock.Now()
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
	return trace, at, w.verify()
}

// verify looks at every byte, then overwrites the destination and looks again when all rails are well: what came late
// would show.
func (w *world) verify() error {
	err := errors.Join(w.near.Call("Load.Check", w.seed, &netbed.Nothing{}), w.far.Call("Load.Check", w.seed, &netbed.Nothing{}))
	if err != nil {
		return wrong{err}
	}
	if err := errors.Join(w.far.Call("Load.Fill", w.seed+1, &netbed.Nothing{}), w.awaitRails()); err != nil {
		return err
	}
	if err := w.far.Call("Load.Check", w.seed+1, &netbed.Nothing{}); err != nil {
		return wrong{err}
	}
	return nil
}

// wrong are bytes that are not what they should be.
type wrong struct{ error }

// share watches a rail from now on and returns when its host sends at least half of the rate on it, within any 10 ms.
func (w *world) share(rail int, rate uint64, over func() bool) (clock.Time, error) {
	const window = 10
	var sent [window]uint64
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for n := 0; !over(); n++ {
		now, err := w.Rails[rail].Sent(w.A)
		if err != nil {
			return 0, err
		}
		if n >= window && float64(now-sent[n%window]) >= float64(rate)/2*window/1000 {
			return clock.Now(), nil
		}
		sent[n%window] = now
		<-tick.C
	}
	return 0, nil
}
