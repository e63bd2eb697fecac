// Package shareproc kills, stops and forks processes that share slots and load, at random moments, and checks the
// remains.
package shareproc

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/qos"
	"github.com/tent-engine/tent/gocore/share"
	"github.com/tent-engine/tent/tests/forked"
	"github.com/tent-engine/tent/transports/transporttest"
)

const (
	killsEnv = "TENT_SHARE_KILLS" // how many; the usual run makes as many as fit into its time
	interval = 2 * time.Millisecond
	devices  = 4
	patience = 20 * time.Second
	// the bytes of the dead: the bound of package share, and a round of the scheduler
	vanishes = 250 * time.Millisecond
)

func TestMain(m *testing.M) {
	if forked.RunChild(new(Hammer)) {
		return
	}
	os.Exit(m.Run())
}

// Hammer is the process that is killed.
type Hammer struct{}

// Begin attaches to a memory and hammers on it from then on: it detaches, and begins anew, for ever.
func (h *Hammer) Begin(name string, _ *forked.Nothing) error {
	m, err := open(name)
	if err != nil {
		return err
	}
	go func() {
		for round := 0; err == nil; round++ {
			life(m, round)
			m.Close()
			m, err = open(name)
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}()
	return nil
}

// life takes part for a few milliseconds.
func life(m *share.Memory, round int) {
	var all [devices]*share.Device
	for i := range all {
		all[i] = m.Device("tcp", "eth"+strconv.Itoa((round+i)%(3*devices)))
	}
	until := clock.Now().Add(time.Duration(1+round%5) * time.Millisecond)
	for i := uint64(0); ; i++ {
		now := clock.Now()
		if now > until {
			return
		}
		for _, d := range all {
			claim(d, int(i%qos.Classes), now)
			d.Carries(i%3*4096, now)
			d.Others(now)
			d.Claimed(qos.High, now)
		}
	}
}

// claim claims slots for one interval.
func claim(d *share.Device, class int, now clock.Time) { d.Claim(class, now.Add(interval), now) }

func open(name string) (*share.Memory, error) {
	return share.Open(context.Background(), share.Options{Name: name, Branch: "transports/tcp", Interval: interval,
		Log: slog.New(slog.DiscardHandler)})
}

// scene is a name of its own, and the test's own part in the memory shared under it.
type scene struct {
	t      *testing.T
	random *rand.Rand
	name   string
	memory *share.Memory
	device *share.Device
}

func newScene(t *testing.T) *scene {
	if err := share.Check(); err != nil {
		t.Skip(err)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	s := &scene{t: t, random: rand.New(rand.NewPCG(seed, 0)), name: fmt.Sprintf("/tent-kill-%d-%x", os.Getpid(), seed)}
	t.Cleanup(func() { _ = os.Remove(s.path()) })
	s.memory = s.open()
	s.device = s.memory.Device("tcp", "eth0")
	return s
}

func (s *scene) path() string { return "/dev/shm" + s.name }

func (s *scene) open() *share.Memory {
	s.t.Helper()
	m, err := open(s.name)
	require.NoError(s.t, err)
	s.t.Cleanup(m.Close)
	return m
}

// victim is a hammering process that has begun.
func (s *scene) victim() *forked.Child {
	c, err := forked.Start(func(c *exec.Cmd) { c.Env = append(c.Env, "GOMAXPROCS=2") })
	require.NoError(s.t, err)
	s.t.Cleanup(c.Kill)
	require.NoError(s.t, c.Call("Hammer.Begin", s.name, &forked.Nothing{}))
	return c
}

// header checks that the file begins as ever.
func (s *scene) header() {
	b := make([]byte, 64)
	f, err := os.Open(s.path())
	require.NoError(s.t, err)
	defer f.Close()
	_, err = f.ReadAt(b, 0)
	require.NoError(s.t, err)
	require.EqualValues(s.t, 0x2025082772805203, binary.NativeEndian.Uint64(b))
	require.EqualValues(s.t, 1001, binary.NativeEndian.Uint32(b[8:]))
	require.Less(s.t, binary.NativeEndian.Uint32(b[12:]), uint32(3))
	require.Equal(s.t, make([]byte, 48), b[16:])
}

// quiet waits until nobody's bytes are counted any more, and returns how long that took.
func (s *scene) quiet() time.Duration {
	begin := clock.Now()
	for {
		now := clock.Now()
		if s.device.Others(now) == 0 {
			return now.Sub(begin)
		}
		require.Less(s.t, now.Sub(begin), patience, "bytes of the dead are counted for ever")
		runtime.Gosched()
	}
}

// spin lets a random, short time pass: often much shorter than a life of the hammer, sometimes some of them.
func (s *scene) spin() {
	until := time.Now().Add(time.Duration(s.random.Int64N(1 << (10 + s.random.IntN(14)))))
	for time.Now().Before(until) {
		runtime.Gosched()
	}
}

// wanted returns the number of kills, from the environment, else the time for them.
func wanted() (kills int, until time.Time) {
	if n, err := strconv.Atoi(os.Getenv(killsEnv)); err == nil {
		return n, time.Now().Add(24 * time.Hour)
	}
	limit := 2 * time.Second
	switch {
	case testing.Short():
		limit = time.Second
	case transporttest.Whole():
		limit = 6 * time.Second
	}
	return 1 << 30, time.Now().Add(limit)
}

// Two processes hammer all the time; one of them is killed and replaced, again and again. The living go on, the tables
// of rows and of devices never fill, and the bytes in flight of the dead are gone in time.
func TestKilledProcessesLeaveNothingBehind(t *testing.T) {
	s := newScene(t)
	kills, until := wanted()
	var alive [2]*forked.Child
	for i := range alive {
		alive[i] = s.victim()
	}
	n := 0
	for ; n < kills && time.Now().Before(until); n++ {
		i := s.random.IntN(len(alive))
		s.spin()
		alive[i].Kill()
		s.header()
		alive[i] = s.victim()
		now := clock.Now()
		claim(s.device, qos.High, now)
		require.GreaterOrEqual(t, s.device.Claimed(qos.High, now), now, "we go on, kill %d", n)
		require.Nil(t, s.memory.View(now).Cause, "kill %d", n)
		require.LessOrEqual(t, s.memory.View(now).Processes, 1+len(alive), "kill %d: the dead are no processes", n)
	}
	t.Logf("%d processes were killed", n)
	for _, c := range alive {
		c.Kill()
	}
	require.Less(t, s.quiet(), vanishes+time.Second, "after the last kill") // a busy machine may run us late
	require.Equal(t, 1, s.memory.View(clock.Now()).Processes)

	// All rows but ours are free, and all entries but those that we use.
	var all []*share.Memory
	for range 255 {
		all = append(all, s.open())
	}
	_, err := open(s.name)
	require.ErrorContains(t, err, "256 engines share", "every row was found, and no more")
	for _, m := range all[1:] {
		m.Close()
	}
	now := clock.Now()
	mine := make([]*share.Device, 63) // and eth0
	for i := range mine {
		mine[i] = s.memory.Device("tcp", "new"+strconv.Itoa(i))
	}
	require.Eventually(t, func() bool {
		now = now.Add(time.Millisecond)
		for i, d := range mine {
			d.Carries(1, now)
			if all[0].Device("tcp", "new"+strconv.Itoa(i)).Others(now) == 0 {
				claim(all[0].Device("tcp", "new"+strconv.Itoa(i)), qos.Low, now)
				return false
			}
		}
		return true
	}, patience, time.Millisecond, "every entry of the dead is used again")
}

// The bytes in flight of a process that was killed or stopped do not count any more after the bound. Those of a stopped
// one that goes on count again.
func TestBytesOfTheDeadVanishWithinTheBound(t *testing.T) {
	s := newScene(t)
	for range 5 {
		c := s.victim()
		for _, end := range []unix.Signal{unix.SIGSTOP, unix.SIGKILL} {
			require.Eventually(t, func() bool { return s.device.Others(clock.Now()) > 0 }, patience,
				100*time.Microsecond)
			require.NoError(t, c.Signal(end))
			took := s.quiet()
			t.Logf("signal %v: after %v", end, took)
			require.Less(t, took, vanishes+time.Second, "signal %v", end)
			if end == unix.SIGSTOP {
				require.NoError(t, c.Signal(unix.SIGCONT))
			}
		}
		c.Kill()
	}
}

// A stopped process may hold the lock of the table. The processes that are there go on; a newcomer is told, or waits
// until it goes on: none hangs.
func TestStoppedProcessesHoldNobodyUp(t *testing.T) {
	s := newScene(t)
	c := s.victim()
	begin := time.Now()
	for time.Since(begin) < time.Second {
		s.spin()
		require.NoError(t, c.Signal(unix.SIGSTOP))
		now := clock.Now()
		claim(s.device, qos.High, now)
		s.device.Others(now)
		require.Less(t, clock.Now().Sub(now), time.Second)
		came := time.Now()
		if m, err := open(s.name); err == nil {
			m.Close()
		} else {
			require.ErrorContains(t, err, "it may be stopped")
		}
		require.Less(t, time.Since(came), 5*time.Second)
		require.NoError(t, c.Signal(unix.SIGCONT))
	}
	require.Eventually(t, func() bool { return s.device.Others(clock.Now()) > 0 }, patience, 100*time.Microsecond,
		"it goes on")
}
