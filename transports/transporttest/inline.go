package transporttest

import (
	"cmp"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

func inlineRules() []rule {
	inlines := needs[transport.Inliner]("not an Inliner")
	quick := func(h Harness, tr transport.Transport) string { return cmp.Or(inlines(h, tr), needsQuiet(h, tr)) }
	revocable := func(h Harness, tr transport.Transport) string {
		return cmp.Or(inlines(h, tr), needsEngine(h, tr))
	}
	return []rule{
		{"InlineIsDoneWhenItReturns", inlines, testInline},
		{"InlineRefusesWhatSubmitWould", inlines, testInlineRefuses},
		{"AfterRevokeInlineTouchesNothing", revocable, testInlineRevoke},
		{"InlineWhileLinksComeAndGo", inlines, testInlineDetach},
		{"InlineAllocatesNothing", quick, testInlineAllocations},
	}
}

func (p *pair) inline(list ...*transport.Slice) bool {
	return must[transport.Inliner](p.a.Transport).Inline(list)
}

// inlineOps are the operations that the transport carries out at once on an idle rail. There is at least one, for a
// file system may know no way to write without waiting for a disk.
func (p *pair) inlineOps(t *testing.T) (ops []transport.Op) {
	t.Helper()
	size := fit(p.c, 4096)
	local, remote := p.operands(t, size)
	remote.Fill(tagBefore, 0, size)
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		if p.inline(p.c.Slice(op, p.c.Rail(t), local, 0, remote, 0, size)) {
			ops = append(ops, op)
		}
	}
	require.NotEmpty(t, ops, "an idle rail carries out nothing at once")
	return ops
}

// testInline wants little slices on an idle rail to be carried out on the caller's thread, at least now and then. They
// have no completion, which would be a complaint, and the others go the usual way.
func testInline(t *testing.T, h Harness) {
	p := newPair(t, h)
	done := 0
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		for _, size := range []uint64{1, 100, 4096, 5000, 60_000} {
			const n = 4
			size = fit(p.c, size)
			local, remote, _, to := p.aimed(t, op, n*size)
			list := p.volley(op, p.c.Rail(t), local, remote, n, size)
			if p.inline(list...) {
				done++
			} else {
				p.c.Must(t, list...)
			}
			require.NoError(t, to.Check(tagMoved, 0, 0, to.Size), "%s of %d bytes", op, size)
		}
	}
	require.NotZero(t, done, "an idle rail never carried out anything")
	if p.a.Info.Vectors {
		g := p.newGrid(t, transport.Write, 8, fit(p.c, 500))
		if list := g.slices(p.c.Rail(t), 4); !p.inline(list...) {
			p.c.Must(t, list...)
		}
		g.check(t, 0, 8)
	}
	p.c.Barrier(t)
}

func testInlineRefuses(t *testing.T, h Harness) {
	p := newPair(t, h)
	size := fit(p.c, 4096)
	local, remote := p.operands(t, size)
	fixed := p.c.Import(t, p.b.Register(t, size, mem.GlobalReadOnly))
	fixed.Fill(tagBefore, 0, size)
	remote.Fill(tagBefore, 0, size)
	local.Fill(tagMoved, 0, size)
	rail := p.c.Rail(t)
	stale := rail
	stale.Generation++
	for name, s := range map[string]*transport.Slice{
		"stale rail": p.c.Slice(transport.Write, stale, local, 0, remote, 0, size),
		"unknown rail": p.c.Slice(transport.Write, transport.Rail{Link: rail.Link + 1000, Generation: 1}, local,
			0, remote, 0, size),
		"unknown remote key": p.c.Slice(transport.Write, rail, local, 0, remote.by(remote.Key+1000), 0,
			size),
		"unknown local key": p.c.Slice(transport.Write, rail,
			&Operand{Memory: local.Memory, Node: p.a, Key: local.Key + 1000}, 0, remote, 0, size),
		"outside":       p.c.Slice(transport.Write, rail, local, 0, remote, p.a.Info.Alignment, size),
		"far outside":   p.c.Slice(transport.Write, rail, local, 0, remote, math.MaxUint64-size+1, size),
		"no permission": p.c.Slice(transport.Write, rail, local, 0, fixed, 0, size),
	} {
		require.False(t, p.inline(s), name)
		require.False(t, p.inline(p.c.Slice(transport.Read, s.Rail, local, 0, remote, 0, size), s),
			"%s, behind a good one", name)
		local.Fill(tagMoved, 0, size)
	}
	require.NoError(t, remote.Check(tagBefore, 0, 0, size))
	require.NoError(t, fixed.Check(tagBefore, 0, 0, size))
	p.fence(rail)
	require.False(t, p.inline(p.c.Slice(transport.Write, rail, local, 0, remote, 0, size)), "fenced")
	p.comesBack(t, rail)
}

