package dispatch

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/transport"
)

const (
	kib = 1 << 10
	ms  = time.Millisecond
)

// rig is a core with the test itself as its transports: it sees every effect and completes slices at will.
type rig struct {
	*testing.T
	core    *Core
	now     clock.Time
	out     []*transport.Slice // handed out and not completed, in order
	asked   []*transport.Slice // of the last step: withdrawals
	asleep  bool               // the thread that should hand the withdrawals to the transport
	fenced  []transport.Rail   // of the last step
	doubts  []transport.Rail   // of the last step
	probes  []transport.Rail   // of the last step
	events  []event.Event      // of all steps
	ended   []BatchID          // of all steps
	stale   []uint32           // of all steps
	retired []Retired          // of all steps
	astray  []Astray           // of all steps
}

func newRig(t *testing.T, options Options) *rig {
	options.Transports = []string{"rdma", "tcp", "shm"}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return &rig{T: t, core: New(options), now: uptime(seed)}
}

// uptime is the clock at the begin of a test: from a second to half a year, as machines have it. A reading that is
// compared with the zero of "never" is a mistake that only some of them show.
func uptime(seed uint64) clock.Time {
	random := rand.New(rand.NewPCG(seed, 8))
	return clock.Time(time.Second)<<random.IntN(24) + clock.Time(random.Int64N(int64(time.Second)))
}

// link adds a link with rails that are up: 1 GB/s, the given window.
func (r *rig) link(peer uint32, transports uint8, rails int, window uint64) plan.LinkID {
	id := r.core.AddLink(LinkSpec{Peer: peer, PeerName: "10.0.0.1:7000", Transport: transports,
		Info: &transport.Info{}})
	for i := range rails {
		r.railUp(id, i, 1, window)
	}
	return id
}

func railOf(id plan.LinkID, index, generation int) transport.Rail {
	return transport.Rail{Link: transport.Link(id), Index: uint16(index), Generation: uint32(generation)}
}

func (r *rig) railUp(id plan.LinkID, index, generation int, window uint64) {
	r.core.RailUp(id, transport.RailInfo{Rail: railOf(id, index, generation), Local: "a", Remote: "b",
		BytesMax: window, Bandwidth: 1e9}, r.now)
}

// to is a plan over links in this order, with slices of at most 64 KiB.
func to(c *Core, links ...plan.LinkID) *plan.Plan {
	p := &plan.Plan{}
	for _, id := range links {
		p.Routes = append(p.Routes, plan.Route{Transport: c.link(id).spec.Transport, SliceMax: 1 << 20,
			SliceBest: 64 * kib,
			Alignment: 1, Hops: []plan.Hop{{Link: id, Op: transport.Write, LocalKey: 1, RemoteKey: 1}}})
	}
	return p
}

// submit sends one request and steps.
func (r *rig) submit(p *plan.Plan, class uint8, length uint64, deadline clock.Time) BatchID {
	r.Helper()
	return r.submitAll(TaskSpec{Terms: request.Terms{Op: transport.Write, Class: class, Deadline: deadline}, Plan: p,
		Local: 1 << 20, Remote: 1 << 30, Length: length})
}

func (r *rig) submitAll(specs ...TaskSpec) BatchID {
	r.Helper()
	id, err := r.core.NewBatch(len(specs))
	require.Nil(r, err)
	_, err = r.core.Submit(id, specs, r.now)
	require.Nil(r, err)
	r.step()
	return id
}

// step runs the core and returns the slices that it handed out.
func (r *rig) step() []*transport.Slice {
	e := r.core.Step(r.now)
	r.asked, r.fenced, r.doubts, r.probes = nil, nil, nil, nil
	for _, q := range e.AskLiveness {
		r.doubts = append(r.doubts, q.Rail)
	}
	for _, q := range e.Probe {
		r.probes = append(r.probes, q.Rail)
	}
	var fresh []*transport.Slice
	for _, p := range e.Submit {
		fresh = append(fresh, p.Slices...)
	}
	for _, p := range e.Withdraw {
		r.asked = append(r.asked, p.Slices...)
		if !r.asleep {
			r.core.WithdrawalSent(p.Slices)
		}
	}
	for _, p := range e.Fence {
		r.fenced = append(r.fenced, p.Rail)
	}
	r.events = append(r.events, e.Events...)
	r.ended = append(r.ended, e.Ended...)
	r.stale, r.retired = append(r.stale, e.Stale...), append(r.retired, e.Retired...)
	r.astray = append(r.astray, e.Astray...)
	r.out = append(r.out, fresh...)
	return fresh
}

func (r *rig) wait(d time.Duration) []*transport.Slice {
	r.now = r.now.Add(d)
	return r.step()
}

// finish completes the i-th slice that is out, and steps.
func (r *rig) finish(i int, err *errs.Error) []*transport.Slice {
	s := r.out[i]
	r.out = append(r.out[:i:i], r.out[i+1:]...)
	bytes := s.Length
	if err != nil {
		bytes = 0
	}
	r.core.Complete(0, []transport.Completion{{Slice: s, Id: s.Id, Bytes: bytes, Err: err}}, r.now)
	return r.step()
}

// drain completes everything until nothing is out.
func (r *rig) drain() {
	for i := 0; len(r.out) > 0; i++ {
		require.Less(r, i, 100000)
		r.finish(0, nil)
	}
}

func (r *rig) status(b BatchID) Status {
	r.Helper()
	s, err := r.core.Status(b, 0)
	require.Nil(r, err)
	return s
}

func (r *rig) kinds() (kinds []event.Kind) {
	for _, e := range r.events {
		if e.Kind != event.RailUp && e.Kind != event.LinkUp {
			kinds = append(kinds, e.Kind)
		}
	}
	return kinds
}

func broken(scope errs.Scope) *errs.Error {
	return errs.New(errs.Lost, "test", "broken").WithScope(scope, errs.SidePath)
}

func sum(slices []*transport.Slice) (n uint64) {
	for _, s := range slices {
		n += s.Length
	}
	return n
}
