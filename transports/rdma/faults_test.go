package rdma

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/verbs"
	"github.com/tent-engine/tent/transports/rdma/verbs"
	"github.com/tent-engine/tent/transports/transporttest"
)

// tags of patterns.
const (
	before = 1
	moved  = 2
	after  = 3
)

// rig is two nodes over the fake, the first attached to the second, with a region of each.
type rig struct {
	f      *fake.Fake
	w      *transporttest.World
	a, b   *transporttest.Node
	c      *transporttest.Conn
	local  *transporttest.Operand
	remote *transporttest.Remote
	mute   atomic.Bool // calls of the second node reach nobody
	alone  atomic.Bool // nor do those of the first one
	downs  downs       // of the first node
	log    journal     // of the first node
}

// downs are the causes of rails that went down, as the core hears them.
type downs struct {
	mu   sync.Mutex
	list []*errs.Error
}

func (d *downs) all() []*errs.Error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.list)
}

// hearing is a sink that keeps the causes.
type hearing struct {
	transport.Sink
	downs *downs
}

func (h hearing) RailDown(rail transport.Rail, cause *errs.Error) {
	h.Sink.RailDown(rail, cause)
	h.downs.mu.Lock()
	defer h.downs.mu.Unlock()
	h.downs.list = append(h.downs.list, cause)
}

// silent is a host with calls that reach nobody while mute is set.
type silent struct {
	transport.Host
	mute *atomic.Bool
}

func (s silent) Call(ctx context.Context, peer transport.Peer, message []byte) ([]byte, error) {
	if s.mute.Load() {
		return nil, errs.New(errs.Timeout, "call", "nobody answers")
	}
	return s.Host.Call(ctx, peer, message)
}

// logged is a host with a journal.
type logged struct {
	transport.Host
	journal *journal
}

func (l logged) Log() *slog.Logger { return slog.New(slog.NewTextHandler(l.journal, nil)) }

type journal struct {
	mu   sync.Mutex
	text strings.Builder
}

func (j *journal) Write(line []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(line)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

const rigSize = 1 << 20

func newRig(t *testing.T, change func(*Settings), knobs ...string) *rig {
	t.Helper()
	return newRigOver(t, 2, change, knobs...)
}

// newRigOver is newRig with a number of devices, and knobs of the fake that are turned first.
func newRigOver(t *testing.T, devices int, change func(*Settings), knobs ...string) *rig {
	t.Helper()
	r := &rig{f: fake.Open(t)}
	r.f.Control(t, "devices %d", devices)
	for _, knob := range knobs {
		r.f.Control(t, "%s", knob)
	}
	r.start(t, 20*time.Second, func(transporttest.Config) Settings {
		s := Settings{Library: r.f.Path, Clock: 100 * time.Millisecond, Timeout: 8, Retries: 2}
		if change != nil {
			change(&s)
		}
		return s
	})
	return r
}

// newRigOnDevices is a rig of one rail over real queue pairs, as TestConformanceOnDevices has them.
func newRigOnDevices(t *testing.T) *rig {
	t.Helper()
	if err := (Factory{}).Check(); err != nil {
		t.Skip(err)
	}
	if strings.HasPrefix(devicesOf(t, transporttest.Config{Rails: 1})[0], "fake") {
		t.Skip("another test of this process has loaded the fake library")
	}
	r := &rig{}
	r.start(t, 2*time.Minute, func(c transporttest.Config) Settings {
		return Settings{Devices: devicesOf(t, c)[:1], Clock: 100 * time.Millisecond}
	})
	return r
}

// start opens both nodes, and moves the first bytes over each rail.
func (r *rig) start(t *testing.T, patience time.Duration, settings func(transporttest.Config) Settings) {
	t.Helper()
	h := transporttest.Harness{Patience: patience, Pinned: pinned,
		Open: func(t *testing.T, c transporttest.Config) transport.Transport {
			s := settings(c)
			if c.Name == "b" {
				c.Host = silent{c.Host, &r.mute}
			} else {
				c.Sink, c.Host = hearing{c.Sink, &r.downs}, logged{silent{c.Host, &r.alone}, &r.log}
			}
			tr, err := Factory{}.Open(t.Context(), s, c.Host, c.Sink)
			require.NoError(t, err)
			return tr
		}}
	r.w = transporttest.NewWorld(t, h)
	r.a, r.b = r.w.Open("a"), r.w.Open("b")
	r.c = r.a.Connect(t, r.b)
	await(t, "all rails", func() bool { return r.rails() == len(r.a.Transport.(*Transport).nics()) })
	r.local = r.a.Register(t, rigSize, mem.LocalReadWrite)
	r.remote = r.c.Import(t, r.b.Register(t, rigSize, mem.GlobalReadWrite))
	r.local.Fill(moved, 0, rigSize)
	r.remote.Fill(before, 0, rigSize)
	for _, rail := range r.c.Rails() { // the first use connects it
		r.c.Must(t, r.c.Slice(transport.Read, rail, r.local, 0, r.remote, 0, 1))
	}
	r.local.Fill(moved, 0, 1)
}

// rails counts those of the matching that are up inside the first node.
func (r *rig) rails() int { return r.count(false) }

func (r *rig) count(alternate bool) (n int) {
	l := r.a.Transport.(*Transport).links.Lookup(r.c.Link)
	for _, rail := range l.list() {
		rail.mu.Lock()
		if rail.state == up && rail.alternate == alternate {
			n++
		}
		rail.unlock()
	}
	return n
}

// await waits for a condition that no sink hears of.
func await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	late := time.NewTimer(20 * time.Second)
	defer late.Stop()
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for !cond() {
		select {
		case <-look.C:
		case <-late.C:
			require.FailNow(t, "waited in vain for "+what)
		}
	}
}

