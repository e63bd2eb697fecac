package transporttest

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/transport"
)

func submitRules() []rule {
	return []rule{
		{"SubmitOfNothingTakesNothing", nil, testSubmitNothing},
		{"SubmitTakesAPrefixAndLeavesTheRest", nil, testPrefix},
		{"EveryAcceptedSliceCompletesExactlyOnce", nil, testExactlyOnce},
		{"ARecordMayBecomeAnotherSlice", nil, testSecondLife},
		{"CompleteMaySubmit", nil, testCompleteMaySubmit},
		{"RailsThatNeverWereTakeNothing", nil, testForeignRail},
		{"StaleGenerationIsRefused", nil, testStaleGeneration},
		{"StaleGenerationIsRefusedAtomicallyWithFence", nil, testStaleAtomically},
	}
}

func testSubmitNothing(t *testing.T, h Harness) {
	p := newPair(t, h)
	require.Zero(t, p.c.Submit())
	p.a.Transport.Withdraw(nil)
}

func testPrefix(t *testing.T, h Harness) {
	p := newPair(t, h)
	for _, op := range []transport.Op{transport.Write, transport.Read} { // different code may end them
		t.Run(op.String(), func(t *testing.T) { p.testPrefix(t, op) })
	}
}

func (p *pair) testPrefix(t *testing.T, op transport.Op) {
	length := fit(p.c, 512)
	n := min(4*p.a.Info.SlicesMax+7, 20_000)
	local, remote, _, to := p.aimed(t, op, uint64(n)*length)
	list := p.volley(op, p.c.Rail(t), local, remote, n, length)
	for rest, short := list, 0; len(rest) > 0; short++ {
		before := make([]transport.Slice, len(rest))
		for i, s := range rest {
			before[i] = *s
		}
		p.w.mu.Lock()
		ready := p.a.ready[rest[0].Rail]
		p.w.mu.Unlock()
		took := p.c.Submit(rest...)
		for i := took; i < len(rest); i++ {
			if before[i] != *rest[i] {
				require.Equal(t, before[i], *rest[i], "slice %d of %d was touched, only %d were taken", i, len(rest),
					took)
			}
		}
		if rest = rest[took:]; len(rest) > 0 {
			p.w.Await(t, "Ready after a short Submit", func() bool { return p.a.ready[list[0].Rail] > ready })
		}
		require.Less(t, short, n+1000, "Ready, but nothing is taken")
	}
	p.c.Succeed(t, list...)
	require.NoError(t, to.Check(tagMoved, 0, 0, uint64(n)*length))
}

// testSecondLife uses the records of slices again as soon as they have completed, as the core does.
func testSecondLife(t *testing.T, h Harness) {
	p := newPair(t, h)
	const n, lives = 20, 10
	length := fit(p.c, 1000)
	local, remote := p.operands(t, n*length)
	for life := range lives {
		op := transport.Op(life & 1)
		list := p.volley(op, p.c.Rail(t), local, remote, n, length)
		if life > 0 {
			p.c.reuse(list)
		}
		p.c.Must(t, list...)
		p.c.retire(list)
	}
}

func testExactlyOnce(t *testing.T, h Harness) {
	p := newPair(t, h)
	const threads, volleys, slices = 4, 10, 25
	length := fit(p.c, 1000)
	area := slices * length
	local, remote := p.operands(t, threads*area)
	local.Fill(tagMoved, 0, local.Size)
	rail := p.c.Rail(t)
	var all [threads][]*transport.Slice
	var wait sync.WaitGroup
	for thread := range threads {
		wait.Go(func() {
			for range volleys {
				var list []*transport.Slice
				for i := range uint64(slices) {
					at := uint64(thread)*area + i*length
					list = append(list, p.c.Slice(transport.Write, rail, local, at, remote, at, length))
				}
				all[thread] = append(all[thread], list...)
				p.c.Send(list...)
			}
		})
	}
	wait.Wait()
	for _, list := range all {
		p.c.Succeed(t, list...)
	}
	require.NoError(t, remote.Check(tagMoved, 0, 0, remote.Size))
} // a second completion is found when the world ends

