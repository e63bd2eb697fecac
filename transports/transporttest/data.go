package transporttest

import (
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

func dataRules() []rule {
	return []rule{
		{"AnySizeAndAlignment", nil, testSizes},
		{"ManySlicesASubmit", nil, testManySlices},
		{"BothDirectionsAtOnce", nil, testBothDirections},
		{"SeveralPeersAtOnce", nil, testSeveralPeers},
		{"SeveralThreadsAtOnce", nil, testSeveralThreads},
		{"EveryRailCarries", nil, testEveryRail},
		{"EveryClassCarries", nil, testEveryClass},
		{"LinksToOneself", needsSelf, testSelf},
		{"SameRegionTwice", needsEngine, testOverlap},
		{"CheckedSlicesArrive", needsChecksums, testChecked},
		{"AWriteThatHasCompletedIsVisible", nil, testVisible},
	}
}

func needsSelf(h Harness, _ transport.Transport) string { return h.NoSelf }

func needsChecksums(_ Harness, tr transport.Transport) string {
	return unless(tr.Info().Checksums, "carries no checksums")
}

// testChecked mixes slices with and without a checksum, so that neither takes the other's way. They are of sizes that
// share a call and of sizes that come in pieces.
func testChecked(t *testing.T, h Harness) {
	p := newPair(t, h)
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		for _, size := range []uint64{1, 100, 4096, 70_001, 700_001} {
			const n = 24
			size = fit(p.c, size)
			local, remote, _, to := p.aimed(t, op, n*size)
			list := p.volley(op, p.c.Rail(t), local, remote, n, size)
			for i, s := range list {
				s.Checked = i%5 != 2
			}
			p.c.Must(t, list...)
			require.NoError(t, to.Check(tagMoved, 0, 0, to.Size), "%s of %d bytes", op, size)
		}
	}
}

func testSizes(t *testing.T, h Harness) {
	p := newPair(t, h)
	largest := min(p.a.Info.SliceMax, 4<<20)
	const room = 64
	local, remote := p.operands(t, largest+2*room)
	rail, unit := p.c.Rail(t), p.a.Info.Alignment
	done := map[uint64]bool{}
	for i, size := range []uint64{1, 2, 3, 7, 8, 9, 63, 64, 65, 511, 4095, 4096, 4097, 16_383, 65_535, 65_537, 262_145,
		1<<20 - 1, 1 << 20, largest - 1, largest} {
		if size = fit(p.c, size); size > largest || done[size] {
			continue
		}
		done[size] = true
		lo, ro := uint64(3*i%room)/unit*unit, uint64(5*i%room)/unit*unit
		t.Run(fmt.Sprintf("WRITE/%d", size), func(t *testing.T) {
			local.Fill(tagMoved, 0, local.Size)
			remote.Fill(tagBefore, 0, remote.Size)
			p.c.Must(t, p.c.Slice(transport.Write, rail, local, lo, remote, ro, size))
			requireMoved(t, remote.Memory, ro, lo, size)
		})
		t.Run(fmt.Sprintf("READ/%d", size), func(t *testing.T) {
			remote.Fill(tagMoved, 0, remote.Size)
			local.Fill(tagBefore, 0, local.Size)
			p.c.Must(t, p.c.Slice(transport.Read, rail, local, lo, remote, ro, size))
			requireMoved(t, local.Memory, lo, ro, size)
		})
	}
}

// requireMoved checks that exactly [at, at+size) holds the bytes that were moved from [from, from+size).
func requireMoved(t *testing.T, m *Memory, at, from, size uint64) {
	t.Helper()
	require.NoError(t, m.Check(tagBefore, 0, 0, at), "before the destination")
	require.NoError(t, m.Check(tagMoved, from, at, size))
	require.NoError(t, m.Check(tagBefore, at+size, at+size, m.Size-at-size), "behind the destination")
}

func testManySlices(t *testing.T, h Harness) {
	p := newPair(t, h)
	random := seeded(t)
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		size := fit(p.c, 3000) + fit(p.c, 64)
		const n = 1000
		local, remote, _, to := p.aimed(t, op, n*size)
		rail := p.c.Rail(t)
		var list []*transport.Slice
		lengths := make([]uint64, n)
		order := random.Perm(n) // slot i of the source goes to slot order[i]
		for i := range n {
			lengths[i] = fit(p.c, 1+random.Uint64N(3000))
			lo, ro := uint64(i)*size, uint64(order[i])*size
			if op == transport.Read {
				lo, ro = ro, lo
			}
			list = append(list, p.c.Slice(op, rail, local, lo, remote, ro, lengths[i]))
		}
		p.c.Must(t, list...)
		seen := to.Seen()
		for i := range n {
			at := uint64(order[i]) * size
			require.NoError(t, seen.Check(tagMoved, uint64(i)*size, at, lengths[i]), "%s slot %d", op, i)
			behind := at + lengths[i]
			require.NoError(t, seen.Check(tagBefore, behind, behind, size-lengths[i]), "%s behind slot %d", op, i)
		}
	}
}

// testBothDirections moves more than any queue or socket buffer holds in all four ways at once. A transport that waits
// for the other side to read before it reads itself stands still here.
func testBothDirections(t *testing.T, h Harness) {
	p := newPair(t, h)
	back := p.b.Connect(t, p.a)
	var jobs []*job
	for _, c := range []*Conn{p.c, back} {
		for _, op := range []transport.Op{transport.Write, transport.Read} {
			jobs = append(jobs, newJob(t, c, op, 96, 64<<10))
		}
	}
	runJobs(t, jobs)
}