// storming is threads that inline lists of slices as fast as they can.
type storming struct {
	stop           atomic.Bool
	tried, carried atomic.Int64
	wait           sync.WaitGroup
}

func (p *pair) storm(c *Conn, op transport.Op, local *Operand, remote *Remote, size uint64) *storming {
	s := &storming{}
	inliner := must[transport.Inliner](p.a.Transport)
	rail := c.Rails()[0]
	for range 3 {
		list := pairOf(c).volley(op, rail, local, remote, 4, size)
		s.wait.Go(func() {
			for !s.stop.Load() {
				for _, slice := range list {
					slice.Epoch = c.Epoch()
				}
				if inliner.Inline(list) {
					s.carried.Add(1)
				}
				s.tried.Add(1)
				runtime.Gosched()
			}
		})
	}
	return s
}

// await waits until a count has grown by n.
func (p *pair) await(t *testing.T, count *atomic.Int64, n int64) {
	t.Helper()
	end := count.Load() + n
	for late := clock.Now().Add(p.w.h.Patience); count.Load() < end; runtime.Gosched() {
		require.Less(t, clock.Now(), late, "Inline does not get on")
	}
}

func (s *storming) end() {
	s.stop.Store(true)
	s.wait.Wait()
}

// testInlineRevoke lets threads write as fast as they can while the owner takes the region back, for good or for a
// fence.
func testInlineRevoke(t *testing.T, h Harness) {
	p := newPair(t, h)
	size := fit(p.c, 16<<10)
	for round := range 20 {
		local, remote := p.operands(t, 4*size)
		local.Fill(tagMoved, 0, local.Size)
		rail, keep := p.c.Rail(t), round%2 == 0
		s := p.storm(p.c, transport.Write, local, remote, size)
		p.await(t, &s.carried, 50)
		if keep {
			p.c.Fence(t, remote, nil)
			p.await(t, &s.carried, 10) // a fence is not for good
			s.end()
			continue
		}
		remote.Revoke(t, nil)
		remote.Fill(tagAfter, 0, remote.Size)
		p.await(t, &s.tried, 50)
		s.end()
		require.NoError(t, remote.Check(tagAfter, 0, 0, remote.Size), "written after Revoke had returned")
		require.False(t, p.inline(p.volley(transport.Write, rail, local, remote, 1, size)...))
	}
}

// testInlineDetach detaches and attaches links on which threads write: their mappings must not go too early.
func testInlineDetach(t *testing.T, h Harness) {
	p := newPair(t, h)
	size := fit(p.c, 16<<10)
	op := p.inlineOps(t)[0]
	for range 20 {
		c := p.a.Connect(t, p.b)
		local, own := p.a.Register(t, 4*size, mem.LocalReadWrite), p.b.Register(t, 4*size, mem.GlobalReadWrite)
		local.Fill(tagMoved, 0, local.Size)
		own.Fill(tagMoved, 0, own.Size) // brings a file into the page cache
		remote, rail := c.Import(t, own), c.Rail(t)
		s := p.storm(c, op, local, remote, size)
		p.await(t, &s.carried, 50)
		p.a.Transport.Detach(c.Link)
		require.False(t, p.inline(c.Slice(op, rail, local, 0, remote, 0, size)), "a detached link carries nothing")
		p.await(t, &s.tried, 50)
		s.end()
		p.c.Barrier(t)
	}
}

func testInlineAllocations(t *testing.T, h Harness) {
	p := newPair(t, h)
	size := fit(p.c, 4096)
	local, remote := p.operands(t, 4*size)
	inliner := must[transport.Inliner](p.a.Transport)
	for _, op := range p.inlineOps(t) {
		list := p.volley(op, p.c.Rail(t), local, remote, 4, size)
		remote.Fill(tagMoved, 0, remote.Size) // brings a file into the page cache
		p.c.Must(t, list...)                  // warms the rail up
		require.True(t, inliner.Inline(list))
		require.Zero(t, testing.AllocsPerRun(200, func() { inliner.Inline(list) }))
	}
}
