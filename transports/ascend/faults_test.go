package ascend

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/ascend"
	"github.com/tent-engine/tent/transports/ascend/hixl"
	"github.com/tent-engine/tent/transports/transporttest"
)

// tags of patterns.
const (
	before = 1
	moved  = 2
	after  = 3
)

// rig is two nodes over the emulated HIXL, the first attached to the second, with a region of each.
type rig struct {
	t      *testing.T
	h      *fake.Linked
	w      *transporttest.World
	a, b   *transporttest.Node
	c      *transporttest.Conn
	local  *transporttest.Operand
	remote *transporttest.Remote
	mute   atomic.Bool  // calls of the second node reach nobody
	dead   atomic.Bool  // and are refused, as by the host of a process that was killed
	breaks atomic.Int32 // the number of next ones that are, as where a connection breaks
	heard  hearing
}

// hearing is a sink that keeps the causes of rails and links that went down, and looks at each failure.
type hearing struct {
	transport.Sink
	mu     sync.Mutex
	rails  []*errs.Error
	links  []*errs.Error
	failed func(transport.Completion) // called before the completion is handed on
}

func (h *hearing) RailDown(rail transport.Rail, cause *errs.Error) {
	h.mu.Lock()
	h.rails = append(h.rails, cause)
	h.mu.Unlock()
	h.Sink.RailDown(rail, cause)
}

func (h *hearing) LinkDown(l transport.Link, cause *errs.Error) {
	h.mu.Lock()
	h.links = append(h.links, cause)
	h.mu.Unlock()
	h.Sink.LinkDown(l, cause)
}

func (h *hearing) Complete(list []transport.Completion) {
	for _, c := range list {
		if h.failed != nil && c.Err != nil {
			h.failed(c)
		}
	}
	h.Sink.Complete(list)
}

func (h *hearing) railsDown() []*errs.Error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]*errs.Error(nil), h.rails...)
}

func (h *hearing) linksDown() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.links)
}

// silent is a host with calls that reach nobody while mute is set, and are refused while dead is.
type silent struct {
	transport.Host
	mute, dead *atomic.Bool
	breaks     *atomic.Int32
}

func (s silent) Call(ctx context.Context, peer transport.Peer, message []byte) ([]byte, error) {
	if s.mute.Load() {
		return nil, errs.New(errs.Timeout, "call", "nobody answers")
	}
	if s.dead.Load() || s.breaks.Add(-1) >= 0 {
		return nil, errs.New(errs.PeerUnreachable, "call", "refused").WithScope(errs.ScopeLink, errs.SideRemote)
	}
	return s.Host.Call(ctx, peer, message)
}

const (
	rigSize = 1 << 20
	piece   = 16 << 10
)

// onRig carries a test out in a child process with the libraries.
func onRig(t *testing.T, links fake.LinkSettings, s Settings, test func(r *rig)) {
	t.Helper()
	fake.RunLinked(t, nil, links, func(t *testing.T, npu *fake.Loaded, h *fake.Linked) {
		r := &rig{t: t, h: h}
		harness := suite(onNPU(npu), onNPU(npu), h)
		harness.Open = func(t *testing.T, c transporttest.Config) transport.Transport {
			switch c.Name {
			case "a":
				r.heard.Sink = c.Sink
				c.Sink = &r.heard
			case "b":
				c.Host = silent{c.Host, &r.mute, &r.dead, &r.breaks}
			}
			tr, err := Factory{}.Open(t.Context(), s, c.Host, c.Sink)
			require.NoError(t, err)
			return tr
		}
		r.w = transporttest.NewWorld(t, harness)
		r.a, r.b = r.w.Open("a"), r.w.Open("b")
		test(r)
	})
}

// meets attaches the nodes, with memory of both.
func (r *rig) meets() {
	r.c = r.a.Connect(r.t, r.b)
	r.local = r.a.Register(r.t, rigSize, mem.LocalReadWrite)
	r.remote = r.c.Import(r.t, r.b.Register(r.t, rigSize, mem.GlobalReadWrite))
	r.local.Fill(moved, 0, rigSize)
	r.remote.Fill(before, 0, rigSize)
	r.works()
}