func testSeveralPeers(t *testing.T, h Harness) {
	w := NewWorld(t, h)
	nodes := []*Node{w.Open("a"), w.Open("b"), w.Open("c")}
	var jobs []*job
	for _, from := range nodes {
		for _, to := range nodes {
			if from != to {
				c := from.Connect(t, to)
				jobs = append(jobs, newJob(t, c, transport.Write, 20, 32<<10), newJob(t, c, transport.Read, 20, 32<<10))
			}
		}
	}
	runJobs(t, jobs)
}

func testSeveralThreads(t *testing.T, h Harness) {
	p := newPair(t, h)
	var jobs []*job
	for i := range 8 {
		jobs = append(jobs, newJob(t, p.c, transport.Op(i&1), 50, uint64(100+i*4000)))
	}
	runJobs(t, jobs)
}

func testEveryRail(t *testing.T, h Harness) {
	p := newPair(t, h)
	for _, rail := range p.c.Rails() {
		for _, op := range []transport.Op{transport.Write, transport.Read} {
			j := newJob(t, p.c, op, 10, 10_000)
			j.rail = rail
			runJobs(t, []*job{j})
		}
	}
}

func testEveryClass(t *testing.T, h Harness) {
	p := newPair(t, h)
	var jobs []*job
	for class := range uint8(3) {
		for _, op := range []transport.Op{transport.Write, transport.Read} {
			j := newJob(t, p.c, op, 20, 20_000)
			j.class = class
			jobs = append(jobs, j)
		}
	}
	runJobs(t, jobs)
}

func testSelf(t *testing.T, h Harness) {
	n := NewWorld(t, h).Open("a")
	c := n.Connect(t, n)
	runJobs(t, []*job{newJob(t, c, transport.Write, 40, 50_000), newJob(t, c, transport.Read, 40, 50_000)})
}

func testOverlap(t *testing.T, h Harness) {
	p := newPair(t, h)
	first := p.b.Register(t, 64<<10, mem.GlobalReadWrite)
	second := p.b.RegisterMemory(t, first.Memory, mem.GlobalReadOnly)
	local := p.a.Register(t, 64<<10, mem.LocalReadWrite)
	local.Fill(tagMoved, 0, local.Size)
	one, two := p.c.Import(t, first), p.c.Import(t, second)
	size := fit(p.c, 64<<10)
	p.c.Must(t, p.c.Slice(transport.Write, p.c.Rail(t), local, 0, one, 0, size))
	first.Deregister(t)
	local.Fill(tagBefore, 0, size)
	p.c.Must(t, p.c.Slice(transport.Read, p.c.Rail(t), local, 0, two, 0, size))
	require.NoError(t, local.Check(tagMoved, 0, 0, size))
}

// A job moves slots of one operand to another in one direction, in a thread of its own.
type job struct {
	c      *Conn
	op     transport.Op
	rail   transport.Rail
	class  uint8
	n      int
	length uint64
	local  *Operand
	remote *Remote
	to     *Memory
	list   []*transport.Slice
	sent   int
}

func newJob(t *testing.T, c *Conn, op transport.Op, n int, length uint64) *job {
	t.Helper()
	j := &job{c: c, op: op, rail: c.Rail(t), n: n, length: fit(c, length)}
	j.local, j.remote, _, j.to = pairOf(c).aimed(t, op, uint64(n)*j.length)
	return j
}

func runJobs(t *testing.T, jobs []*job) {
	t.Helper()
	var wait sync.WaitGroup
	for _, j := range jobs {
		wait.Go(func() {
			for i := range uint64(j.n) {
				s := j.c.Slice(j.op, j.rail, j.local, i*j.length, j.remote, i*j.length, j.length)
				s.Class = j.class
				j.list = append(j.list, s)
			}
			for i := 0; i < j.n; i += 16 {
				j.sent += j.c.Send(j.list[i:min(i+16, j.n)]...)
				runtime.Gosched()
			}
		})
	}
	wait.Wait()
	for _, j := range jobs {
		require.Equal(t, j.n, j.sent, "slices accepted")
		j.c.Succeed(t, j.list...)
		require.NoError(t, j.to.Check(tagMoved, 0, 0, j.to.Size), "%s from %s to %s", j.op, j.c.Node.name, j.c.To.name)
	}
}

// testVisible looks at the destination of each WRITE at the moment of its completion: by then everybody may be told.
func testVisible(t *testing.T, h Harness) {
	p := newPair(t, h)
	const n, volleys = 30, 8
	size := fit(p.c, 10_000)
	local, remote := p.operands(t, n*size)
	local.Fill(tagMoved, 0, local.Size)
	rail := p.c.Rail(t)
	p.w.locked(func() {
		p.a.onComplete = func(c transport.Completion) {
			if s := c.Slice; c.Err == nil {
				if err := remote.Check(tagMoved, s.Remote, s.Remote, s.Length); err != nil {
					p.w.report("slice %d has completed, and is not visible: %v", c.Id, err)
				}
			}
		}
	})
	for range volleys {
		remote.Fill(tagBefore, 0, remote.Size)
		list := p.volley(transport.Write, rail, local, remote, n, size)
		for i, s := range list {
			s.Class = uint8(i % 3)
		}
		p.c.Must(t, list...)
	}
}
