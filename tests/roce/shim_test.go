package roce

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/transports/rdma/verbs"
	"github.com/tent-engine/tent/transports/transporttest"
)

// shimEnd is a device, opened by the shim that tent uses, with one queue pair.
type shimEnd struct {
	t      *testing.T
	device *verbs.Device
	bell   *verbs.Bell
	queue  *verbs.Queue
	pair   *verbs.Pair
}

func openShim(t *testing.T, name string) *shimEnd {
	t.Helper()
	library, err := verbs.Load("")
	require.NoError(t, err)
	e := &shimEnd{t: t}
	e.device, err = library.Open(name)
	require.NoError(t, err)
	e.bell, err = e.device.NewBell()
	require.NoError(t, err)
	e.queue, err = e.device.NewQueue(64, e.bell)
	require.NoError(t, err)
	e.pair, err = e.device.NewPair(e.queue, verbs.Room{Requests: 16})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, e.pair.Close())
		require.NoError(t, e.queue.Close())
		require.NoError(t, e.bell.Close())
		require.NoError(t, e.device.Close())
	})
	return e
}

// connect finds the address of RoCE v2 for IPv4 at both ends, and makes the pair send.
func (e *shimEnd) connect(to *shimEnd, own, peer []byte) {
	e.t.Helper()
	find := func(d *verbs.Device, address []byte) verbs.GID {
		list, err := d.GIDs(1)
		require.NoError(e.t, err)
		for _, g := range list {
			if g.RoCEv2 && string(g.GID[12:]) == string(address) {
				return g
			}
		}
		require.Fail(e.t, "no address", "%v of %s in %v", address, d.Name, list)
		panic("unreachable")
	}
	path := verbs.Path{GID: find(to.device, peer).GID, Pair: to.pair.Number, PSN: 7, OwnPSN: 7, MTU: 5, Port: 1,
		SourceGID: uint8(find(e.device, own).Index), Hops: 64, Global: true, Timeout: 14, Retries: 6, RNRRetries: 1,
		RNRTimer: 12, Reads: 16, Served: 16, Access: uint8(verbs.RemoteRead | verbs.RemoteWrite)}
	require.NoError(e.t, e.pair.Init(&path))
	require.NoError(e.t, e.pair.Connect(&path))
}

// await sleeps on the completion channel until there are n completions.
func (e *shimEnd) await(n int) (list []verbs.WC) {
	e.t.Helper()
	deadline := clock.Now().Add(patience)
	for len(list) < n {
		require.Less(e.t, clock.Now(), deadline, "%d of %d completions", len(list), n)
		require.NoError(e.t, e.queue.Arm())
		some := make([]verbs.WC, verbs.Batch)
		got, err := e.queue.Poll(some)
		require.NoError(e.t, err)
		list = append(list, some[:got]...)
		if len(list) < n && got == 0 {
			limit := unix.NsecToTimespec(int64(time.Second))
			_, _ = unix.Ppoll([]unix.PollFd{{Fd: int32(e.bell.Fd()), Events: unix.POLLIN}}, &limit, nil)
			e.bell.Drain(1)
		}
	}
	return list
}

// drain takes the completions of requests that a reset has ended.
func (e *shimEnd) drain() {
	e.t.Helper()
	for got, some := 1, make([]verbs.WC, verbs.Batch); got > 0; {
		var err error
		got, err = e.queue.Poll(some)
		require.NoError(e.t, err)
	}
}

// shimRail is both ends of rail 0 with registered memory, between guard bands.
type shimRail struct {
	a, b       *shimEnd
	near, far  *transporttest.Memory
	lkey, rkey uint32
}

const shimBytes = 1 << 20

func newShimRail(t *testing.T) *shimRail {
	t.Helper()
	r := Rail(0)
	s := &shimRail{a: openShim(t, r.Device(A)), b: openShim(t, r.Device(B)),
		near: transporttest.NewMemory(t, shimBytes, 1), far: transporttest.NewMemory(t, shimBytes, 1)}
	t.Cleanup(s.near.Free)
	t.Cleanup(s.far.Free)
	own, err := s.a.device.Register(s.near.Addr, s.near.Size, uint64(s.near.Addr), verbs.LocalWrite)
	require.NoError(t, err)
	other, err := s.b.device.Register(s.far.Addr, s.far.Size, uint64(s.far.Addr),
		verbs.LocalWrite|verbs.RemoteRead|verbs.RemoteWrite)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, own.Close()); require.NoError(t, other.Close()) })
	s.lkey, s.rkey = own.LKey, other.RKey
	s.a.connect(s.b, r.Address(A), r.Address(B))
	s.b.connect(s.a, r.Address(B), r.Address(A))
	return s
}

