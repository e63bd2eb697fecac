package verbs_test

import (
	"bytes"
	"fmt"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/mem"
	fake "github.com/tent-engine/tent/tests/fakes/verbs"
	"github.com/tent-engine/tent/tests/forked"
	"github.com/tent-engine/tent/transports/rdma/verbs"
	"github.com/tent-engine/tent/transports/transporttest"
)

// Side is one end of a pair of queue pairs, in a process of its own, with memory that the other end may use.
type Side struct {
	device *verbs.Device
	bell   *verbs.Bell
	queue  *verbs.Queue
	pair   *verbs.Pair
	bytes  []byte
	memory *verbs.Memory
}

// Place is memory behind a pair, for the other end.
type Place struct {
	GID  [16]byte
	Pair uint32
	Addr uint64
	RKey uint32
}

// Transfer moves all bytes of the memory at both ends.
type Transfer struct {
	Op uint32
	To Place
}

const sideBytes = 300_000

// Open makes it, with memory of one byte.
func (s *Side) Open(filled byte, own *Place) error {
	l, err := verbs.Load(verbs.Soname)
	if err != nil {
		return err
	}
	if s.device, err = l.Open("fake0"); err != nil {
		return err
	}
	if s.bell, err = s.device.NewBell(); err != nil {
		return err
	}
	if s.queue, err = s.device.NewQueue(64, s.bell); err != nil {
		return err
	}
	if s.pair, err = s.device.NewPair(s.queue, verbs.Room{Requests: 16}); err != nil {
		return err
	}
	s.bytes, err = unix.Mmap(-1, 0, sideBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	copy(s.bytes, bytes.Repeat([]byte{filled}, sideBytes))
	at := mem.AddressOf(s.bytes)
	access := verbs.LocalWrite | verbs.RemoteRead | verbs.RemoteWrite
	if s.memory, err = s.device.Register(at, sideBytes, uint64(at), access); err != nil {
		return err
	}
	gids, err := s.device.GIDs(1)
	*own = Place{gids[1].GID, s.pair.Number, uint64(at), s.memory.RKey}
	return err
}

// Connect leads to the other end.
func (s *Side) Connect(to Place, _ *bool) error {
	path := verbs.Path{GID: to.GID, Pair: to.Pair, PSN: to.Pair & 0xff, OwnPSN: s.pair.Number & 0xff, MTU: 5, Port: 1,
		SourceGID: 1, Hops: 64, Global: true, Timeout: 10, Retries: 2, RNRRetries: 7, RNRTimer: 12, Reads: 16,
		Served: 16, Access: uint8(verbs.RemoteRead | verbs.RemoteWrite)}
	if err := s.pair.Init(&path); err != nil {
		return err
	}
	return s.pair.Connect(&path)
}

// Move carries a transfer out, and returns the status of its completion.
func (s *Side) Move(m Transfer, status *verbs.Status) error {
	at := uint64(mem.AddressOf(s.bytes))
	_, err := post(s.pair, verbs.WR{Local: at, LKey: s.memory.LKey, Op: m.Op, Remote: m.To.Addr, RKey: m.To.RKey,
		Length: sideBytes, Flags: verbs.Signaled})
	some := make([]verbs.WC, 1)
	for n, late := 0, time.Now().Add(forked.Patience); err == nil && n == 0; *status = some[0].Status {
		if n, err = s.queue.Poll(some); time.Now().After(late) {
			return fmt.Errorf("no completion")
		}
	}
	return err
}

// Fill writes a pattern, Look reports whether the memory has it.
func (s *Side) Fill(tag uint64, _ *bool) error { transporttest.Pattern(s.bytes, tag, 0); return nil }

// Look reports whether the memory has a pattern.
func (s *Side) Look(tag uint64, is *bool) error {
	expected := make([]byte, sideBytes)
	transporttest.Pattern(expected, tag, 0)
	*is = bytes.Equal(expected, s.bytes)
	return nil
}

// Withdraw ends the registration.
func (s *Side) Withdraw(_ bool, _ *bool) error { return s.memory.Close() }

// twoProcesses have connected pairs.
func twoProcesses(t *testing.T) (a, b *forked.Child, there Place) {
	environment := fake.Environment(t)
	var list [2]*forked.Child
	var places [2]Place
	for i := range list {
		c, err := forked.Start(func(c *exec.Cmd) { c.Env = append(c.Env, environment...) })
		require.NoError(t, err)
		t.Cleanup(c.Kill)
		require.NoError(t, c.Call("Side.Open", byte(i), &places[i]))
		list[i] = c
	}
	for i, c := range list {
		require.NoError(t, c.Call("Side.Connect", places[1-i], new(bool)))
	}
	return list[0], list[1], places[1]
}

func carried(t *testing.T, by *forked.Child, op uint32, to Place) (status verbs.Status) {
	t.Helper()
	require.NoError(t, by.Call("Side.Move", Transfer{op, to}, &status))
	return status
}

func fill(t *testing.T, c *forked.Child, tag uint64) {
	t.Helper()
	require.NoError(t, c.Call("Side.Fill", tag, new(bool)))
}

func has(t *testing.T, c *forked.Child, tag uint64) (is bool) {
	t.Helper()
	require.NoError(t, c.Call("Side.Look", tag, &is))
	return is
}

// A process's memory is written and read from another one, as long as it is registered. The other one is refused then,
// and both pairs are in their error state.
func TestProcessesReachEachOther(t *testing.T) {
	a, b, there := twoProcesses(t)
	fill(t, a, 1)
	require.Equal(t, verbs.Success, carried(t, a, verbs.OpWrite, there))
	require.True(t, has(t, b, 1))
	fill(t, b, 2)
	require.Equal(t, verbs.Success, carried(t, a, verbs.OpRead, there))
	require.True(t, has(t, a, 2))
	require.NoError(t, b.Call("Side.Withdraw", true, new(bool)))
	fill(t, a, 3)
	require.Equal(t, verbs.RemoteAccess, carried(t, a, verbs.OpWrite, there))
	require.True(t, has(t, b, 2), "it was written without a key")
	require.Equal(t, verbs.Flushed, carried(t, b, verbs.OpRead, there), "the responder's pair has failed, too")
}

// A NIC serves the memory of a process that is stopped. One that was killed answers no more.
func TestAStoppedProcessIsServedAndAKilledOneIsNot(t *testing.T) {
	a, b, there := twoProcesses(t)
	require.NoError(t, b.Stop())
	fill(t, a, 1)
	require.Equal(t, verbs.Success, carried(t, a, verbs.OpWrite, there))
	require.NoError(t, b.Signal(unix.SIGCONT))
	require.True(t, has(t, b, 1))
	b.Kill()
	require.Equal(t, verbs.Status(12), carried(t, a, verbs.OpWrite, there), "the retries are used up")
}
