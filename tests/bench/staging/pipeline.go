package main

import (
	"container/heap"
	"fmt"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/request"
	gostaging "github.com/tent-engine/tent/gocore/staging"
	"github.com/tent-engine/tent/gocore/transport"
)

// hop is one of the two parts of the way: it carries slices one after the other at a rate.
type hop struct {
	name  string
	rate  float64       // bytes/s
	delay time.Duration // beyond the time on the hop, until the core is told that a slice is there
	info  transport.Info
	rail  transport.RailInfo

	link plan.LinkID
	busy clock.Time
}

// copies is a copy engine of a GPU, with the limits of the transport nvlink.
func copies(rate float64, delay time.Duration) *hop {
	return &hop{name: "nvlink", rate: rate, delay: delay,
		info: transport.Info{SliceMax: 1 << 20, SliceBest: 1 << 20, Vectors: true},
		rail: transport.RailInfo{Bandwidth: rate, BytesMax: 64 << 20, SlicesMax: 1024}}
}

// wire is a NIC, with the limits of the transport rdma.
func wire(rate float64, delay time.Duration) *hop {
	return &hop{name: "rdma", rate: rate, delay: delay,
		info: transport.Info{SliceMax: 16 << 20, SliceBest: 1 << 20, Vectors: true},
		rail: transport.RailInfo{Bandwidth: rate, SlicesMax: 1024}}
}

// arrival is a completion to come.
type arrival struct {
	at   clock.Time
	hop  int
	done transport.Completion
}

type arrivals []arrival

func (a arrivals) Len() int           { return len(a) }
func (a arrivals) Less(i, j int) bool { return a[i].at < a[j].at }
func (a arrivals) Swap(i, j int)      { a[i], a[j] = a[j], a[i] }
func (a *arrivals) Push(x any)        { *a = append(*a, x.(arrival)) }
func (a *arrivals) Pop() any {
	last := (*a)[len(*a)-1]
	*a = (*a)[:len(*a)-1]
	return last
}

// pipeline is a core with a pool between two hops, in virtual time. The core cuts, takes slots and gives them back,
// and package staging makes the route, as in an engine; the hops are numbers.
type pipeline struct {
	core     *dispatch.Core
	hops     [2]*hop // the copy and the wire
	pool     plan.StageID
	now      clock.Time
	arrivals arrivals
	carried  [2]uint64
}

func newPipeline(near, far *hop, sizes gostaging.Sizes) (*pipeline, error) {
	p := &pipeline{core: dispatch.New(dispatch.Options{Transports: []string{near.name, far.name}}),
		hops: [2]*hop{near, far}, now: clock.Time(time.Second)}
	for i, h := range p.hops {
		h.busy = p.now
		h.link = p.core.AddLink(dispatch.LinkSpec{Peer: uint32(i), PeerName: h.name, Transport: uint8(i),
			Info: &h.info})
		h.rail.Rail = transport.Rail{Link: transport.Link(h.link), Generation: 1}
		h.rail.Local, h.rail.Remote, h.rail.Node = h.name, h.name, -1
		p.core.RailUp(h.link, h.rail, p.now)
	}
	var err *errs.Error
	p.pool, err = p.core.AddStage(dispatch.StageSpec{Slots: sizes.Slots, SlotBytes: sizes.SlotBytes,
		Local: 1 << 40, Remote: 1 << 40})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// route is the way through the pool.
func (p *pipeline) route(op transport.Op) *plan.Plan {
	way := func(i int) *plan.Plan {
		h := p.hops[i]
		return &plan.Plan{Routes: []plan.Route{{Transport: uint8(i), SliceMax: h.info.SliceMax,
			SliceBest: h.info.SliceBest, Alignment: 1, Vectors: h.info.Vectors,
			Hops: []plan.Hop{{Link: h.link, Op: op, LocalKey: 1, RemoteKey: 1}}}}}
	}
	return gostaging.Add(nil, false, op, way(0), way(1), p.pool)
}

// transfer moves bytes and returns how long that took. With pages they lie apart on both sides.
func (p *pipeline) transfer(op transport.Op, bytes, page uint64) (time.Duration, error) {
	spec := dispatch.TaskSpec{Terms: request.Terms{Op: op, Class: dispatch.High, Deadline: clock.Never},
		Plan: p.route(op), Local: 1 << 30, Length: bytes}
	if page > 0 {
		n := bytes / page
		spec.Parts = &transport.Pieces{LocalAt: make([]uint64, n), RemoteAt: make([]uint64, n), Bytes: page}
		for i := range n {
			spec.Parts.LocalAt[i], spec.Parts.RemoteAt[i] = 2*i*page, 3*(n-i)*page
		}
	}
	id, err := p.core.NewBatch(1)
	if err == nil {
		_, err = p.core.Submit(id, []dispatch.TaskSpec{spec}, p.now)
	}
	if err != nil {
		return 0, err
	}
	begun := p.now
	for p.step(); len(p.arrivals) > 0; p.step() {
		next := p.arrivals[0]
		if due := p.core.Deadline(); due < next.at {
			p.now = max(p.now, due) // a timer of the core, or the rest of a long step
			continue
		}
		heap.Pop(&p.arrivals)
		p.now = next.at
		p.core.Complete(uint8(next.hop), []transport.Completion{next.done}, p.now)
	}
	sum, err := p.core.Summary(id)
	switch {
	case err != nil:
		return 0, err
	case sum.State != dispatch.Completed:
		return 0, fmt.Errorf("the transfer is %v: %w", sum.State, sum.Err)
	case p.carried != [2]uint64{bytes, bytes}:
		return 0, fmt.Errorf("the hops have carried %d bytes, of %d", p.carried, bytes)
	}
	return p.now.Sub(begun), nil
}

// step runs the core and puts the slices that it submits on the hops.
func (p *pipeline) step() {
	for _, posting := range p.core.Step(p.now).Submit {
		h := p.hops[posting.Transport]
		for _, s := range posting.Slices {
			h.busy = max(h.busy, p.now).Add(time.Duration(float64(s.Length) / h.rate * 1e9))
			p.carried[posting.Transport] += s.Length
			heap.Push(&p.arrivals, arrival{h.busy.Add(h.delay), int(posting.Transport),
				transport.Completion{Slice: s, Id: s.Id, Bytes: s.Length}})
		}
	}
}