// volley makes WRITEs side by side.
func (r *rig) volley(n int) (list []*transport.Slice) {
	rail := r.c.Rail(r.t)
	for i := range uint64(n) {
		list = append(list, r.c.Slice(transport.Write, rail, r.local, i*piece, r.remote, i*piece, piece))
	}
	return list
}

// works moves one piece, and waits for a rail before.
func (r *rig) works() {
	r.t.Helper()
	r.c.Must(r.t, r.volley(1)...)
	require.NoError(r.t, r.remote.Check(moved, 0, 0, piece))
}

func (r *rig) await(what string, cond func() bool) {
	r.t.Helper()
	require.Eventually(r.t, cond, 10*time.Second, time.Millisecond, what)
}

// A region that came after the link is reached by another connection, behind the slices that are out. The rail stays.
func TestARegionThatComesLaterIsReached(t *testing.T) {
	onRig(t, nil, Settings{}, func(r *rig) {
		r.meets()
		rail, connects := r.c.Rail(t), r.h.Stats().Connects
		var later []*transporttest.Remote
		for range 10 {
			later = append(later, r.c.Import(t, r.b.Register(t, piece, mem.GlobalReadWrite)))
		}
		r.h.Hold(true)
		out := r.volley(4)
		r.c.Send(out...)
		var list []*transport.Slice
		for i, far := range later {
			list = append(list, r.c.Slice(transport.Write, rail, r.local, uint64(i)*piece, far, 0, piece))
		}
		r.c.Send(list...)
		r.h.Hold(false)
		r.c.Wait(t, out...)
		for _, end := range r.c.Wait(t, list...) {
			require.Nil(t, end.Err)
		}
		for i, far := range later {
			require.NoError(t, far.Check(moved, uint64(i)*piece, 0, piece))
		}
		require.Equal(t, connects+1, r.h.Stats().Connects, "one connection sees all of them")
		require.Equal(t, rail, r.c.Rail(t))
		require.Empty(t, r.heard.railsDown())
	})
}

// A slice that is late ends its link, and is completed afterwards: nothing of it lands later.
func TestALateSliceEndsItsLinkBeforeItself(t *testing.T) {
	onRig(t, nil, Settings{TransferTimeout: 50 * time.Millisecond}, func(r *rig) {
		r.meets()
		var links atomic.Int64
		r.heard.failed = func(transport.Completion) { links.Add(r.h.Stats().Clients) }
		r.h.Hold(true)
		list := r.volley(12) // more than are posted at once
		n := r.c.Send(list...)
		late, neighbours := 0, 0
		for _, end := range r.c.Wait(t, list[:n]...) {
			require.NotNil(t, end.Err)
			require.Equal(t, errs.Lost, end.Err.Code)
			if end.Err.Collateral {
				neighbours++
			} else {
				late++
				require.ErrorContains(t, end.Err, "has not ended within 50ms")
				require.ErrorContains(t, end.Err, "transfer_timeout_ns")
			}
		}
		require.Positive(t, late)
		require.Equal(t, n, late+neighbours)
		require.Zero(t, links.Load(), "a slice was completed while its link was there")
		r.remote.Fill(after, 0, rigSize)
		r.h.Hold(false)
		r.await("the rail", func() bool { return len(r.c.Rails()) > 0 })
		require.NoError(t, r.remote.Check(after, 0, 0, rigSize), "written after the completion")
		require.Equal(t, errs.ScopeRail, r.heard.railsDown()[0].Scope)
		r.works()
	})
}

