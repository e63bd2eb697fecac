package hazard

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/tests/forked"
	"github.com/tent-engine/tent/transports/transporttest"
)

// Tests with copiers in another process. Owner and copiers share the page and an arena: a board of words, and behind it
// the bytes of a few regions. The copiers write their mark into regions without pause, each time in a slot. Where the
// owner's wait has ended well, a canary goes into the region and must stay.

const (
	regionCount = 3
	regionBytes = 4 << 10
	copierCount = 3
	boardBytes  = 4096
	mark        = 0xAA // copiers write it
	canary      = 0x55 // the owner writes it when nobody else may any more
)

// arena is the shared memory of a test.
type arena struct{ addr uintptr }

func mapArena(fd int) (arena, error) {
	addr, _, errno := unix.Syscall6(unix.SYS_MMAP, 0, boardBytes+regionCount*regionBytes,
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED, uintptr(fd), 0)
	if errno != 0 {
		return arena{}, errno
	}
	return arena{addr}, nil
}

func (a arena) unmap() {
	_, _, _ = unix.Syscall(unix.SYS_MUNMAP, a.addr, boardBytes+regionCount*regionBytes, 0)
}

func (a arena) word(i int) *atomic.Uint64 {
	return (*atomic.Uint64)(mem.Pointer(a.addr + uintptr(8*i)))
}

// name is the region of the i-th bytes now; touches counts a copier's writes.
func (a arena) name(i int) *atomic.Uint64    { return a.word(i) }
func (a arena) touches(i int) *atomic.Uint64 { return a.word(16 + 8*i) }
func (a arena) bytes(i int) []byte {
	return mem.Bytes(a.addr+boardBytes+uintptr(i*regionBytes), regionBytes)
}

func fill(b []byte, value byte) {
	for i := range b {
		b[i] = value
	}
}

func TestMain(m *testing.M) {
	if forked.RunChild(new(Copiers)) {
		return
	}
	os.Exit(m.Run())
}

// Copiers is the process of a peer.
type Copiers struct {
	view  *View
	arena arena
}

// Files are descriptors of the owner's process.
type Files struct{ Arena, Page int }

// Open maps the page and the arena.
func (c *Copiers) Open(f Files, _ *int) error {
	var fds [2]int
	for i, fd := range []int{f.Arena, f.Page} {
		var err error
		if fds[i], err = unix.Open(fmt.Sprintf("/proc/%d/fd/%d", os.Getppid(), fd), unix.O_RDWR|unix.O_CLOEXEC,
			0); err != nil {
			return err
		}
		defer unix.Close(fds[i])
	}
	var err error
	if c.arena, err = mapArena(fds[0]); err == nil {
		c.view, err = NewView(fds[1])
	}
	return err
}

// Copy begins to touch regions, until the process is killed.
func (c *Copiers) Copy(int, *int) error {
	for i := range copierCount {
		go touchForever(c.view, c.arena, i)
	}
	return nil
}

// Exec replaces the process in the midst of a copy.
func (c *Copiers) Exec(program string, _ *int) error {
	word := c.arena.name(0).Load()
	r := Region{uint32(word >> 32), uint32(word)}
	if s := c.view.Enter(r, c.view.Epoch(), 0); s < 0 {
		return fmt.Errorf("no slot: %d", s)
	}
	return syscall.Exec(program, []string{program, "60"}, nil)
}

func touchForever(v *View, a arena, copier int) {
	for i := copier; ; i++ {
		n := i % regionCount
		word := a.name(n).Load()
		r := Region{uint32(word >> 32), uint32(word)}
		s := v.Enter(r, v.Epoch(), uint32(copier))
		if s >= 0 {
			fill(a.bytes(n), mark)
			v.Leave(s)
			a.touches(copier).Add(1)
		}
	}
}

// peer is a child with the owner's page for it.
type peer struct {
	*forked.Child
	t     *testing.T
	pidfd int
	page  *Page
	arena arena
	ended bool
}

// newPeer starts a process that maps the page and does nothing yet.
func newPeer(t *testing.T, o *owner) *peer {
	t.Helper()
	process, err := forked.Start()
	require.NoError(t, err)
	t.Cleanup(process.Kill)
	p := &peer{Child: process, t: t, arena: o.arena}
	p.pidfd, err = unix.PidfdOpen(p.Pid(), 0)
	require.NoError(t, err)
	p.page, err = o.table.NewPage(p.Pid(), p.pidfd)
	require.NoError(t, err)
	for i := range copierCount {
		o.arena.touches(i).Store(0)
	}
	require.NoError(t, p.Call("Copiers.Open", Files{int(o.file.Fd()), p.page.Fd()}, new(int)))
	return p
}

