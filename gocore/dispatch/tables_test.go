package dispatch

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/transport"
)

// visit opens a peer with names that are new to the core, uses it, and forgets it. A slice fails over one of its two
// rails, bytes move over the other one, and a rail is replaced. It returns the id of its link.
func (r *rig) visit(peer int) plan.LinkID {
	id := r.core.AddLink(LinkSpec{Peer: uint32(peer), PeerName: fmt.Sprint("peer", peer), Info: &transport.Info{}})
	up := func(index, generation int) {
		r.core.RailUp(id, transport.RailInfo{Rail: railOf(id, index, generation), Local: fmt.Sprintf("/file/%d", peer),
			Remote: fmt.Sprintf("/file/%d/%d", peer, index), BytesMax: 1 << 20, Bandwidth: 1e9}, r.now)
	}
	up(0, 1)
	up(1, 1)
	b := r.submit(to(r.core, id), High, 128*kib, clock.Never)
	require.Len(r, r.out, 2)
	r.finish(0, broken(errs.ScopeRail))
	up(1, 2)
	r.drain()
	require.Equal(r, Completed, r.status(b).State)
	require.Nil(r, r.core.FreeBatch(b))
	for index, generation := range []int{1, 2} {
		r.core.RailDown(id, railOf(id, index, generation), nil, r.now)
	}
	r.core.RemoveLink(id)
	r.step()
	r.events, r.ended = r.events[:0], r.ended[:0]
	r.now = r.now.Add(ms)
	return id
}

// tableSizes are the lengths of everything that peers, links and rails come and go in. A step, a failure and a scrape
// visit no more elements than these.
func (c *Core) tableSizes() map[string]int {
	return map[string]int{"links": len(c.links), "vacant links": len(c.linkTable.vacant), "peers": len(c.peers),
		"ends":            len(c.ends.byName),
		"numbers of ends": c.ends.next, "NICs": len(c.devices), "timers": c.timers.Len(), "active": c.active.Len(),
		"sightings": cap(c.sightings),
		"pieces":    c.pieces.Total(), "tasks": c.tasks.Total(), "runs": c.runs.Total(), "batches": len(c.batches),
		"counters": len(c.counters)}
}

func heapInUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestAHundredThousandPeersLeaveNothingBehind(t *testing.T) {
	r := newRig(t, Options{SuspectAfter: 100 * ms})
	other := r.link(0, 0, 1, 1<<20) // stays, and is looked at whenever a rail fails
	peers := 100_000
	if testing.Short() {
		peers = 5_000
	}
	for peer := 1; peer <= 1000; peer++ {
		r.visit(peer)
	}
	sizes, heap := r.core.tableSizes(), heapInUse()
	for peer := 1001; peer <= peers; peer++ {
		r.visit(peer)
	}
	require.Equal(t, sizes, r.core.tableSizes())
	require.Equal(t, 3, sizes["links"], "none, the one that stays, and one slot for all the others")
	require.Less(t, heapInUse()-heap, int64(128*kib), "bytes of heap")
	b := r.submit(to(r.core, other), High, kib, clock.Never)
	r.drain()
	require.Equal(t, Completed, r.status(b).State)
}