// Each code of HIXL has an error, of the reach that it has. The link lives on after those of one slice.
func TestEachCodeOfHIXLHasItsError(t *testing.T) {
	for code, c := range map[hixl.Status]struct {
		at    errs.Code
		scope errs.Scope
		says  string
	}{
		hixl.ParamInvalid:      {errs.InvalidArgument, errs.ScopeSlice, "PARAM_INVALID (103900)"},
		hixl.TimedOut:          {errs.Lost, errs.ScopeRail, "TIMEOUT (103901)"},
		hixl.NotConnected:      {errs.Lost, errs.ScopeRail, "NOT_CONNECTED (103902)"},
		hixl.AlreadyConnected:  {errs.Lost, errs.ScopeRail, "ALREADY_CONNECTED (103903)"},
		hixl.NotifyFailed:      {errs.Lost, errs.ScopeRail, "NOTIFY_FAILED (103904)"},
		hixl.Unsupported:       {errs.NotHere, errs.ScopeRail, "UNSUPPORTED (103905)"},
		hixl.Failed:            {errs.Lost, errs.ScopeRail, "FAILED (503900)"},
		hixl.Threw:             {errs.Internal, errs.ScopeRail, "an exception of the test"},
		hixl.Status(4_000_000): {errs.Lost, errs.ScopeRail, "does not know (4000000)"},
	} {
		t.Run(fmt.Sprint(uint32(code)), func(t *testing.T) {
			onRig(t, nil, Settings{}, func(r *rig) {
				r.meets()
				r.h.Inject("TransferAsync", 1, uint32(code))
				end := r.c.One(t, r.volley(1)[0])
				require.NotNil(t, end)
				require.Equal(t, c.at, end.Code, "%v", end)
				require.Equal(t, c.scope, end.Scope, "%v", end)
				require.ErrorContains(t, end, c.says)
				r.works()
				require.Equal(t, c.scope == errs.ScopeRail, len(r.heard.railsDown()) > 0)
			})
		})
	}
}

// A request that fails late ends the link. Its neighbours fail with it, and are not to blame.
func TestARequestThatFailsEndsItsLink(t *testing.T) {
	for code, says := range map[uint32]string{503900: "FAILED", 103901: "TIMEOUT"} {
		t.Run(says, func(t *testing.T) {
			onRig(t, nil, Settings{}, func(r *rig) {
				r.meets()
				r.h.Hold(true)
				r.h.Inject("transfer", 2, code)
				list := r.volley(8)
				n := r.c.Send(list...)
				r.h.Hold(false)
				guilty := 0
				for _, end := range r.c.Wait(t, list[:n]...) {
					if end.Err != nil && !end.Err.Collateral {
						guilty++
						require.ErrorContains(t, end.Err, says)
						require.Equal(t, errs.ScopeRail, end.Err.Scope)
					}
				}
				require.Equal(t, 1, guilty)
				require.Len(t, r.heard.railsDown(), 1)
				r.works()
			})
		})
	}
}

// The answer to a question may be an error. It ends the request, which nobody asks about again (Linked.Check).
func TestAQuestionThatFailsEndsItsLink(t *testing.T) {
	onRig(t, nil, Settings{}, func(r *rig) {
		r.meets()
		r.h.Inject("GetTransferStatus", 1, 103900)
		end := r.c.One(t, r.volley(1)[0])
		require.NotNil(t, end)
		require.ErrorContains(t, end, "PARAM_INVALID")
		require.Equal(t, errs.ScopeRail, end.Scope, "nothing is known of its bytes")
		r.works()
	})
}

// Where HIXL has no room for requests, slices wait and none fails.
func TestSlicesWaitForRoom(t *testing.T) {
	onRig(t, fake.LinkSettings{"REQUESTS": "2"}, Settings{}, func(r *rig) {
		r.meets()
		r.c.Must(t, r.volley(40)...)
		require.NoError(t, r.remote.Check(moved, 0, 0, 40*piece))
		require.Empty(t, r.heard.railsDown())
	})
}