// newCopier starts a process that copies.
func newCopier(t *testing.T, o *owner) *peer {
	t.Helper()
	p := newPeer(t, o)
	require.NoError(t, p.Call("Copiers.Copy", 0, new(int)))
	return p
}

// busy waits until every copier has been in a region.
func (p *peer) busy() {
	for i := range copierCount {
		for p.arena.touches(i).Load() == 0 {
			runtime.Gosched()
			require.False(p.t, p.page.void(), "the child has ended")
		}
	}
}

func (p *peer) end(table *Table) {
	if p.ended {
		return
	}
	p.ended = true
	_ = p.Signal(unix.SIGKILL)
	require.NoError(p.t, table.Retire(within(p.t, 10*time.Second), p.page))
	p.Kill()
	require.NoError(p.t, unix.Close(p.pidfd))
}

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// spin lets a random, short time pass.
func spin(random *rand.Rand) {
	end := time.Now().Add(time.Duration(random.IntN(50_000)))
	for time.Now().Before(end) {
		runtime.Gosched()
	}
}

// owner is a table with regions in an arena.
type owner struct {
	t       *testing.T
	table   *Table
	arena   arena
	file    *os.File
	regions [regionCount]Region
	guarded [regionCount]bool // the canary is in, nobody may write any more
}

func newOwner(t *testing.T) *owner {
	fd, err := unix.MemfdCreate("arena", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	require.NoError(t, unix.Ftruncate(fd, boardBytes+regionCount*regionBytes))
	o := &owner{t: t, table: NewTable(100), file: os.NewFile(uintptr(fd), "arena")}
	o.arena, err = mapArena(fd)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, o.table.Close(within(t, time.Second)))
		o.arena.unmap()
		_ = o.file.Close()
	})
	for i := range o.regions {
		o.add(i)
	}
	return o
}

// add gives bytes to a new region.
func (o *owner) add(i int) {
	r, err := o.table.Add()
	require.NoError(o.t, err)
	o.regions[i], o.guarded[i] = r, false
	o.arena.name(i).Store(uint64(r.Index)<<32 | uint64(r.Generation))
}

// guard puts the canary into bytes that were taken back.
func (o *owner) guard(i int) {
	_, held := o.table.Held(o.regions[i])
	require.False(o.t, held)
	fill(o.arena.bytes(i), canary)
	o.guarded[i] = true
}

// look is the second look: canaries are as they were.
func (o *owner) look() {
	for i := range o.regions {
		if o.guarded[i] {
			require.Equal(o.t, -1, strings.IndexFunc(string(o.arena.bytes(i)),
				func(c rune) bool { return c != canary }), "region %d was written after it was taken back", i)
		}
	}
}

// renew gives the bytes of all regions that were taken back to new ones.
func (o *owner) renew() {
	o.look()
	for i := range o.regions {
		if o.guarded[i] {
			o.table.Remove(o.regions[i])
			o.add(i)
		}
	}
}

func TestMemoryTakenBackFromKilledCopiersStays(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	o := newOwner(t)
	next := newCopier(t, o)
	kills := 0
	for end := time.Now().Add(testTime()); time.Now().Before(end); kills++ {
		p := next
		p.busy()
		spin(random)
		require.NoError(t, p.Signal(unix.SIGKILL))
		spin(random) // from here on it may be dead, dying, or not know yet
		for _, i := range random.Perm(regionCount) {
			require.NoError(t, o.table.Revoke(within(t, 10*time.Second), o.regions[i], nil, ForGood),
				"a dead copier holds nothing")
			o.guard(i)
		}
		o.look()
		p.end(o.table)
		o.renew()
		next = newCopier(t, o)
	}
	t.Logf("%d killed", kills)
	require.NotZero(t, kills)
	next.end(o.table)
	require.Empty(t, o.table.pages, "the pages of dead peers are gone")
}

