package verbs_test

import (
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	fake "github.com/tent-engine/tent/tests/fakes/verbs"
	"github.com/tent-engine/tent/tests/forked"
	"github.com/tent-engine/tent/transports/rdma/verbs"
	"github.com/tent-engine/tent/transports/transporttest"
)

func TestMain(m *testing.M) {
	if forked.RunChild(new(Side)) {
		return
	}
	os.Exit(m.Run())
}

func missing(t *testing.T, err error) *verbs.Missing {
	t.Helper()
	var m *verbs.Missing
	require.ErrorAs(t, err, &m)
	return m
}

func TestAMachineWithoutTheLibraryHasAReason(t *testing.T) {
	_, err := verbs.Load("libtent-is-not-there.so.1")
	require.Equal(t, verbs.NoLibrary, missing(t, err).State)
	require.ErrorContains(t, err, "rdma-core")
}

// TestALibraryThatIsCutShortIsRefused cuts the fake at many lengths. The dynamic linker dies of some of them.
func TestALibraryThatIsCutShortIsRefused(t *testing.T) {
	whole, err := os.ReadFile(fake.Open(t).Path)
	require.NoError(t, err)
	for _, share := range []int{0, 1, 10, 50, 64, 100, 1000, 4096, len(whole) / 4, len(whole) / 2, len(whole) - 12000} {
		path := filepath.Join(t.TempDir(), "libibverbs.so.1")
		require.NoError(t, os.WriteFile(path, whole[:share], 0o600))
		_, err := verbs.Load(path)
		require.Equal(t, verbs.Unusable, missing(t, err).State, "%d of %d bytes", share, len(whole))
		require.ErrorContains(t, err, path)
	}
}

func TestALibraryThatIsTooOldNamesTheFunction(t *testing.T) {
	path := filepath.Join(t.TempDir(), "libibverbs.so.1")
	gcc := exec.Command("gcc", "-shared", "-fPIC", "-x", "c", "-o", path, "-")
	gcc.Stdin = strings.NewReader("int ibv_get_device_list, ibv_free_device_list;")
	out, err := gcc.CombinedOutput()
	require.NoError(t, err, "%s", out)
	_, err = verbs.Load(path)
	require.Equal(t, verbs.Unusable, missing(t, err).State)
	require.ErrorContains(t, err, "ibv_get_device_name")
}

func TestAMachineWithoutDevicesHasAReason(t *testing.T) {
	f := fake.Open(t)
	l, err := verbs.Load(f.Path)
	require.NoError(t, err)
	f.Control(t, "devices 0")
	_, err = l.Devices()
	require.Equal(t, verbs.NoDevices, missing(t, err).State)
	f.Control(t, "devices 3")
	names, err := l.Devices()
	require.NoError(t, err)
	require.Equal(t, []string{"fake0", "fake1", "fake2"}, names)
	_, err = l.Open("fake7")
	require.ErrorIs(t, err, syscall.ENODEV)
}

// TestDevicesOfOtherTransportsAreLeftOut: nobody connects queue pairs of iWARP by modify_qp.
func TestDevicesOfOtherTransportsAreLeftOut(t *testing.T) {
	f := fake.Open(t)
	l, err := verbs.Load(f.Path)
	require.NoError(t, err)
	const iWARP, unspecified = 1, 4
	f.Control(t, "transport fake0 %d", iWARP)
	names, err := l.Devices()
	require.NoError(t, err)
	require.Equal(t, []string{"fake1"}, names)
	_, err = l.Open("fake0")
	require.ErrorIs(t, err, syscall.ENODEV)
	f.Control(t, "transport fake1 %d", unspecified)
	_, err = l.Devices()
	require.Equal(t, verbs.NoDevices, missing(t, err).State)
	require.ErrorContains(t, err, "none of 2 is of InfiniBand or RoCE")
}

// TestForksAreAnnouncedBeforeMemoryIsRegistered: an older kernel gives a process that forks other pages than the NIC's.
func TestForksAreAnnouncedBeforeMemoryIsRegistered(t *testing.T) {
	f, _, _ := twoSides(t)
	require.Equal(t, 1, f.Control(t, "forks"))
}