// testCompleteMaySubmit: the core steps inside Complete, so no lock that Submit, Withdraw, Poll or Arm takes may be
// held there.
func testCompleteMaySubmit(t *testing.T, h Harness) {
	p := newPair(t, h)
	local, remote := p.operands(t, 4096)
	rail := p.c.Rail(t)
	const chain = 50
	var links []*transport.Slice
	for i := range chain {
		links = append(links, p.c.Slice(transport.Op(i&1), rail, local, 0, remote, 0, fit(p.c, 256)))
	}
	poller, polls := transport.Find[transport.Poller](p.a.Transport)
	next := 1 // only touched in Complete, one at a time: there is one slice under way
	p.w.locked(func() {
		p.a.onComplete = func(c transport.Completion) {
			p.a.Transport.Withdraw([]*transport.Slice{c.Slice}) // it has completed: ignored
			if polls {                                          // as before it calls a rail silent
				poller.Poll(chain, transport.AllClasses)
				poller.Arm()
			}
			if next < chain {
				next++
				if p.c.Submit(links[next-1]) != 1 {
					p.w.report("an idle rail took nothing from inside Complete")
				}
			}
		}
	})
	var first sync.WaitGroup
	first.Go(func() { p.c.Submit(links[0]) }) // not here: a transport that holds a lock in Complete never comes back
	p.c.Succeed(t, links...)
	first.Wait() // it enters its slice as accepted
}

func testForeignRail(t *testing.T, h Harness) {
	p := newPair(t, h)
	local, remote := p.operands(t, 4096)
	rail := p.c.Rail(t)
	for _, wrong := range []transport.Rail{
		{},
		{Link: rail.Link, Index: rail.Index, Generation: rail.Generation + 1},
		{Link: rail.Link, Index: rail.Index + 1000, Generation: rail.Generation},
		{Link: rail.Link + 1000, Index: rail.Index, Generation: rail.Generation},
	} {
		require.Zero(t, p.c.Submit(p.c.Slice(transport.Write, wrong, local, 0, remote, 0, fit(p.c, 4096))), "%+v",
			wrong)
		p.a.Transport.Fence(wrong)
	}
	p.c.Must(t, p.c.Slice(transport.Write, rail, local, 0, remote, 0, fit(p.c, 4096)))
}

func testStaleGeneration(t *testing.T, h Harness) {
	p := newPair(t, h)
	local, remote := p.operands(t, 4096)
	local.Fill(tagMoved, 0, local.Size)
	remote.Fill(tagBefore, 0, remote.Size)
	rail := p.c.Rail(t)
	p.fence(rail)
	for range 100 {
		require.Zero(t, p.c.Submit(p.c.Slice(transport.Write, rail, local, 0, remote, 0, fit(p.c, 4096))))
	}
	again := p.comesBack(t, rail)
	require.Zero(t, p.c.Submit(p.c.Slice(transport.Write, rail, local, 0, remote, 0, fit(p.c, 4096))),
		"the rail is up, in another generation")
	p.c.Barrier(t)
	require.NoError(t, remote.Check(tagBefore, 0, 0, remote.Size))
	p.c.Must(t, p.c.Slice(transport.Write, again, local, 0, remote, 0, fit(p.c, 4096)))
}

// fence calls Fence and forgets the rail, as the core does.
func (p *pair) fence(rail transport.Rail) {
	p.a.Transport.Fence(rail)
	p.w.locked(func() {
		key := railKey{rail.Link, rail.Index}
		if p.a.rails[key].Rail == rail {
			delete(p.a.rails, key)
		}
	})
}

// comesBack waits until a rail is up in a later generation: its ends are healthy, so it must come back by itself.
func (p *pair) comesBack(t *testing.T, rail transport.Rail) transport.Rail {
	t.Helper()
	var again transport.Rail
	p.w.Await(t, "a fenced or broken rail to come back", func() bool {
		again = p.a.rails[railKey{rail.Link, rail.Index}].Rail
		return again.Generation > rail.Generation
	})
	return again
}

// testStaleAtomically lets threads submit as fast as they can while the rail is fenced. A slice that a thread submits
// after Fence has returned must be refused, however the threads were scheduled.
func testStaleAtomically(t *testing.T, h Harness) {
	p := newPair(t, h)
	local, remote := p.operands(t, 64<<10)
	for range 20 {
		rail := p.c.Rail(t)
		var wait sync.WaitGroup
		var fenced, late int // guarded by the world
		for thread := range 3 {
			wait.Go(func() {
				for after := 0; after < 20; {
					at := uint64(thread) * fit(p.c, 4096)
					s := p.c.Slice(transport.Write, rail, local, at, remote, at, fit(p.c, 4096))
					p.w.mu.Lock()
					was := fenced
					p.w.mu.Unlock()
					n := p.c.Submit(s)
					if after += was; was == 1 && n > 0 {
						p.w.locked(func() { late++ })
					}
				}
			})
		}
		p.fence(rail)
		p.w.locked(func() { fenced = 1 })
		wait.Wait()
		require.Zero(t, late, "slices were accepted after Fence had returned")
		p.comesBack(t, rail)
	}
}
