package samehost

import (
	"context"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/forked"
	"github.com/tent-engine/tent/tests/netbed"
	"github.com/tent-engine/tent/transports/shm"
	"github.com/tent-engine/tent/transports/transporttest"
)

// testTime is for how long a test of random moments goes on. In `make test-all` it is three seconds.
func testTime() time.Duration {
	switch {
	case testing.Short() || raceDetector:
		return 300 * time.Millisecond
	case transporttest.Whole():
		return 3 * time.Second
	}
	return time.Second
}

func seeded(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// spin lets a random, short time pass.
func spin(random *rand.Rand) {
	end := time.Now().Add(time.Duration(random.IntN(300_000)))
	for time.Now().Before(end) {
		runtime.Gosched()
	}
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// here opens the engine of this process.
func here(t *testing.T) *engine.Engine {
	if err := (shm.Factory{}).Check(); err != nil {
		t.Skip(err)
	}
	e, err := openEngine()
	require.NoError(t, err)
	t.Cleanup(func() {
		require.Empty(t, e.Close(netbed.Patience, true), "the engine could not take everything back")
		require.NoError(t, e.Forget())
	})
	return e
}

// child is another process with an engine.
type child struct {
	*forked.Child
	t       *testing.T
	address string
}

func start(t *testing.T) *child {
	c, err := forked.Start()
	require.NoError(t, err)
	p := &child{Child: c, t: t}
	t.Cleanup(p.Kill)
	p.do("Open", forked.Nothing{}, &p.address)
	return p
}

func (c *child) do(method string, arg, result any) {
	require.NoError(c.t, c.Call("Actor."+method, arg, result))
}

func (c *child) signal(s unix.Signal) { require.NoError(c.t, c.Signal(s)) }

// copies starts copying from the child into an engine here, and returns when every copier has been at it.
func (c *child) copies(to *engine.Engine) {
	c.do("Copy", to.Address(), &forked.Nothing{})
	for counts := [copiers]uint64{}; ; {
		c.do("Moved", forked.Nothing{}, &counts)
		if min(counts[0], counts[1], counts[2]) > uint64(len(names)) {
			return
		}
		runtime.Gosched()
	}
}

// guarded are regions that were taken back: their canaries stay.
type guarded []*owned

func (g *guarded) add(r *owned) {
	fill(r.bytes, canary)
	*g = append(*g, r)
}

func (g guarded) look(t *testing.T) {
	for _, r := range g {
		for i, b := range r.bytes {
			if b != canary {
				t.Fatalf("byte %d of region %q is %#x: it was written after the region was closed", i, r.name, b)
			}
		}
	}
}

// release looks a last time and gives the memory back.
func (g *guarded) release(t *testing.T, e *engine.Engine) {
	g.look(t)
	for _, r := range *g {
		if r.name == "pool" {
			require.NoError(t, e.FreeMemory(r.id))
		} else {
			require.NoError(t, unix.Munmap(r.bytes))
		}
	}
	*g = nil
}

func TestMemoryTakenBackFromKilledPeersStays(t *testing.T) {
	random, e := seeded(t), here(t)
	kills := 0
	next := start(t)
	for end := time.Now().Add(testTime()); time.Now().Before(end); kills++ {
		c := next
		var regions []*owned
		for _, name := range names {
			r, err := own(e, name)
			require.NoError(t, err)
			regions = append(regions, r)
		}
		c.copies(e)
		spin(random)
		c.signal(unix.SIGKILL)
		spin(random) // from here on it may be dead, dying, or not know yet
		var taken guarded
		for _, i := range random.Perm(len(regions)) {
			require.NoError(t, e.CloseRegion(within(t, netbed.Patience), regions[i].id), "a dead peer holds nothing")
			taken.add(regions[i])
		}
		taken.look(t)
		next = start(t)
		c.Kill()
		taken.release(t, e)
	}
	t.Logf("%d killed", kills)
	require.NotZero(t, kills)
}

// A peer is stopped at random moments, thousands of times on an idle machine. Either it was in no copy with the region:
// then the bytes are the owner's at once. Or close names the peer that holds them, and they are not given back.
func TestMemoryTakenBackFromStoppedPeersStays(t *testing.T) {
	random, e := seeded(t), here(t)
	regions := make([]*owned, len(names))
	for i, name := range names {
		var err error
		regions[i], err = own(e, name)
		require.NoError(t, err)
	}
	c := start(t)
	c.copies(e)
	free, held := 0, 0
	for end := time.Now().Add(testTime()); time.Now().Before(end); {
		spin(random)
		require.NoError(t, c.Stop())
		var taken guarded
		i := random.IntN(len(regions))
		r := regions[i]
		if err := e.CloseRegion(within(t, 2*time.Millisecond), r.id); err == nil {
			free++
			taken.add(r)
		} else { // the memory stays as it is until a later close says that nobody is inside
			held++
			require.Equal(t, errs.Timeout, errs.CodeOf(err))
			require.Contains(t, err.Error(), "process "+strconv.Itoa(c.Pid()))
			require.Error(t, e.CloseRegion(within(t, time.Millisecond), r.id), "asked again, the answer is the same")
		}
		spin(random)
		taken.look(t)
		c.signal(unix.SIGCONT)
		err := e.CloseRegion(within(t, netbed.Patience), r.id)
		require.NoError(t, err, "nothing holds the memory any more")
		if len(taken) == 0 {
			taken.add(r)
		}
		regions[i], err = own(e, r.name) // it goes on with this one
		require.NoError(t, err)
		spin(random)
		taken.release(t, e)
	}
	t.Logf("%d times free, %d times held", free, held)
	require.NotZero(t, free)
	c.Kill()
}

// presses moves bytes between this engine and a child's regions until a transfer fails.
type presses struct {
	t       *testing.T
	running sync.WaitGroup
	moved   atomic.Uint64
	mu      sync.Mutex
	ends    []dispatch.Summary
	locals  [][]byte // destinations of READs, quiet when all have ended
}

func press(t *testing.T, e *engine.Engine, c *child) *presses {
	p := &presses{t: t}
	for i, name := range names {
		at, err := e.OpenSegment(within(t, netbed.Patience), c.address+"/"+name)
		require.NoError(t, err)
		t.Cleanup(func() { _ = e.CloseSegment(at) })
		local, err := mapped(regionBytes)
		require.NoError(t, err)
		_, err = e.Register(engine.Memory{Addr: mem.AddressOf(local), Size: regionBytes, Location: mem.Wildcard})
		require.NoError(t, err)
		p.locals = append(p.locals, local)
		p.running.Go(func() { p.moves(e, uint8(i), local, at) })
	}
	return p
}

func (p *presses) moves(e *engine.Engine, class uint8, local []byte, at engine.SegmentID) {
	for i := 0; ; i++ {
		size := 1 + rand.IntN(1<<(8+rand.IntN(14)))
		s, err := move(e, transport.Op(i%2), class, local[:size], at, uint64(rand.IntN(regionBytes-size+1)))
		switch {
		case err != nil: // refused: the peer is known to be gone
			s.Err = errs.From("move", err)
		case s.State == dispatch.Completed:
			p.moved.Add(1)
			continue
		}
		p.mu.Lock()
		p.ends = append(p.ends, s)
		p.mu.Unlock()
		return
	}
}

// awaitMoves returns when more transfers have completed. None may end in another way.
func (p *presses) awaitMoves(t *testing.T, more uint64) {
	for end := p.moved.Load() + more; p.moved.Load() < end; runtime.Gosched() {
		require.Empty(t, p.ended(), "the owner is stopped, which concerns nobody")
	}
}

// The owner's side need not wake up: while it is stopped, its memory is read and written as ever. When it is killed,
// every transfer ends, the caller lives, and the destinations of READs are quiet.
func TestOwnerMayBeStoppedOrKilledAtAnyMoment(t *testing.T) {
	random, e := seeded(t), here(t)
	kills, stops := 0, 0
	next := start(t)
	for end := time.Now().Add(testTime()); time.Now().Before(end); kills++ {
		c := next
		c.do("Own", uint64(kills), &forked.Nothing{})
		p := press(t, e, c)
		p.awaitMoves(t, 1) // an owner that is stopped answers no greeting, so transfers wait for their first link
		for range 5 {
			spin(random)
			c.signal(unix.SIGSTOP)
			p.awaitMoves(t, 10)
			if random.IntN(4) > 0 {
				c.signal(unix.SIGCONT)
			}
			stops++
		}
		c.signal(unix.SIGKILL)
		next = start(t)
		p.running.Wait()
		for _, s := range p.ended() {
			require.Contains(t, []errs.Code{errs.PeerUnreachable, errs.NoRoute, errs.AddressNotRegistered}, s.Err.Code,
				"%v", s.Err)
		}
		for _, local := range p.locals {
			fill(local, canary)
		}
		c.Kill()
		for _, local := range p.locals {
			require.Equal(t, -1, strings.IndexFunc(string(local), func(r rune) bool { return r != canary }),
				"written after the end")
		}
	}
	t.Logf("%d killed, %d stopped", kills, stops)
	require.NotZero(t, kills)
}

func (p *presses) ended() []dispatch.Summary {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ends
}

// The bytes are right, too, while the owner sleeps.
func TestStoppedOwnersMemoryIsReadAndWritten(t *testing.T) {
	e, c := here(t), start(t)
	c.do("Own", uint64(3), &forked.Nothing{})
	want, local := make([]byte, regionBytes), must(mapped(regionBytes))
	_, err := e.Register(engine.Memory{Addr: mem.AddressOf(local), Size: regionBytes, Location: mem.Wildcard})
	require.NoError(t, err)
	for _, name := range names {
		at, err := e.OpenSegment(within(t, netbed.Patience), c.address+"/"+name)
		require.NoError(t, err)
		s, err := move(e, transport.Read, 0, local[:1], at, 0) // the rail is up
		require.NoError(t, err)
		require.Equal(t, dispatch.Completed, s.State, "%v", s.Err)
		c.signal(unix.SIGSTOP)
		for seed := range uint64(3) {
			transporttest.Pattern(want, 3, 0)
			if seed > 0 {
				transporttest.Pattern(want, 100+seed, 0)
				copy(local, want)
				requireMoved(t, e, transport.Write, local, at)
				fill(local, 0)
			}
			requireMoved(t, e, transport.Read, local, at)
			require.Equal(t, want, local, "%s", name)
		}
		c.signal(unix.SIGCONT)
	}
	c.Kill()
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

func requireMoved(t *testing.T, e *engine.Engine, op transport.Op, local []byte, at engine.SegmentID) {
	t.Helper()
	s, err := move(e, op, 0, local, at, 0)
	require.NoError(t, err)
	require.Equal(t, dispatch.Completed, s.State, "%v", s.Err)
}

// Memory that a user unmapped without unregistering it, on either side, fails the request that needs it, and nothing
// else.
func TestUnmappedMemoryFailsItsRequestOnly(t *testing.T) {
	e, c := here(t), start(t)
	c.do("Own", uint64(3), &forked.Nothing{})
	good, lost := must(mapped(regionBytes)), must(mapped(regionBytes))
	for _, b := range [][]byte{good, lost} {
		_, err := e.Register(engine.Memory{Addr: mem.AddressOf(b), Size: regionBytes, Location: mem.Wildcard})
		require.NoError(t, err)
	}
	at := map[string]engine.SegmentID{}
	for _, name := range names {
		var err error
		at[name], err = e.OpenSegment(within(t, netbed.Patience), c.address+"/"+name)
		require.NoError(t, err)
		requireMoved(t, e, transport.Write, good, at[name])
	}
	require.NoError(t, lose(lost))
	for _, name := range names {
		for _, op := range []transport.Op{transport.Read, transport.Write} {
			for _, size := range []int{1, 4096, regionBytes} { // copied by the caller, and by copiers
				s, err := move(e, op, 0, lost[:size], at[name], 0)
				require.NoError(t, err)
				requireFault(t, s, errs.SideLocal)
				requireMoved(t, e, op, good, at[name])
			}
		}
	}
	c.do("Lose", forked.Nothing{}, &forked.Nothing{})
	for _, op := range []transport.Op{transport.Read, transport.Write} {
		for _, size := range []int{1, 4096, regionBytes} {
			s, err := move(e, op, 0, good[:size], at["user"], 0)
			require.NoError(t, err)
			requireFault(t, s, errs.SideRemote)
			requireMoved(t, e, op, good, at["pool"])
		}
	}
	var counts [copiers]uint64
	c.do("Moved", forked.Nothing{}, &counts) // it lives
}

func requireFault(t *testing.T, s dispatch.Summary, side errs.Side) {
	t.Helper()
	require.Equal(t, dispatch.Failed, s.State)
	require.Equal(t, errs.AddressNotRegistered, s.Err.Code, "%v", s.Err)
	require.Equal(t, side, s.Err.Side, "%v", s.Err)
}