// More peers than links have them in turn, whether tent or HIXL is the one with the bound.
func TestLinksMakeRoomForEachOther(t *testing.T) {
	for name, c := range map[string]struct {
		links fake.LinkSettings
		most  int
	}{"links_max": {nil, 2}, "HIXL's own": {fake.LinkSettings{"LINKS": "2"}, 512}} {
		t.Run(name, func(t *testing.T) {
			onRig(t, c.links, Settings{Links: c.most}, func(r *rig) {
				r.meets()
				conns := []*transporttest.Conn{r.c}
				fars := []*transporttest.Remote{r.remote}
				for _, name := range []string{"c", "d", "e"} {
					n := r.w.Open(name)
					conns = append(conns, r.a.Connect(t, n))
					fars = append(fars, conns[len(conns)-1].Import(t, n.Register(t, rigSize, mem.GlobalReadWrite)))
				}
				for round := range uint64(3) {
					var all []*transport.Slice
					for i, conn := range conns {
						at := round * piece
						s := conn.Slice(transport.Write, conn.Rail(t), r.local, at, fars[i], at, piece)
						conn.Send(s)
						all = append(all, s)
					}
					for _, end := range r.c.Wait(t, all...) {
						require.Nil(t, end.Err)
					}
					require.LessOrEqual(t, r.h.Stats().Clients, int64(2))
				}
				for _, far := range fars {
					require.NoError(t, far.Check(moved, 0, 0, 3*piece))
				}
				require.Empty(t, r.heard.railsDown(), "a link that is not connected is no failure")
			})
		})
	}
}

// A peer that cannot be connected is reported once, and tried on.
func TestAConnectThatTakesTooLongIsReportedAndTriedAgain(t *testing.T) {
	onRig(t, nil, Settings{ConnectTimeout: 30 * time.Millisecond}, func(r *rig) {
		r.h.Silence(true)
		link, err := r.a.Transport.Attach(transport.Peer{Address: r.b.Peer.Address, ID: r.b.Peer.ID})
		require.NoError(t, err)
		r.await("LinkDown", func() bool { return r.heard.linksDown() > 0 })
		require.Equal(t, errs.Timeout, r.heard.links[0].Code)
		require.ErrorContains(t, r.heard.links[0], "TIMEOUT (103901)")
		require.Contains(t, r.a.Transport.(*ascend).Explain(link), "TIMEOUT")
		r.h.Silence(false)
		r.await("the rail", func() bool {
			return r.a.Transport.(*ascend).Explain(link) != "" && r.h.Stats().Clients == 1
		})
		require.Equal(t, 1, r.heard.linksDown(), "once")
		r.a.Transport.Detach(link)
	})
}

// An owner's fence holds for a peer that says nothing. The slices that it posted land nowhere, and it hears later.
func TestAFenceHoldsForAPeerThatDoesNotAnswer(t *testing.T) {
	for _, goodbye := range []bool{false, true} {
		t.Run(fmt.Sprintf("closes the region %v", goodbye), func(t *testing.T) {
			onRig(t, nil, Settings{}, func(r *rig) {
				r.meets()
				other := r.c.Import(t, r.b.Register(t, piece, mem.GlobalReadWrite))
				r.h.Hold(true)
				old := r.volley(20)
				under := r.c.Submit(old[:10]...)
				r.await("posted slices", func() bool { return r.h.Stats().Requests > 0 })
				r.mute.Store(true)
				var epoch transport.Epoch
				if goodbye {
					r.remote.Revoke(t, nil)
					r.remote.Deregister(t)
				} else {
					epoch = r.remote.Fence(t, nil)
				}
				r.mute.Store(false)
				r.remote.Fill(after, 0, rigSize)
				r.h.Hold(false)
				late := r.c.Submit(old[10:]...)
				for _, end := range r.c.Wait(t, append(old[:under:under], old[10:10+late]...)...) {
					require.NotNil(t, end.Err, "a slice of before the fence")
				}
				s := r.c.Slice(transport.Write, r.c.Rail(t), r.local, 0, other, 0, piece)
				r.c.Must(t, s)
				require.NoError(t, r.remote.Check(after, 0, 0, rigSize), "written by a slice of before the fence")
				if !goodbye {
					r.c.Hear(t, epoch)
					r.works()
					return
				}
				rail := r.c.Rail(t)
				end := r.c.One(t, r.c.Slice(transport.Write, rail, r.local, 0, r.remote, 0, piece))
				require.Equal(t, errs.AddressNotRegistered, end.Code, "%v", end)
			})
		})
	}
}