func (r *rig) slice(t *testing.T, rail transport.Rail, at, length uint64) *transport.Slice {
	return r.c.Slice(transport.Write, rail, r.local, at, r.remote, at, length)
}

// works requires that a slice passes, once a rail that is up takes it.
func (r *rig) works(t *testing.T) {
	t.Helper()
	await(t, "a slice that passes", func() bool {
		s := r.slice(t, r.c.Rail(t), 0, 4096)
		if r.c.Submit(s) == 0 {
			return false
		}
		return r.c.Wait(t, s)[0].Err == nil
	})
	require.NoError(t, r.remote.Check(moved, 0, 0, 4096))
}

// TestWithoutAFlushAcknowledgedBytesAreNotThere shows that the oracle sees it, and that the flush helps.
func TestWithoutAFlushAcknowledgedBytesAreNotThere(t *testing.T) {
	for _, how := range []string{"acknowledged", "flush", "auto"} {
		t.Run(how, func(t *testing.T) {
			r := newRig(t, func(s *Settings) { s.Visibility = how })
			r.f.Control(t, "late %d", 60_000_000)
			r.c.Must(t, r.slice(t, r.c.Rail(t), 0, rigSize))
			err := r.remote.Check(moved, 0, 0, rigSize)
			flushes := r.a.Transport.(*Transport).Flushes()
			if how == "acknowledged" {
				require.Error(t, err, "a WRITE that is late is seen")
				require.Zero(t, flushes)
				return
			}
			require.NoError(t, err)
			require.NotZero(t, flushes)
		})
	}
}