// TestATableOfManyAddressesIsReadWhole: the kernel refuses a list that is too short for it.
func TestATableOfManyAddressesIsReadWhole(t *testing.T) {
	f := fake.Open(t)
	l, err := verbs.Load(f.Path)
	require.NoError(t, err)
	d, err := l.Open("fake0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	for _, n := range []int{128, 129, 1000} { // of two ports each
		f.Control(t, "gids %d", n)
		list, err := d.GIDs(1)
		require.NoError(t, err)
		require.Len(t, list, n)
	}
}

// TestTheAddressesOfTheLibraryAreNotNeededAtLoad runs this test's program with every symbol bound at once.
func TestTheAddressesOfTheLibraryAreNotNeededAtLoad(t *testing.T) {
	program := exec.Command(os.Args[0], "-test.run=^$")
	program.Env = append(os.Environ(), "LD_BIND_NOW=1")
	out, err := program.CombinedOutput()
	require.NoError(t, err, "%s", out)
	needed, err := exec.Command("ldd", os.Args[0]).CombinedOutput()
	require.NoError(t, err)
	require.NotContains(t, string(needed), "ibverbs")
}

// side is a device with a pair that is connected to another one.
type side struct {
	t     *testing.T
	d     *verbs.Device
	bell  *verbs.Bell
	queue *verbs.Queue
	pair  *verbs.Pair
}

func newSide(t *testing.T, l *verbs.Library, name string) *side {
	t.Helper()
	d, err := l.Open(name)
	require.NoError(t, err)
	s := &side{t: t, d: d}
	s.bell, err = d.NewBell()
	require.NoError(t, err)
	s.queue, err = d.NewQueue(64, s.bell)
	require.NoError(t, err)
	s.pair, err = d.NewPair(s.queue, verbs.Room{Requests: 16})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.pair.Close())
		require.NoError(t, s.queue.Close())
		require.NoError(t, s.bell.Close())
		require.NoError(t, s.d.Close())
	})
	return s
}

func (s *side) connect(to *side) {
	s.t.Helper()
	gids, err := to.d.GIDs(1)
	require.NoError(s.t, err)
	require.Len(s.t, gids, 2)
	path := verbs.Path{GID: gids[1].GID, Pair: to.pair.Number, PSN: to.pair.Number & 0xff, OwnPSN: s.pair.Number & 0xff,
		MTU: 5, Port: 1, SourceGID: 1, Hops: 64, Global: true, Timeout: 10, Retries: 2, RNRRetries: 7, RNRTimer: 12,
		Reads: 16, Served: 16, Access: uint8(verbs.RemoteRead | verbs.RemoteWrite)}
	require.NoError(s.t, s.pair.Init(&path))
	require.NoError(s.t, s.pair.Connect(&path))
}

func (s *side) register(m *transporttest.Memory, first uint64, access verbs.Access) *verbs.Memory {
	s.t.Helper()
	r, err := s.d.Register(m.Addr, m.Size, first, access)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { require.NoError(s.t, r.Close()) })
	return r
}

// await polls, and sleeps on the channel, until n completions are there.
func (s *side) await(n int) (list []verbs.WC) {
	s.t.Helper()
	late := time.Now().Add(10 * time.Second)
	for len(list) < n {
		require.True(s.t, time.Now().Before(late), "%d of %d completions", len(list), n)
		require.NoError(s.t, s.queue.Arm())
		some := make([]verbs.WC, verbs.Batch)
		got, err := s.queue.Poll(some)
		require.NoError(s.t, err)
		if list = append(list, some[:got]...); got == 0 && len(list) < n {
			limit := unix.NsecToTimespec(int64(time.Second))
			_, _ = unix.Ppoll([]unix.PollFd{{Fd: int32(s.bell.Fd()), Events: unix.POLLIN}}, &limit, nil)
			s.bell.Drain(1)
		}
	}
	return list
}

func twoSides(t *testing.T) (*fake.Fake, *side, *side) {
	f := fake.Open(t)
	l, err := verbs.Load(f.Path)
	require.NoError(t, err)
	a, b := newSide(t, l, "fake0"), newSide(t, l, "fake1")
	a.connect(b)
	b.connect(a)
	return f, a, b
}