func TestAStaleLinkIsRefusedInEveryCall(t *testing.T) {
	r := newRig(t, Options{})
	old := r.visit(1)
	id := r.link(2, 0, 1, 1<<20)
	require.Equal(t, old.Slot(), id.Slot())
	require.NotEqual(t, old, id)
	was, rails := r.core.Link(id), r.core.Rails()
	calls := []func(){
		func() { r.core.RailUp(old, transport.RailInfo{Rail: railOf(old, 0, 9)}, r.now) },
		func() { r.core.RailDown(old, railOf(old, 0, 1), broken(errs.ScopeRail), r.now) },
		func() { r.core.DropLink(old, nil, r.now) },
		func() { r.core.Ready(old, railOf(old, 0, 1)) },
		func() { r.core.Progress(old, railOf(old, 0, 1), r.now) },
		func() {
			r.core.Liveness(Question{Link: old, Rail: railOf(old, 0, 1)}, transport.Signs{Heard: r.now}, r.now)
		},
		func() { r.core.Probed(old, railOf(old, 0, 1), 1, nil, r.now) },
		func() { require.False(t, r.core.LinkBusy(old)) },
		func() { require.Equal(t, "closed", r.core.Explain(old)) },
		func() { require.Equal(t, "closed", r.core.Link(old).State) },
		func() { r.core.RemoveLink(old) },
	}
	for _, call := range calls {
		call()
	}
	r.step()
	require.Equal(t, was, r.core.Link(id), "nothing has happened to the link that has its slot now")
	require.Equal(t, rails, r.core.Rails())
	p := to(r.core, id)
	p.Routes[0].Hops[0].Link = old
	b := r.submit(p, High, kib, clock.Never)
	require.Empty(t, r.out, "a plan that was made before takes nobody else's link")
	require.Equal(t, Failed, r.status(b).State)
}

func TestANICIsKeptWhileARailOfItHasSomethingInFlight(t *testing.T) {
	r := newRig(t, Options{})
	id := r.link(1, 0, 1, 1<<20)
	r.submit(to(r.core, id), Low, 16*kib, clock.Never)
	require.Len(t, r.out, 1)
	first := r.out[0]
	r.railUp(id, 0, 2, 1<<20)
	require.Len(t, r.core.link(id).retired, 1)
	r.core.RailDown(id, railOf(id, 0, 2), nil, r.now)
	require.Len(t, r.core.devices, 1)
	require.Len(t, r.core.ends.byName, 2)
	r.core.Complete(0, []transport.Completion{{Slice: first, Id: first.Id, Bytes: first.Length}}, r.now)
	require.Empty(t, r.core.link(id).retired)
	require.Len(t, r.core.devices, 1, "the newest record of the rail keeps it, until its link is removed")
	r.step()
	r.core.RemoveLink(id)
	require.Empty(t, r.core.devices)
	require.Empty(t, r.core.ends.byName)
}

// A transport numbers its rails, and need not bring the first one up first.
func TestALinkMayLackItsFirstRails(t *testing.T) {
	r := newRig(t, Options{})
	id := r.link(1, 0, 0, 0)
	r.railUp(id, 3, 1, 1<<20)
	r.railUp(id, 1, 1, 1<<20)
	p := to(r.core, id)
	r.core.RailDown(id, railOf(id, 7, 1), broken(errs.ScopeRail), r.now) // one that never came
	b := r.submit(p, High, 256*kib, clock.Never)
	require.Equal(t, uint64(0b1010), r.used())
	require.Equal(t, 2, r.core.Gauges(0).RailsUp)
	require.Len(t, r.core.Link(id).Rails, 2)
	r.core.RailDown(id, railOf(id, 3, 1), broken(errs.ScopeRail), r.now)
	require.Equal(t, 1, r.core.Gauges(0).RailsDown)
	for range 4 {
		r.wait(time.Second) // the peer is silent: each of its rails is looked at
	}
	r.drain()
	require.Equal(t, Completed, r.status(b).State)
}

// A rail is one state for each generation: a second report of the same one would forget its flight.
func TestAGenerationOfARailComesUpOnce(t *testing.T) {
	r := newRig(t, Options{})
	id := r.link(1, 0, 1, 1<<20)
	b := r.submit(to(r.core, id), High, 128*kib, clock.Never)
	flight := r.core.Gauges(0).InFlight
	require.NotZero(t, flight)
	for _, generation := range []int{1, 0} {
		r.railUp(id, 0, generation, 1<<20)
		require.Empty(t, r.step(), "nothing is sent again")
		require.Equal(t, flight, r.core.Gauges(0).InFlight)
	}
	r.drain()
	require.Equal(t, Status{State: Completed, Attempts: 1, Bytes: 128 * kib}, r.status(b))
	require.Zero(t, r.core.Gauges(0).InFlight)
}
