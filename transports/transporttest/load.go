package transporttest

import (
	"cmp"
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

func loadRules() []rule {
	return []rule{
		{"SubmitToCompletionAllocatesNothing", needsQuiet, testAllocations},
		{"EverythingAtOnce", nil, testEverything},
	}
}

// needsQuiet skips rules that count allocations.
func needsQuiet(h Harness, _ transport.Transport) string {
	return cmp.Or(h.Allocates, unless(!RaceEnabled, "the race detector allocates on its own"))
}

// counter is the recorder, except that completions are only counted, so that only the transport allocates.
type counter struct {
	transport.Sink
	mu   sync.Mutex
	cond *sync.Cond
	ends int
	errs int
}

func (c *counter) Complete(list []transport.Completion) {
	c.mu.Lock()
	c.ends += len(list)
	for i := range list {
		if list[i].Err != nil {
			c.errs++
		}
	}
	c.cond.Broadcast()
	c.mu.Unlock()
}

func (c *counter) Ready(transport.Rail) {}

func testAllocations(t *testing.T, h Harness) {
	w := NewWorld(t, h)
	sink := &counter{}
	sink.cond = sync.NewCond(&sink.mu)
	a := w.open("a", 1, sink)
	b := w.Open("b")
	c := a.Connect(t, b)
	const n = 16
	size := fit(c, 4096)
	local, remote := a.Register(t, n*size, mem.LocalReadWrite), c.Import(t, b.Register(t, n*size, mem.GlobalReadWrite))
	rail := c.Rail(t)
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		list := make([]*transport.Slice, n)
		for i := range list {
			at := uint64(i) * size
			list[i] = &transport.Slice{Op: op, Rail: rail, LocalKey: local.Key, RemoteKey: remote.Key,
				Local: local.Addr + uintptr(at), Remote: at, Length: size}
		}
		round := func() {
			for i, s := range list {
				s.Id += n
				s.Class = uint8(i % 3)
			}
			sink.mu.Lock()
			want := sink.ends + n
			sink.mu.Unlock()
			if took := a.Transport.Submit(list); took != n {
				t.Errorf("an idle rail took %d of %d slices", took, n)
				return
			}
			sink.mu.Lock()
			for sink.ends < want {
				sink.cond.Wait()
			}
			sink.mu.Unlock()
		}
		for range 50 {
			round()
		}
		require.Zero(t, testing.AllocsPerRun(200, round), "allocations in a %s of %d slices", op, n)
	}
	require.Zero(t, sink.errs)
}

// testEverything lets every call of the contract run against every other for a while, at random. Then it lets all of it
// end and takes the second look. It is worth most under the race detector.
func testEverything(t *testing.T, h Harness) {
	p := newPair(t, h)
	s := &storm{p: p, size: fit(p.c, 20_000)}
	seeds := seeded(t)
	work := make(chan struct{})
	var submitters, others sync.WaitGroup
	for range 3 {
		local, remote := p.operands(t, stormSlots*s.size)
		local.Fill(tagMoved, 0, local.Size)
		random := rand.New(rand.NewPCG(seeds.Uint64(), 0))
		submitters.Go(func() { s.submit(random, local, remote) })
	}
	s.spare, s.back = p.a.Register(t, s.size, mem.LocalReadWrite).Memory, p.a.seenBy(t, p.b)
	disturbers := []func(*rand.Rand){s.fence, s.churnRegions, s.churnLinks}
	if !p.a.Info.Files {
		target := p.c.Import(t, p.b.Register(t, 8*s.size, mem.GlobalReadWrite))
		disturbers = append(disturbers, func(*rand.Rand) { s.revoke(target) })
	}
	for _, f := range disturbers {
		random := rand.New(rand.NewPCG(seeds.Uint64(), 0))
		others.Go(func() {
			for {
				select {
				case <-work:
					return
				default:
					f(random)
					runtime.Gosched()
				}
			}
		})
	}
	submitters.Wait()
	close(work)
	others.Wait()
	for _, e := range s.ends(t) {
		if e.Err != nil {
			s.remote(e.Slice).Fill(tagAfter, e.Slice.Remote, e.Slice.Length)
		}
	}
	p.c.Rail(t)
	p.c.Barrier(t)
	for _, e := range s.ends(t) {
		tag := uint64(tagMoved)
		if e.Err != nil {
			tag = tagAfter
		}
		require.NoError(t, s.remote(e.Slice).Check(tag, e.Slice.Remote, e.Slice.Remote, e.Slice.Length), "slice %d: %v",
			e.Slice.Id, e.Err)
	}
}

const stormSlots = 300

// storm is the state of testEverything.
type storm struct {
	p    *pair
	size uint64
	mu   sync.Mutex
	list []*transport.Slice // each with a slot of its own
	of   map[uint64]*Memory // by Slice.Id
	tick int

	spare *Memory        // that churnRegions registers
	back  transport.Peer // the first node as the second sees it
}

func (s *storm) submit(random *rand.Rand, local *Operand, remote *Remote) {
	c := s.p.c
	for slot := 0; slot < stormSlots; {
		var rails []transport.Rail
		if !s.p.w.wait(func() bool { rails = c.railsLocked(); return len(rails) > 0 }) {
			s.p.w.report("no rail came back")
			return
		}
		rail := rails[random.IntN(len(rails))]
		var list []*transport.Slice
		for range min(1+random.IntN(12), stormSlots-slot) {
			at := uint64(slot) * s.size
			x := c.Slice(transport.Write, rail, local, at, remote, at, fit(c, 1+random.Uint64N(s.size)))
			x.Class = uint8(random.IntN(3))
			list = append(list, x)
			slot++
		}
		list = list[:c.Send(list...)]
		if random.IntN(4) == 0 {
			s.p.a.Transport.Withdraw(list[:random.IntN(len(list)+1)])
		}
		s.mu.Lock()
		if s.of == nil {
			s.of = map[uint64]*Memory{}
		}
		for _, x := range list {
			s.of[x.Id] = remote.Memory
		}
		s.list = append(s.list, list...)
		s.tick++
		s.mu.Unlock()
	}
}

// fence fences a rail now and then: seldom enough for slices to pass between.
func (s *storm) fence(random *rand.Rand) {
	s.mu.Lock()
	due := s.tick > 20
	if due {
		s.tick = 0
	}
	s.mu.Unlock()
	if rails := s.p.c.Rails(); due && len(rails) > 0 {
		s.p.fence(rails[random.IntN(len(rails))])
	}
}

func (s *storm) revoke(target *Remote) {
	if err := s.p.b.Transport.Revoke(context.Background(), target.Operand.Key, nil, s.p.w.nextEpoch()); err != nil {
		s.p.w.report("Revoke: %v", err)
	}
}

func (s *storm) churnRegions(random *rand.Rand) {
	tr := []transport.Transport{s.p.a.Transport, s.p.b.Transport}[random.IntN(2)]
	key, _, err := tr.Register(context.Background(), s.spare.region(random.Uint64(), mem.GlobalReadWrite))
	if err == nil {
		err = tr.Deregister(context.Background(), key)
	}
	if err != nil {
		s.p.w.report("Register or Deregister: %v", err)
	}
}

func (s *storm) churnLinks(*rand.Rand) {
	link, err := s.p.b.Transport.Attach(s.back)
	if err != nil {
		s.p.w.report("Attach: %v", err)
		return
	}
	s.p.b.Transport.Detach(link)
}

func (s *storm) ends(t *testing.T) []transport.Completion { return s.p.c.Wait(t, s.list...) }

func (s *storm) remote(x *transport.Slice) *Memory { return s.of[x.Id] }
