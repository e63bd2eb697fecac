package transporttest

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

func lifeRules() []rule {
	return []rule{
		{"DetachCompletesWhatIsOutstanding", nil, testDetach},
		{"CloseCompletesWhatIsOutstanding", nil, testCloseBusy},
		{"CloseLeavesNothing", nil, testCloseLeavesNothing},
		{"AfterCloseEverythingIsRefused", nil, testAfterClose},
		{"AttachAndDetachManyTimes", nil, testAttachCycles},
	}
}

func testDetach(t *testing.T, h Harness) {
	p := newPair(t, h)
	const n = 40
	size := fit(p.c, 64<<10)
	local, remote := p.operands(t, n*size)
	local.Fill(tagMoved, 0, local.Size)
	var used []transport.Link
	for round := range 6 {
		op := transport.Op(round & 1)
		rail := p.c.Rail(t)
		list := p.volley(op, rail, local, remote, n, size)
		list = list[:p.c.Submit(list...)]
		p.a.Transport.Detach(p.c.Link)
		p.c.Wait(t, list...)
		require.Zero(t, p.c.Submit(p.c.Slice(op, rail, local, 0, remote, 0, size)), "a detached link takes nothing")
		p.a.Transport.Detach(p.c.Link) // twice is the same as once
		remote.Fill(tagAfter, 0, remote.Size)
		used = append(used, p.c.Link)
		p.c = p.a.Connect(t, p.b)
		require.NotContains(t, used, p.c.Link, "the number of a detached link is not used again")
		p.c.Barrier(t)
		require.NoError(t, remote.Check(tagAfter, 0, 0, remote.Size), "written after Detach had completed it")
		remote = p.c.Import(t, remote.Operand)
	}
}

func testCloseBusy(t *testing.T, h Harness) {
	for _, side := range []string{"initiator", "target"} {
		t.Run(side, func(t *testing.T) {
			p := newPair(t, h)
			if side == "target" && p.a.Info.Files {
				t.Skip("files do not close")
			}
			const n = 40
			size := fit(p.c, 64<<10)
			local, remote := p.operands(t, n*size)
			rail := p.c.Rail(t)
			writes := p.volley(transport.Write, rail, local, remote, n, size)
			writes = writes[:p.c.Submit(writes...)]
			reads := p.volley(transport.Read, rail, local, remote, n, size)
			reads = reads[:p.c.Submit(reads...)]
			if side == "initiator" {
				p.a.Close(t)
				p.w.mu.Lock()
				defer p.w.mu.Unlock()
				require.True(t, p.c.endedLocked(writes) && p.c.endedLocked(reads), "Close returned before the completions")
				return
			}
			p.b.Close(t)
			remote.Fill(tagAfter, 0, remote.Size)
			if h.SilentClose == "" {
				p.c.Wait(t, writes...)
				p.c.Wait(t, reads...)
			}
			p.a.Close(t)
			require.NoError(t, remote.Check(tagAfter, 0, 0, remote.Size), "written after its owner had closed")
		})
	}
}

func testCloseLeavesNothing(t *testing.T, h Harness) {
	w := NewWorld(t, h)
	for range 8 {
		p := &pair{w: w, a: w.Open("a"), b: w.Open("b")}
		p.c = p.a.Connect(t, p.b)
		local, remote := p.operands(t, 4096)
		p.c.Must(t, p.c.Slice(transport.Write, p.c.Rail(t), local, 0, remote, 0, fit(p.c, 4096)))
		p.a.Close(t)
		p.b.Close(t)
		require.NoError(t, goleak.Find(w.leak))
		require.Equal(t, w.fds, openFds(t), "file descriptors")
	}
}

func testAfterClose(t *testing.T, h Harness) {
	p := newPair(t, h)
	local, remote := p.operands(t, 4096)
	rail := p.c.Rail(t)
	s := p.c.Slice(transport.Write, rail, local, 0, remote, 0, fit(p.c, 4096))
	p.a.Close(t)
	tr := p.a.Transport
	require.Zero(t, p.c.Submit(s))
	tr.Withdraw([]*transport.Slice{s})
	tr.Fence(rail)
	tr.Detach(p.c.Link)
	_, _, err := tr.Register(t.Context(), local.region(99, mem.LocalReadWrite))
	require.Equal(t, errs.EngineClosed, errs.CodeOf(err), "Register: %v", err)
	_, err = tr.Attach(p.b.Peer)
	require.Equal(t, errs.EngineClosed, errs.CodeOf(err), "Attach: %v", err)
	_, err = tr.Import(p.c.Link, remote.Descriptor)
	require.Error(t, err)
	_, err = tr.Serve(t.Context(), p.b.Peer, nil)
	require.Error(t, err)
	require.NoError(t, tr.Close(context.Background()), "twice is the same as once")
}

func testAttachCycles(t *testing.T, h Harness) {
	p := newPair(t, h)
	local, own := p.a.Register(t, 4096, mem.LocalReadWrite), p.b.Register(t, 4096, mem.GlobalReadWrite)
	for range 20 {
		c := p.a.Connect(t, p.b)
		remote := c.Import(t, own)
		c.Must(t, c.Slice(transport.Write, c.Rail(t), local, 0, remote, 0, fit(c, 4096)))
		p.a.Transport.Detach(c.Link)
	}
	remote := p.c.Import(t, own)
	p.c.Must(t, p.c.Slice(transport.Write, p.c.Rail(t), local, 0, remote, 0, fit(p.c, 4096)))
}
