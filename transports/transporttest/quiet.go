package transporttest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

func quietRules() []rule {
	return []rule{
		{"NothingIsWrittenAfterCompletion", nil, testNothingWrittenAfter},
		{"SourcesAreNotReadAfterCompletion", nil, testSourceNotReadAfter},
		{"FenceCompletesAllAndEndsTheGeneration", nil, testFence},
	}
}

// testNothingWrittenAfter lets the owner of the destination use it again the moment a slice completes.
func testNothingWrittenAfter(t *testing.T, h Harness) {
	p := newPair(t, h)
	const n = 40
	size := fit(p.c, 48<<10)
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		local, remote, _, to := p.aimed(t, op, n*size)
		list := p.volley(op, p.c.Rail(t), local, remote, n, size)
		p.scribbleOnEnd(to, tagAfter, list, size)
		p.c.Send(list...)
		p.c.Wait(t, list...)
		p.c.Barrier(t)
		require.NoError(t, to.Check(tagAfter, 0, 0, to.Size), "%s after its completion", op)
	}
}

// scribbleOnEnd overwrites slot i of m from inside the completion of slice i.
func (p *pair) scribbleOnEnd(m *Memory, tag uint64, list []*transport.Slice, size uint64) {
	slot := map[*transport.Slice]uint64{}
	for i, s := range list {
		slot[s] = uint64(i) * size
	}
	p.w.locked(func() {
		p.a.onComplete = func(c transport.Completion) {
			if at, ok := slot[c.Slice]; ok {
				m.Fill(tag, at, size)
			}
		}
	})
}

// testSourceNotReadAfter uses the source of each WRITE again at its completion: no byte of the new content may arrive.
func testSourceNotReadAfter(t *testing.T, h Harness) {
	p := newPair(t, h)
	const n = 40
	size := fit(p.c, 48<<10)
	local, remote := p.operands(t, n*size)
	local.Fill(tagMoved, 0, local.Size)
	list := p.volley(transport.Write, p.c.Rail(t), local, remote, n, size)
	p.scribbleOnEnd(local.Memory, tagAfter, list, size)
	p.c.Must(t, list...)
	p.c.Barrier(t)
	require.NoError(t, remote.Check(tagMoved, 0, 0, remote.Size))
}

func testFence(t *testing.T, h Harness) {
	p := newPair(t, h)
	p.interrupt(t, p.fence, errs.Withdrawn, errs.Lost)
}

// interrupt ends a generation of a rail under slices in both directions, round by round. They have arrived, or end by
// one of the codes and never land. The generation takes nothing any more, and the next one does.
func (p *pair) interrupt(t *testing.T, end func(rail transport.Rail), codes ...errs.Code) {
	t.Helper()
	const n = 30
	size := fit(p.c, 64<<10)
	for round := range 6 {
		op := transport.Op(round & 1)
		local, remote, _, to := p.aimed(t, op, n*size)
		rail := p.c.Rail(t)
		list := p.launch(op, rail, local, remote, n, size)
		end(rail)
		old := p.c.Slice(op, rail, local, 0, remote, 0, size)
		require.Zero(t, p.c.Submit(old), "a generation that has ended takes nothing")
		failed := p.ended(t, list, to, size, codes...)
		again := p.comesBack(t, rail)
		p.stillQuiet(t, to, failed, size)
		require.Zero(t, p.c.Submit(old), "nor when the next one is up")
		p.c.Must(t, p.c.Slice(op, again, local, 0, remote, 0, size))
	}
}

// ended waits for the ends of slices that were asked back. Bytes of those that succeeded must be there; the slots of
// the failed are overwritten at once, as an owner would, and returned.
func (p *pair) ended(t *testing.T, list []*transport.Slice, to *Memory, size uint64,
	codes ...errs.Code) (failed []uint64) {
	t.Helper()
	for i, end := range p.c.Wait(t, list...) {
		at := uint64(i) * size
		if end.Err == nil {
			require.NoError(t, to.Check(tagMoved, at, at, size), "slice %d", i)
			continue
		}
		require.Contains(t, codes, end.Err.Code, "%v", end.Err)
		require.False(t, end.Err.Permanent(), "%v", end.Err)
		to.Fill(tagAfter, at, size)
		failed = append(failed, at)
	}
	return failed
}

// stillQuiet takes the second look at slots that were overwritten.
func (p *pair) stillQuiet(t *testing.T, to *Memory, slots []uint64, size uint64) {
	t.Helper()
	p.c.Barrier(t)
	for _, at := range slots {
		require.NoError(t, to.Check(tagAfter, at, at, size), "a slice landed after its completion")
	}
}