// A peer that was killed is proved to be gone: nobody waits for it, and no other link pays.
func TestAKilledGuestCostsNoEngineOfHIXL(t *testing.T) {
	onRig(t, nil, Settings{}, func(r *rig) {
		r.meets()
		owner := r.b.Transport.(*ascend)
		where, _, err := owner.instance.address()
		require.NoError(t, err)
		r.dead.Store(true)
		r.remote.Fence(t, nil)
		r.dead.Store(false)
		now, _, err := owner.instance.address()
		require.NoError(t, err)
		require.Equal(t, where, now)
		require.Empty(t, owner.guests.all(), "it is forgotten")
	})
}

// A link that HIXL does not end goes with our engine of HIXL. Others are made anew.
func TestALinkThatDoesNotEndCostsTheEngineOfHIXL(t *testing.T) {
	onRig(t, nil, Settings{}, func(r *rig) {
		r.meets()
		where, _, err := r.a.Transport.(*ascend).instance.address()
		require.NoError(t, err)
		r.h.Inject("Disconnect", 1, 503900)
		r.h.Inject("TransferAsync", 1, 103902)
		require.NotNil(t, r.c.One(t, r.volley(1)[0]))
		r.works()
		now, _, err := r.a.Transport.(*ascend).instance.address()
		require.NoError(t, err)
		require.NotEqual(t, where, now, "nobody finds the engine of before")
		require.EqualValues(t, 2, r.h.Stats().Engines)
	})
}

// Regions inside of another one share its registration, and one that overlaps is another transport's.
func TestRegionsShareTheirRegistration(t *testing.T) {
	onRig(t, nil, Settings{}, func(r *rig) {
		r.meets()
		tr, at := r.b.Transport, uintptr(0)
		region := func(from, size uint64) mem.Region {
			return mem.Region{Addr: at + uintptr(from), Size: size, Kind: mem.Npu, Location: "npu:0", Fd: -1,
				Permission: mem.GlobalReadWrite}
		}
		outer := r.b.Register(t, rigSize, mem.GlobalReadWrite)
		at = outer.Addr
		regions := r.h.Stats().Regions
		inner, d, err := tr.Register(t.Context(), region(piece, piece))
		require.NoError(t, err)
		require.Equal(t, regions, r.h.Stats().Regions)
		_, _, err = tr.Register(t.Context(), region(rigSize-piece, 2*piece))
		require.Equal(t, errs.NotHere, errs.CodeOf(err), "%v", err)
		require.ErrorContains(t, err, "overlaps")
		outer.Deregister(t)
		require.Equal(t, regions, r.h.Stats().Regions, "the inner one needs it")
		key, err := r.a.Transport.Import(r.c.Link, d)
		require.NoError(t, err)
		far := &transporttest.Remote{Operand: outer, Key: key}
		r.c.Must(t, r.c.Slice(transport.Write, r.c.Rail(t), r.local, 0, far, 0, piece))
		require.NoError(t, outer.Check(moved, 0, piece, piece))
		require.NoError(t, tr.Deregister(t.Context(), inner))
		require.Equal(t, regions-1, r.h.Stats().Regions)
	})
}

// Memory that HIXL cannot take is NotHere with the reason: it lives on the other transports.
func TestMemoryOfOthersIsNotHere(t *testing.T) {
	onRig(t, nil, Settings{}, func(r *rig) {
		own := make([]byte, 4096)
		for _, c := range []struct {
			m    mem.Region
			says string
		}{
			{mem.Region{Addr: mem.AddressOf(own), Size: 4096, Kind: mem.Host, Location: "cpu:0"}, "aclrtMallocHost"},
			{mem.Region{Addr: mem.AddressOf(own), Size: 4096, Kind: mem.Cuda, Location: "cuda:0"}, "not an NPU's"},
			{mem.Region{Addr: mem.AddressOf(own), Size: 4096, Kind: mem.Npu, Location: "npu:1"},
				"ascend_direct/device"},
			{mem.Region{Addr: mem.AddressOf(own), Size: 4096, Kind: mem.Npu, Location: "npu:0"}, "PARAM_INVALID"},
		} {
			_, _, err := r.a.Transport.Register(t.Context(), c.m)
			require.Equal(t, errs.NotHere, errs.CodeOf(err), "%v", err)
			require.ErrorContains(t, err, c.says)
		}
	})
}