// TestChainsMoveTheirBytesAndNoOthers writes and reads random ranges, with guard bands around both memories.
func TestChainsMoveTheirBytesAndNoOthers(t *testing.T) {
	_, a, b := twoSides(t)
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	const size = 100_000
	here, there := transporttest.NewMemory(t, size, 1), transporttest.NewMemory(t, size, 1)
	t.Cleanup(here.Free)
	t.Cleanup(there.Free)
	own := a.register(here, uint64(here.Addr), verbs.LocalWrite)
	other := b.register(there, uint64(there.Addr)%4096, verbs.LocalWrite|verbs.RemoteRead|verbs.RemoteWrite)
	for round := range 40 {
		op, from, to := verbs.OpWrite, here, there
		if round%2 == 1 {
			op, from, to = verbs.OpRead, there, here
		}
		from.Fill(uint64(2*round+1), 0, size)
		to.Fill(uint64(2*round), 0, size)
		at, n := random.Uint64N(size/2), 1+random.IntN(8)
		length := 1 + random.Uint64N(size/2/uint64(n))
		var chain []verbs.WR
		for i := range uint64(n) {
			chain = append(chain, verbs.WR{ID: i, Local: uint64(here.Addr) + at + i*length, LKey: own.LKey, Op: op,
				Remote: uint64(there.Addr)%4096 + at + i*length, RKey: other.RKey, Length: uint32(length)})
		}
		chain[n-1].Flags = verbs.Signaled
		posted, err := post(a.pair, chain...)
		require.NoError(t, err)
		require.Equal(t, n, posted)
		end := a.await(1)
		require.Equal(t, []uint64{uint64(n - 1), uint64(verbs.Success)}, []uint64{end[0].ID, uint64(end[0].Status)})
		whole := uint64(n) * length
		require.NoError(t, to.Check(uint64(2*round+1), at, at, whole), "seed %d", seed)
		require.NoError(t, to.Check(uint64(2*round), 0, 0, at), "seed %d", seed)
		require.NoError(t, to.Check(uint64(2*round), at+whole, at+whole, size-at-whole), "seed %d", seed)
	}
	require.NoError(t, here.CheckBands())
	require.NoError(t, there.CheckBands())
}

// post posts requests by the pair's chain.
func post(p *verbs.Pair, list ...verbs.WR) (int, error) {
	for i := range list {
		p.Chain[i].Like(&list[i])
	}
	return p.Post(len(list))
}

// TestTheFakeIsAsStrictAsANIC breaks one rule after the other; each has its status, and no byte moves.
func TestTheFakeIsAsStrictAsANIC(t *testing.T) {
	for name, each := range map[string]struct {
		change func(*verbs.WR)
		access verbs.Access
		status verbs.Status
	}{
		"a key that is unknown there":  {func(r *verbs.WR) { r.RKey += 256 }, 7, verbs.RemoteAccess},
		"a key that is unknown here":   {func(r *verbs.WR) { r.LKey += 1 << 20 }, 7, verbs.LocalProtection},
		"beyond the end there":         {func(r *verbs.WR) { r.Remote += 4000 }, 7, verbs.RemoteAccess},
		"before the beginning there":   {func(r *verbs.WR) { r.Remote -= 1 }, 7, verbs.RemoteAccess},
		"beyond the end here":          {func(r *verbs.WR) { r.Local += 4000 }, 7, verbs.LocalProtection},
		"a WRITE where only READs may": {func(*verbs.WR) {}, 5, verbs.RemoteAccess},
	} {
		t.Run(name, func(t *testing.T) {
			_, a, b := twoSides(t)
			here, there := transporttest.NewMemory(t, 4096, 1), transporttest.NewMemory(t, 4096, 1)
			t.Cleanup(here.Free)
			t.Cleanup(there.Free)
			there.Fill(1, 0, 4096)
			own, other := a.register(here, uint64(here.Addr), 1), b.register(there, 1000, each.access)
			wr := verbs.WR{ID: 5, Local: uint64(here.Addr), LKey: own.LKey, Remote: 1000, RKey: other.RKey, Length: 500}
			each.change(&wr)
			behind := wr
			behind.ID = 6
			_, err := post(a.pair, wr, behind)
			require.NoError(t, err)
			list := a.await(2)
			require.Equal(t, []verbs.Status{each.status, verbs.Flushed}, []verbs.Status{list[0].Status, list[1].Status})
			require.NoError(t, there.Check(1, 0, 0, 4096))
			attributes, err := a.pair.Query()
			require.NoError(t, err)
			require.EqualValues(t, 6, attributes.State, "the pair is in its error state")
		})
	}
}