// post posts n requests for neighbouring ranges as one chain, of which the last is signalled.
func (s *shimRail) post(op uint32, at uint64, length uint32, n int) {
	s.a.t.Helper()
	chain := s.a.pair.Chain[:n]
	for i := range chain {
		offset := at + uint64(i)*uint64(length)
		chain[i].Like(&verbs.WR{ID: uint64(i), Local: uint64(s.near.Addr) + offset, Remote: uint64(s.far.Addr) + offset,
			Length: length, LKey: s.lkey, RKey: s.rkey, Op: op})
	}
	chain[n-1].Flags = verbs.Signaled
	posted, err := s.a.pair.Post(n)
	require.NoError(s.a.t, err)
	require.Equal(s.a.t, n, posted)
}

// TestTheShimMovesBytesOnARealQueuePair: its own declarations of the binary interface hold against the real library.
func TestTheShimMovesBytesOnARealQueuePair(t *testing.T) {
	needGuest(t, 1)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 2))
	s := newShimRail(t)
	for round := range uint64(20) {
		op, from, to := verbs.OpWrite, s.near, s.far
		if round%2 == 1 {
			op, from, to = verbs.OpRead, s.far, s.near
		}
		from.Fill(2*round+1, 0, shimBytes)
		to.Fill(2*round, 0, shimBytes)
		n := 1 + random.IntN(8)
		length := 1 + random.Uint64N(shimBytes/16)
		at := random.Uint64N(shimBytes / 2)
		s.post(op, at, uint32(length), n)
		end := s.a.await(1)
		require.Equal(t, verbs.Success, end[0].Status)
		require.Equal(t, uint64(n-1), end[0].ID)
		moved := length * uint64(n)
		require.NoError(t, to.Check(2*round, 0, 0, at))
		require.NoError(t, to.Check(2*round+1, at, at, moved))
		require.NoError(t, to.Check(2*round, at+moved, at+moved, shimBytes-at-moved))
		require.NoError(t, to.CheckBands())
	}
}

// TestTheShimNamesARealFailure: a silent path ends each request, the signalled ones and the others.
func TestTheShimNamesARealFailure(t *testing.T) {
	needGuest(t, 1)
	s := newShimRail(t)
	require.NoError(t, Rail(0).Drop(Both))
	t.Cleanup(func() { require.NoError(t, Rail(0).Heal()) })
	s.post(verbs.OpWrite, 0, 64<<10, 4)
	statuses := []verbs.Status{}
	for _, end := range s.a.await(4) {
		statuses = append(statuses, end.Status)
	}
	require.Equal(t, []verbs.Status{verbs.RetriesExceeded, verbs.Flushed, verbs.Flushed, verbs.Flushed}, statuses)
	attributes, err := s.a.pair.Query()
	require.NoError(t, err)
	require.Equal(t, uint32(6), attributes.State, "error")
}

// TestTheShimResetsAPairWithRequestsOut resets a full pair that has not failed. It then takes as many, and they pass.
func TestTheShimResetsAPairWithRequestsOut(t *testing.T) {
	needGuest(t, 1)
	const length = 4 << 10 // a packet
	s := newShimRail(t)
	attributes, err := s.a.pair.Query()
	require.NoError(t, err)
	full := attributes.Room.Requests
	bytes := uint64(full) * length
	require.NoError(t, Rail(0).Drop(Both))
	sent := func() int64 { return counters(t, s.a.device.Name)["sent_pkts"] }
	before, deadline := sent(), clock.Now().Add(patience)
	s.post(verbs.OpWrite, 0, length, full)
	for sent() < before+int64(full) {
		require.Less(t, clock.Now(), deadline, "requests that are not sent")
	}
	require.NoError(t, s.a.pair.Reset())
	require.NoError(t, s.b.pair.Reset())
	require.NoError(t, Rail(0).Heal())
	s.a.drain()
	s.near.Fill(2, 0, shimBytes)
	s.far.Fill(1, 0, shimBytes)
	s.a.connect(s.b, Rail(0).Address(A), Rail(0).Address(B))
	s.b.connect(s.a, Rail(0).Address(B), Rail(0).Address(A))
	s.post(verbs.OpWrite, 0, length, full)
	require.Equal(t, verbs.Success, s.a.await(1)[0].Status)
	require.NoError(t, s.far.Check(2, 0, 0, bytes))
	require.NoError(t, s.far.Check(1, bytes, bytes, shimBytes-bytes))
	require.NoError(t, s.far.CheckBands())
}
