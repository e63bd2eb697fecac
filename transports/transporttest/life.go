package transporttest

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/leaks"
)

func lifeRules() []rule {
	return []rule{
		{"DetachCompletesWhatIsOutstanding", nil, testDetach},
		{"CloseCompletesWhatIsOutstanding", nil, testCloseBusy},
		{"CloseLeavesNothing", nil, testCloseLeavesNothing},
		{"AfterCloseEverythingIsRefused", nil, testAfterClose},
		{"AttachAndDetachManyTimes", nil, testAttachCycles},
		{"StaleLinksAreRefusedAndCounted", nil, testStaleLink},
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
		list := p.launch(op, rail, local, remote, n, size)
		p.a.Transport.Detach(p.c.Link)
		p.c.Wait(t, list...)
		require.Zero(t, p.c.Submit(p.c.Slice(op, rail, local, 0, remote, 0, size)), "a detached link takes nothing")
		p.a.Transport.Detach(p.c.Link) // twice is the same as once
		remote.Fill(tagAfter, 0, remote.Size)
		used = append(used, p.c.Link)
		p.c = p.a.Connect(t, p.b)
		require.NotContains(t, used, p.c.Link, "a detached link never means another one")
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
				return // files do not close
			}
			const n = 40
			size := fit(p.c, 64<<10)
			local, remote := p.operands(t, n*size)
			rail := p.c.Rail(t)
			writes := p.launch(transport.Write, rail, local, remote, n, size)
			reads := p.launch(transport.Read, rail, local, remote, n, size)
			if side == "initiator" {
				p.a.Close(t)
				p.w.mu.Lock()
				defer p.w.mu.Unlock()
				require.True(t, p.c.endedLocked(writes) && p.c.endedLocked(reads),
					"Close returned before the completions")
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
	var near, far *Memory
	fds := 0 // with those that the operands have; the world's end counts without
	for i := range 8 {
		a, b := w.Open("a"), w.Open("b")
		p := pairOf(a.Connect(t, b))
		var local *Operand
		var remote *Remote
		if i == 0 || p.a.Info.Files {
			local, remote = p.operands(t, 4096)
			near, far = local.Memory, remote.Memory
		} else {
			local = p.a.RegisterMemory(t, near, mem.LocalReadWrite)
			remote = p.c.Import(t, p.b.RegisterMemory(t, far, mem.GlobalReadWrite))
		}
		p.c.Must(t, p.c.Slice(transport.Write, p.c.Rail(t), local, 0, remote, 0, fit(p.c, 4096)))
		p.a.Close(t)
		p.b.Close(t)
		require.NoError(t, goleak.Find(w.leak))
		if i == 0 {
			fds = leaks.Descriptors(t)
		}
		require.Equal(t, fds, leaks.Descriptors(t), "file descriptors")
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

// indexMax bounds the indexes of links in a test that has two at once. A transport's table grows to the links that are
// there at once.
const indexMax = 8

func testAttachCycles(t *testing.T, h Harness) {
	p := newPair(t, h)
	local, own := p.a.Register(t, 4096, mem.LocalReadWrite), p.b.Register(t, 4096, mem.GlobalReadWrite)
	for range 20 {
		c := p.a.Connect(t, p.b)
		remote := c.Import(t, own)
		c.Must(t, c.Slice(transport.Write, c.Rail(t), local, 0, remote, 0, fit(c, 4096)))
		p.a.Transport.Detach(c.Link)
		require.Less(t, c.Link.Index(), uint32(indexMax), "indexes of detached links are used again")
	}
	for range 200 { // without waiting for a rail
		link, err := p.a.Transport.Attach(p.b.seenBy(t, p.a))
		require.NoError(t, err)
		require.Less(t, link.Index(), uint32(indexMax), "indexes of detached links are used again")
		p.a.Transport.Detach(link)
	}
	remote := p.c.Import(t, own)
	p.c.Must(t, p.c.Slice(transport.Write, p.c.Rail(t), local, 0, remote, 0, fit(p.c, 4096)))
}

// testStaleLink names a link that has ended in every call, while another link has its index.
func testStaleLink(t *testing.T, h Harness) {
	p := newPair(t, h)
	local, remote := p.operands(t, 4096)
	stale := p.c.Link
	p.a.Transport.Detach(stale)
	for range indexMax { // indexes may be given out in any order
		if p.c = p.a.Connect(t, p.b); p.c.Link.Index() == stale.Index() {
			break
		}
	}
	require.Equal(t, stale.Index(), p.c.Link.Index(), "an index is used again")
	require.NotEqual(t, stale.Generation(), p.c.Link.Generation())
	remote = p.c.Import(t, remote.Operand)
	size := fit(p.c, 4096)
	for name, call := range p.staleCalls(t, stale, local, remote) {
		before := p.a.Transport.Stale()
		call()
		require.Greater(t, p.a.Transport.Stale(), before, "%s of a stale link is counted", name)
	}
	p.c.Must(t, p.c.Slice(transport.Write, p.c.Rail(t), local, 0, remote, 0, size))
}

// staleCalls are the calls of the contract that name a link. Each checks that it is refused. The rail that they name is
// up on the link that has the index now.
func (p *pair) staleCalls(t *testing.T, stale transport.Link, local *Operand, remote *Remote) map[string]func() {
	tr, rail := p.a.Transport, p.c.Rail(t)
	rail.Link = stale
	slice := func() *transport.Slice {
		return p.c.Slice(transport.Write, rail, local, 0, remote, 0, fit(p.c, 4096))
	}
	calls := map[string]func(){
		"Import": func() {
			_, err := tr.Import(stale, remote.Descriptor)
			require.Error(t, err)
		},
		"Forget": func() { tr.Forget(stale, remote.Key) },
		"Submit": func() { require.Zero(t, p.c.Submit(slice())) },
		"Fence":  func() { tr.Fence(rail) },
		"Detach": func() { tr.Detach(stale) },
	}
	if inliner, is := transport.Find[transport.Inliner](tr); is {
		calls["Inline"] = func() { require.False(t, inliner.Inline([]*transport.Slice{slice()})) }
	}
	if witness, is := transport.Find[transport.Witness](tr); is {
		calls["Heard"] = func() {
			require.Zero(t, witness.Heard(rail))
		}
	}
	if explainer, is := transport.Find[transport.Explainer](tr); is {
		calls["Explain"] = func() { _ = explainer.Explain(stale) }
	}
	if notifier, is := transport.Find[transport.Notifier](tr); is {
		calls["Notify"] = func() {
			require.False(t, notifier.Notify(stale, []byte("to nobody"), func(*errs.Error) {
				p.w.report("done of a notification that was refused")
			}))
		}
	}
	if prober, is := transport.Find[transport.Prober](tr); is {
		calls["Probe"] = p.refusedLater(t, "Probe", func(done func(*errs.Error)) {
			prober.Probe(rail, func(_ clock.Time, err *errs.Error) { done(err) })
		})
	}
	if filer, is := transport.Find[transport.Filer](tr); is && p.a.Info.Files {
		calls["Sync"] = p.refusedLater(t, "Sync", func(done func(*errs.Error)) { filer.Sync(stale, remote.Key, done) })
	}
	return calls
}

// refusedLater makes a call that ends by done and requires an error there.
func (p *pair) refusedLater(t *testing.T, name string, call func(done func(*errs.Error))) func() {
	return func() {
		ended, err := false, (*errs.Error)(nil)
		call(func(e *errs.Error) { p.w.locked(func() { ended, err = true, e }) })
		p.w.Await(t, "the end of "+name+" on a stale link", func() bool { return ended })
		require.NotNil(t, err, name)
	}
}