func TestASendQueueHasItsRoom(t *testing.T) {
	_, a, _ := twoSides(t)
	chain := make([]verbs.WR, 20)
	posted, err := post(a.pair, chain...)
	require.True(t, errors.Is(err, syscall.ENOMEM), "%v", err)
	require.Equal(t, 16, posted)
}

func TestAttributesAreReadBack(t *testing.T) {
	_, a, _ := twoSides(t)
	got, err := a.pair.Query()
	require.NoError(t, err)
	require.Equal(t, verbs.Attributes{State: 3, MTU: 5, Room: verbs.Room{Requests: 16, Ranges: 1}, Timeout: 10,
		Retries: 2, RNRRetries: 7, Reads: 16, Served: 16, RNRTimer: 12, Hops: 64, SourceGID: 1, Port: 1,
		Received: got.Received}, got)
}

// TestAPairCountsTheRequestsThatCame, by which its owner knows that the other end lives.
func TestAPairCountsTheRequestsThatCame(t *testing.T) {
	_, a, b := twoSides(t)
	here, there := transporttest.NewMemory(t, 4096, 1), transporttest.NewMemory(t, 4096, 1)
	t.Cleanup(here.Free)
	t.Cleanup(there.Free)
	own, other := a.register(here, uint64(here.Addr), 1), b.register(there, 0, 7)
	before, err := b.pair.Query()
	require.NoError(t, err)
	_, err = post(a.pair, verbs.WR{Local: uint64(here.Addr), LKey: own.LKey, RKey: other.RKey, Length: 8,
		Flags: verbs.Signaled})
	require.NoError(t, err)
	require.Equal(t, verbs.Success, a.await(1)[0].Status)
	after, err := b.pair.Query()
	require.NoError(t, err)
	require.NotEqual(t, before.Received, after.Received)
	again, err := b.pair.Query()
	require.NoError(t, err)
	require.Equal(t, after.Received, again.Received)
}

// TestALateWriteIsPushedByARead shows why a transport flushes.
func TestALateWriteIsPushedByARead(t *testing.T) {
	f, a, b := twoSides(t)
	f.Control(t, "late %d", 10_000_000)
	here, there := transporttest.NewMemory(t, 4096, 1), transporttest.NewMemory(t, 4096, 1)
	t.Cleanup(here.Free)
	t.Cleanup(there.Free)
	here.Fill(2, 0, 4096)
	there.Fill(1, 0, 4096)
	own, other := a.register(here, uint64(here.Addr), 1), b.register(there, 0, 7)
	wr := verbs.WR{Local: uint64(here.Addr), LKey: own.LKey, RKey: other.RKey, Length: 4000, Flags: verbs.Signaled}
	_, err := post(a.pair, wr)
	require.NoError(t, err)
	require.Equal(t, verbs.Success, a.await(1)[0].Status)
	require.NoError(t, there.Check(1, 0, 0, 4096), "acknowledged, and not placed")
	wr.Op, wr.Length, wr.Local = verbs.OpRead, 8, wr.Local+4088
	_, err = post(a.pair, wr)
	require.NoError(t, err)
	require.Equal(t, verbs.Success, a.await(1)[0].Status)
	require.NoError(t, there.Check(2, 0, 0, 4000))
}

func BenchmarkPost(b *testing.B) {
	f := fake.Open(b)
	l, err := verbs.Load(f.Path)
	require.NoError(b, err)
	d, err := l.Open("fake0")
	require.NoError(b, err)
	bell, err := d.NewBell()
	require.NoError(b, err)
	queue, err := d.NewQueue(16384, bell)
	require.NoError(b, err)
	pair, err := d.NewPair(queue, verbs.Room{Requests: 8192})
	require.NoError(b, err)
	require.NoError(b, pair.Fail()) // requests come back flushed: the crossings and nothing else
	into := make([]verbs.WC, verbs.Batch)
	b.ReportAllocs()
	for b.Loop() {
		_, _ = pair.Post(verbs.Batch)
		_, _ = queue.Poll(into)
	}
	require.NoError(b, pair.Close())
	require.NoError(b, queue.Close())
	require.NoError(b, bell.Close())
	require.NoError(b, d.Close())
}