// TestEveryStatusIsBlamedAsTheTableSays lets a work request end with each status that there is.
func TestEveryStatusIsBlamedAsTheTableSays(t *testing.T) {
	for status := verbs.Status(1); status < verbs.StatusCount; status++ {
		t.Run(fmt.Sprint(uint32(status)), func(t *testing.T) {
			r := newRig(t, nil)
			rail := r.c.Rail(t)
			s := r.slice(t, rail, 0, 100_000)
			r.f.Control(t, "status %d", uint32(status))
			r.f.Control(t, "statuses 1")
			err := r.c.One(t, s)
			want := blameOf(status)
			require.NotNil(t, err)
			require.Equal(t, []any{want.code, want.scope, want.side}, []any{err.Code, err.Scope, err.Side}, "%v", err)
			require.Contains(t, err.Error(), status.String())
			if want.scope == errs.ScopeSlice {
				require.Contains(t, r.c.Rails(), rail, "the rail lives on")
			} else {
				await(t, "the rail to go down", func() bool { return !slices.Contains(r.c.Rails(), rail) })
			}
			r.works(t)
		})
	}
	require.Equal(t, blame{errs.Lost, errs.ScopeRail, errs.SideUnknown}, blameOf(verbs.StatusCount))
}

// TestEveryEventHasItsReach is the table of events, read beside the list of the architecture.
func TestEveryEventHasItsReach(t *testing.T) {
	for kind, want := range map[uint32]reach{0: reachDevice, 1: reachPair, 2: reachPair, 3: reachPair, 8: reachDevice,
		9: reachRisen, 10: reachPort, 11: reachPort, 18: reachAddress, 4: reachNone, 15: reachNone} {
		require.Equal(t, want, eventActs[kind].reach, verbs.EventName(kind))
	}
}

// TestAKeyThatComesBackReachesNoOtherMemory closes a region that a peer writes to. The next one gets its key at once.
// The peer answers, or it is silent and its queue pairs are reset.
func TestAKeyThatComesBackReachesNoOtherMemory(t *testing.T) {
	for _, mute := range []bool{false, true} {
		t.Run(fmt.Sprintf("silent=%t", mute), func(t *testing.T) {
			r := newRig(t, func(s *Settings) { s.Devices = []string{"fake0"} }) // else the devices take turns
			r.f.Control(t, "reuse 1")
			for range 5 {
				victim := r.c.Import(t, r.b.Register(t, rigSize, mem.GlobalReadWrite))
				key := rkey(r.b, victim.Operand.Key)
				var list []*transport.Slice
				for at := uint64(0); at < rigSize; at += 64 << 10 {
					list = append(list, r.c.Slice(transport.Write, r.c.Rail(t), r.local, at, victim, at, 64<<10))
				}
				list = list[:r.c.Submit(list...)]
				r.mute.Store(mute)
				victim.Deregister(t)
				r.mute.Store(false)
				next := r.b.Register(t, rigSize, mem.GlobalReadWrite)
				next.Fill(after, 0, rigSize)
				require.Equal(t, key, rkey(r.b, next.Key), "the fake gives the key again")
				late := r.c.Slice(transport.Write, r.c.Rail(t), r.local, 0, victim, 0, 4096)
				if r.c.Submit(late) == 1 {
					require.NotNil(t, r.c.Wait(t, late)[0].Err, "a slice of a closed region has passed")
				}
				r.c.Wait(t, list...)
				r.works(t)
				require.NoError(t, next.Check(after, 0, 0, rigSize), "a slice reached memory of another region")
				next.Deregister(t)
			}
		})
	}
}

func rkey(n *transporttest.Node, key transport.LocalKey) uint32 {
	return n.Transport.(*Transport).regions.Lookup(key).keys.Load().remote[0].parts[0].RKey
}

