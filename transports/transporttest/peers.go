package transporttest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// atOnce bounds a call that does no I/O, on a loaded machine. A dial's own limit is 500 ms.
const atOnce = 250 * time.Millisecond

func peerRules() []rule {
	closing := func(h Harness, _ transport.Transport) string { return h.SilentClose }
	return []rule{
		{"AttachReturnsAtOnceAndSaysThatNobodyIsThere", needsEngine, testNobodyThere},
		{"PeersThatCloseAreReported", closing, testPeerCloses},
		{"AnotherIncarnationIsAnotherPeer", closing, testIncarnation},
		{"ADeadPeerDoesNotDisturbOthers", closing, testDeadPeer},
	}
}

func testNobodyThere(t *testing.T, h Harness) {
	for name, address := range map[string]string{"refused": "nobody:1", "silent": silentAddress} {
		t.Run(name, func(t *testing.T) {
			n := NewWorld(t, h).Open("a")
			before := time.Now()
			link, err := n.Transport.Attach(transport.Peer{Address: address, Name: "nobody", MachineID: "machine",
				ID: transport.NumberedID(77)})
			require.Less(t, time.Since(before), atOnce, "Attach waited")
			if err != nil {
				return // known at once
			}
			n.w.Await(t, "LinkDown", func() bool { return n.linkDown[link] != nil })
			require.Contains(t, []errs.Code{errs.PeerUnreachable, errs.Timeout}, n.cause(link).Code)
			require.GreaterOrEqual(t, n.cause(link).Scope, errs.ScopeLink)
			n.w.locked(func() { n.w.silenceEnded = true })
			n.w.Await(t, "the proof that the silent process has ended", func() bool {
				return n.linkDown[link].Code == errs.PeerUnreachable && n.linkDown[link].Side == errs.SideRemote
			})
			require.Zero(t, n.Transport.Submit([]*transport.Slice{{Rail: transport.Rail{Link: link, Generation: 1},
				Length: 1}}))
			n.Transport.Detach(link)
		})
	}
}

func testPeerCloses(t *testing.T, h Harness) {
	p := newPair(t, h)
	p.b.Close(t)
	p.w.Await(t, "LinkDown", func() bool { return p.a.linkDown[p.c.Link] != nil })
	require.Contains(t, []errs.Code{errs.PeerUnreachable, errs.PeerRestarted}, p.a.cause(p.c.Link).Code)
	require.Equal(t, errs.SideRemote, p.a.cause(p.c.Link).Side)
	require.Empty(t, p.c.Rails())
}

func testIncarnation(t *testing.T, h Harness) {
	p := newPair(t, h)
	size := fit(p.c, 4096)
	local, old := p.operands(t, size)
	stale := p.b.Peer
	p.b.Close(t)
	p.b = p.w.Open("b")
	require.NotEqual(t, stale.ID, p.b.Peer.ID)
	old.Fill(tagAfter, 0, size)

	link, err := p.a.Transport.Attach(stale)
	if err == nil {
		p.w.Await(t, "LinkDown for a peer that has restarted", func() bool { return p.a.linkDown[link] != nil })
		err = p.a.cause(link)
	}
	require.Equal(t, errs.PeerRestarted, errs.CodeOf(err), "%v", err)

	p.c = p.a.Connect(t, p.b)
	fresh := p.b.RegisterMemory(t, old.Memory, mem.GlobalReadWrite) // same address, same slot, another incarnation
	if key, err := p.a.Transport.Import(p.c.Link, old.Descriptor); err == nil {
		p.refused(t, p.c.Slice(transport.Write, p.c.Rail(t), local, 0, old.by(key), 0, size),
			append(notThere, errs.PeerRestarted)...)
	}
	require.NoError(t, old.Check(tagAfter, 0, 0, size), "a descriptor of an earlier life gave access")
	p.c.Must(t, p.c.Slice(transport.Write, p.c.Rail(t), local, 0, p.c.Import(t, fresh), 0, size))
}

func testDeadPeer(t *testing.T, h Harness) {
	p := newPair(t, h)
	other := p.a.Connect(t, p.w.Open("c"))
	local, remote := p.operands(t, 64<<10)
	far := other.Import(t, other.To.Register(t, 64<<10, mem.GlobalReadWrite))
	local.Fill(tagMoved, 0, local.Size)
	size := fit(p.c, 16<<10)
	dying := p.volley(transport.Write, p.c.Rail(t), local, remote, 4, size)
	living := func() *transport.Slice {
		return other.Slice(transport.Write, other.Rail(t), local, 0, far, 0, size)
	}
	p.c.Submit(dying...)
	other.Must(t, living(), living())
	p.b.Close(t)
	other.Must(t, living(), living())
	p.w.Await(t, "LinkDown", func() bool { return p.a.linkDown[p.c.Link] != nil })
	other.Must(t, living(), living())
	require.NoError(t, far.Check(tagMoved, 0, 0, size))
}