// Copiers of two processes are stopped at random moments, again and again. Either nobody was inside, and the bytes
// are the owner's at once, or the wait names the process that is inside, and they are when that has gone on.
func TestMemoryTakenBackFromStoppedCopiersStays(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	o := newOwner(t)
	peers := []*peer{newCopier(t, o), newCopier(t, o)}
	peers[1].busy() // the counters are shared: one that works is enough
	free, held := 0, 0
	end := time.Now().Add(testTime())
	late := time.Now().Add(forked.Patience)
	for time.Now().Before(end) || (free == 0 || held == 0) && time.Now().Before(late) {
		p := peers[random.IntN(len(peers))]
		spin(random)
		require.NoError(t, p.Signal(unix.SIGSTOP))
		for _, i := range random.Perm(regionCount)[:2] {
			err := o.table.Revoke(within(t, 300*time.Microsecond), o.regions[i], nil, ForGood)
			var who *HeldError
			switch {
			case err == nil:
				free++
				o.guard(i)
			case errors.As(err, &who):
				held++
				require.Equal(t, o.regions[i], who.Region)
				require.Contains(t, []int{peers[0].Pid(), peers[1].Pid()}, who.PID)
				require.Equal(t, errs.Timeout, errs.CodeOf(err))
			default:
				require.NoError(t, err)
			}
		}
		o.look()
		require.NoError(t, p.Signal(unix.SIGCONT))
		for i, r := range o.regions {
			if !o.guarded[i] && o.table.findLocked(r) != nil && !o.table.regions[r.Index].open {
				require.NoError(t, o.table.Revoke(within(t, 10*time.Second), r, nil, ForGood),
					"it goes on, so it leaves")
				o.guard(i)
			}
		}
		o.renew()
	}
	t.Logf("%d times free, %d times held", free, held)
	require.NotZero(t, free)
	require.NotZero(t, held)
	for _, p := range peers {
		p.end(o.table)
	}
}

// testTime is for how long a test of random moments goes on: on an idle machine some 130 kills, or 1,000 stops. In
// `make test-all` it is three seconds.
func testTime() time.Duration {
	switch {
	case testing.Short() || raceEnabled:
		return 300 * time.Millisecond
	case transporttest.Whole():
		return 3 * time.Second
	}
	return time.Second
}

// A process that calls exec in a copy lives on under its pid, without its mappings.
func TestProcessThatCalledExecHoldsNothing(t *testing.T) {
	o := newOwner(t)
	program, err := exec.LookPath("sleep")
	require.NoError(t, err)
	p := newPeer(t, o)
	p.Begin("Copiers.Exec", program, new(int))
	defer p.end(o.table)
	for {
		if h, held := o.table.Held(o.regions[0]); held {
			require.Equal(t, p.Pid(), h.PID)
			break
		}
		require.False(t, p.page.void(), "the child has ended")
		runtime.Gosched()
	}
	require.NoError(t, o.table.Revoke(within(t, 10*time.Second), o.regions[0], nil, ForGood))
	set := []unix.PollFd{{Fd: int32(p.pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(set, 0)
	require.NoError(t, err)
	require.Zero(t, n, "it is alive")
}

// The number of a dead peer may be anybody's, even ours: only the pidfd counts.
func TestNumberOfAProcessProvesNothing(t *testing.T) {
	o := newOwner(t)
	p := newCopier(t, o)
	p.busy()
	require.NoError(t, p.Signal(unix.SIGSTOP))
	p.page.slot(Slots - 1).Store(o.regions[0].name()) // as a copier would leave it
	require.Error(t, o.table.Revoke(within(t, 5*time.Millisecond), o.regions[0], nil, o.table.next()))
	p.page.pid = os.Getpid()
	require.NoError(t, p.Signal(unix.SIGKILL))
	require.NoError(t, o.table.Revoke(within(t, 10*time.Second), o.regions[0], nil, ForGood))
	p.end(o.table)
}

// A forked child inherits neither page nor view: a touch there would be a fault, not a lie to the owner.
func TestForkedChildHasNoSlots(t *testing.T) {
	_, page, view, _ := pair(t)
	smaps, err := os.ReadFile("/proc/self/smaps")
	require.NoError(t, err)
	for _, addr := range []uintptr{page.addr, view.addr} {
		_, rest, found := strings.Cut(string(smaps), fmt.Sprintf("\n%08x-", addr))
		require.True(t, found)
		_, rest, found = strings.Cut(rest, "VmFlags:")
		require.True(t, found)
		flags, _, _ := strings.Cut(rest, "\n")
		require.Contains(t, strings.Fields(flags), "dc", "do not copy on fork")
	}
}