// TestAFenceHoldsForAPeerThatDoesNotAnswer fences while the peer cannot be called. Its slices of before touch nothing.
func TestAFenceHoldsForAPeerThatDoesNotAnswer(t *testing.T) {
	r := newRig(t, nil)
	var old []*transport.Slice
	for at := uint64(0); at < rigSize; at += 16 << 10 {
		old = append(old, r.slice(t, r.c.Rail(t), at, 16<<10))
	}
	half := len(old) / 2
	under := r.c.Submit(old[:half]...)
	r.mute.Store(true)
	epoch := r.remote.Fence(t, nil)
	r.mute.Store(false)
	r.remote.Fill(after, 0, rigSize)
	late := r.c.Submit(old[half:]...)
	r.c.Wait(t, old[:under]...)
	for _, end := range r.c.Wait(t, old[half:half+late]...) {
		require.NotNil(t, end.Err, "a slice of before the fence")
	}
	await(t, "the news of the fence", func() bool { return r.c.Epoch() >= epoch })
	require.NoError(t, r.remote.Check(after, 0, 0, rigSize), "written after the fence by a slice of before")
	r.c.Renew(t, r.remote)
	r.works(t)
}

// TestALostCompletionIsFoundWhenItIsAskedFor loses one, and gives another twice: each slice ends once.
func TestALostCompletionIsFoundWhenItIsAskedFor(t *testing.T) {
	r := newRig(t, nil)
	rail := r.c.Rail(t)
	for range 10 {
		r.f.Control(t, "twice 3")
		r.c.Must(t, r.slice(t, rail, 0, 300_000), r.slice(t, rail, 300_000, 300_000))
	}
	r.f.Control(t, "twice 0")
	r.f.Control(t, "lose 1")
	s := r.slice(t, rail, 0, 4096)
	require.Equal(t, 1, r.c.Submit(s))
	await(t, "the completion to be lost", func() bool { return r.f.Control(t, "writes") > 0 })
	r.a.Transport.Withdraw([]*transport.Slice{s})
	end := r.c.Wait(t, s)[0]
	require.NotNil(t, end.Err)
	require.Equal(t, errs.Withdrawn, end.Err.Code)
	require.Contains(t, r.c.Rails(), rail, "the rail lives on")
	r.works(t)
}

// TestADeviceThatDiesTakesItsRailsAlone kills a device under load.
func TestADeviceThatDiesTakesItsRailsAlone(t *testing.T) {
	r := newRig(t, nil)
	rails := r.c.Rails()
	var list []*transport.Slice
	for at := uint64(0); at < rigSize; at += 32 << 10 {
		list = append(list, r.slice(t, rails[at/(32<<10)%2], at, 32<<10))
	}
	var sent []*transport.Slice
	for _, s := range list {
		if r.c.Submit(s) == 1 {
			sent = append(sent, s)
		}
	}
	name := r.a.Transport.(*Transport).links.Lookup(r.c.Link).rail(rails[0].Index).device.name
	r.f.Control(t, "dead %s 1", name)
	for _, end := range r.c.Wait(t, sent...) {
		if end.Err == nil {
			require.NoError(t, r.remote.Check(moved, end.Slice.Remote, end.Slice.Remote, end.Slice.Length))
		} else {
			require.Equal(t, errs.Lost, end.Err.Code, "%v", end.Err)
		}
	}
	await(t, "one rail to be left", func() bool { return r.rails() == 1 })
	require.NotContains(t, r.c.Rails(), rails[0])
	r.works(t)
	_, _, err := r.a.Transport.Register(t.Context(), mem.Region{Addr: r.local.Addr, Size: 4096, Kind: mem.Host, Fd: -1})
	require.NoError(t, err, "the other device takes memory")
}

// TestARailComesBackWithItsPortAndItsAddress takes either away under load.
func TestARailComesBackWithItsPortAndItsAddress(t *testing.T) {
	r := newRig(t, nil)
	for _, each := range [][2]string{{"port fake0 0", "port fake0 1"}, {"address fake0 7", "address fake0 8"}} {
		var list []*transport.Slice
		for at := uint64(0); at < rigSize; at += 32 << 10 {
			list = append(list, r.slice(t, r.c.Rail(t), at, 32<<10))
		}
		list = list[:r.c.Submit(list...)]
		r.f.Control(t, "%s", each[0])
		r.c.Wait(t, list...)
		r.works(t) // by the other one, if need be
		r.f.Control(t, "%s", each[1])
		await(t, "both rails", func() bool { return r.rails() == 2 })
		r.works(t)
	}
}

// TestCallsThatFindNoMemoryAreTriedAgain refuses a few calls of each kind while rails are made.
func TestCallsThatFindNoMemoryAreTriedAgain(t *testing.T) {
	r := newRig(t, nil)
	for _, what := range []string{"pair", "modify"} {
		r.f.Control(t, "%s 5", what)
		c := r.b.Connect(t, r.a)
		local := r.b.Register(t, 4096, mem.LocalReadWrite)
		remote := c.Import(t, r.a.Register(t, 4096, mem.GlobalReadWrite))
		await(t, "a slice that passes", func() bool {
			s := c.Slice(transport.Read, c.Rail(t), local, 0, remote, 0, 4096)
			return c.Submit(s) == 1 && c.Wait(t, s)[0].Err == nil
		})
		r.b.Transport.Detach(c.Link)
		r.f.Control(t, "%s 0", what)
	}
	r.f.Control(t, "register 100")
	_, _, err := r.a.Transport.Register(t.Context(), mem.Region{Addr: r.local.Addr, Size: 4096, Kind: mem.Host, Fd: -1})
	require.Equal(t, errs.NotHere, errs.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, "memlock")
	r.f.Control(t, "register 0")
	r.works(t)
}

// TestRandomFaultsLoseAndInventNothing lets 100 faults strike at random under load, with the byte oracle.
func TestRandomFaultsLoseAndInventNothing(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	r := newRig(t, nil)
	t.Logf("seed %d", seed)
	faults := []func(){
		func() { r.f.Control(t, "status %d", 1+random.IntN(21)); r.f.Control(t, "statuses 1") },
		func() { r.f.Control(t, "twice 2") },
		func() { r.f.Control(t, "port fake%d 0", random.IntN(2)) },
		func() { r.f.Control(t, "address fake%d %d", random.IntN(2), 1+random.IntN(200)) },
		func() { r.f.Control(t, "silence fake%d 1", random.IntN(2)) },
		func() { r.f.Control(t, "modify %d", 1+random.IntN(2)) },
		func() { r.f.Control(t, "late %d", random.IntN(3)*1000) },
	}
	heal := func() {
		for i := range 2 {
			r.f.Control(t, "port fake%d 1", i)
			r.f.Control(t, "silence fake%d 0", i)
		}
	}
	const size, most = 16 << 10, 100
	struck := 0
	for turn := 0; struck < most; turn++ {
		var list []*transport.Slice
		for at := uint64(0); at < rigSize; at += size {
			rails := r.c.Rails()
			if len(rails) == 0 {
				break
			}
			s := r.slice(t, rails[random.IntN(len(rails))], at, size)
			if r.c.Submit(s) == 1 {
				list = append(list, s)
			}
			if at == 8*size {
				faults[random.IntN(len(faults))]()
				struck++
			}
		}
		if turn%3 == 0 {
			r.a.Transport.Withdraw(list)
		}
		if turn%5 == 4 {
			heal()
		}
		ends := r.c.Wait(t, list...)
		for _, end := range ends {
			if at := end.Slice.Remote; end.Err == nil {
				require.NoError(t, r.remote.Check(moved, at, at, size), "after fault %d", struck)
			}
			r.remote.Fill(after, end.Slice.Remote, size)
		}
		for _, end := range ends {
			require.NoError(t, r.remote.Check(after, end.Slice.Remote, end.Slice.Remote, size),
				"written after its completion, fault %d: %v", struck, end.Err)
		}
		if len(r.c.Rails()) == 0 {
			heal()
			await(t, "a rail", func() bool { return len(r.c.Rails()) > 0 })
		}
	}
	r.f.Control(t, "modify 0")
	heal()
	await(t, "both rails", func() bool { return r.rails() == 2 })
	r.works(t)
}
