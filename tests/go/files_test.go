package tests

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/faulty"
	"github.com/tent-engine/tent/transports/sim"
)

// storage is a simulated machine with two transports of files over one disk, and one between engines.
type storage struct {
	network *sim.Network
	faults  *faulty.Plan
}

func newStorage(t *testing.T) *storage {
	plan, err := faulty.New("")
	require.NoError(t, err)
	return &storage{sim.NewInline(1), plan}
}

var storageNames = []string{"io-uring", "buf-io", "sim"}

func (s *storage) plugs() (list []engine.Plug) {
	for _, name := range storageNames {
		settings := sim.Settings{Network: s.network, Name: name, Files: name != "sim", Vectors: name == "io-uring",
			Inline: name == "io-uring"}
		list = append(list, engine.Plug{Factory: faulty.Wrap(sim.Factory{Settings: settings}, s.faults)})
	}
	return list
}

func (s *storage) engine(t *testing.T, settings map[string]any) *engine.Engine {
	return open(t, settings, storageNames, s.plugs)
}

// unclosed is an engine that the test closes itself.
func (s *storage) unclosed(t *testing.T) *engine.Engine {
	c, err := config.Load(config.Options{Transports: table(storageNames)})
	require.NoError(t, err)
	e, err := engine.Open(context.Background(), engine.Options{Config: c, Transports: s.plugs()})
	require.NoError(t, err)
	return e
}

func openFile(t *testing.T, e *engine.Engine, path string, o engine.FileOptions) engine.SegmentID {
	t.Helper()
	id, err := e.OpenFile(context.Background(), path, o)
	require.NoError(t, err)
	return id
}

// put starts a WRITE of own memory to a file.
func put(t *testing.T, e *engine.Engine, from []byte, to engine.SegmentID, offset uint64,
	durable bool) dispatch.BatchID {
	t.Helper()
	terms := engine.Terms{Op: transport.Write}
	if durable {
		terms.Durability = request.DurabilityData
	}
	id, err := e.Move(&engine.Request{Terms: terms, Source: address(from), Length: uint64(len(from)),
		Remote: engine.Remote{Segment: to, Offset: offset}})
	require.NoError(t, err)
	return id
}

func get(t *testing.T, e *engine.Engine, to []byte, from engine.SegmentID, offset uint64) dispatch.Summary {
	t.Helper()
	id, err := e.Move(&engine.Request{Terms: engine.Terms{Op: transport.Read}, Source: address(to),
		Length: uint64(len(to)),
		Remote: engine.Remote{Segment: from, Offset: offset}})
	require.NoError(t, err)
	return ended(t, e, id)
}

func TestAFileIsASegmentLikeAnyOther(t *testing.T) {
	s := newStorage(t)
	e := s.engine(t, nil)
	const size = 1 << 20
	own, back := memory(t, size), newGuarded(t, size)
	offer(t, e, own, "")
	offer(t, e, back.all, "")
	file := openFile(t, e, "/kv.bin", engine.FileOptions{Create: true, Size: size})
	fill(own, 1)
	model := make([]byte, size)
	random := rand.New(rand.NewPCG(7, 7))
	for range 200 {
		n := 1 + random.IntN(70000)
		from, to := random.IntN(size-n), random.IntN(size-n)
		require.Equal(t, dispatch.Completed, ended(t, e, put(t, e, own[from:from+n], file, uint64(to), false)).State)
		copy(model[to:], own[from:from+n])
	}
	require.Equal(t, model, s.network.Disk().Bytes("/kv.bin"))
	sum := get(t, e, back.bytes, file, 0)
	require.Equal(t, dispatch.Completed, sum.State)
	require.EqualValues(t, 1, sum.Transports, "by the preferred transport alone")
	require.Equal(t, model, back.bytes)
	back.check(t)

	same, err := e.OpenSegment(context.Background(), "file:///kv.bin") // offsets are those of the file
	require.NoError(t, err)
	require.Equal(t, dispatch.Completed, get(t, e, back.bytes[:1000], same, 12345).State)
	require.Equal(t, model[12345:13345], back.bytes[:1000])
}

// A WRITE that a kernel does not give back may still land in its file. Nothing else goes there meanwhile, whichever
// open and name of the file leads there, and other files do not wait.
func TestAFileIsHeldUnderEachOfItsOpens(t *testing.T) {
	const size = 4096
	s := newStorage(t)
	e := s.engine(t, map[string]any{"fence_timeout_file_ms": 1})
	own := memory(t, 3*size)
	offer(t, e, own, "")
	first := openFile(t, e, "/kv.bin", engine.FileOptions{Create: true, Size: size})
	second := openFile(t, e, "/kv.bin", engine.FileOptions{})
	other := openFile(t, e, "/other.bin", engine.FileOptions{Create: true, Size: size})
	fill(own, 1)
	require.NoError(t, s.faults.Apply("op=WRITE drop silent count=1"))
	old := put(t, e, own[:size], first, 0, false)
	_, err := e.Cancel(old, 0)
	require.NoError(t, err)
	require.True(t, ended(t, e, old).Dirty)
	renewed := put(t, e, own[size:2*size], second, 0, false)
	require.Equal(t, dispatch.Completed, ended(t, e, put(t, e, own[:size], other, 0, false)).State)
	require.Equal(t, dispatch.Pending, e.Wait(renewed, time.Millisecond))
	status, err := e.Status(renewed, 0)
	require.NoError(t, err)
	require.Zero(t, status.Attempts, "nothing of it was sent")
	require.NoError(t, e.CloseSegment(first), "that changes nothing")
	last := openFile(t, e, "/kv.bin", engine.FileOptions{})
	require.Equal(t, dispatch.Pending, e.Wait(put(t, e, own[size:2*size], last, 0, false), time.Millisecond))
	require.NoError(t, s.faults.Apply("heal"))
	require.Equal(t, dispatch.Completed, ended(t, e, renewed).State)
	require.Equal(t, own[size:2*size], s.network.Disk().Bytes("/kv.bin"))
}

func TestWhatAFileRefuses(t *testing.T) {
	s := newStorage(t)
	e := s.engine(t, nil)
	own := memory(t, 65536)
	offer(t, e, own, "")
	file := openFile(t, e, "/kv.bin", engine.FileOptions{Create: true, Size: 65536})
	refused := func(code errs.Code, text, path string, o engine.FileOptions) {
		t.Helper()
		_, err := e.OpenFile(context.Background(), path, o)
		require.Equal(t, code, errs.CodeOf(err), "%v", err)
		require.ErrorContains(t, err, text)
	}
	refused(errs.NotFound, "/absent", "/absent", engine.FileOptions{})
	refused(errs.NotFound, "/absent", "/absent", engine.FileOptions{ReadOnly: true})
	refused(errs.InvalidArgument, "absolute", "kv.bin", engine.FileOptions{})
	refused(errs.InvalidArgument, "keeps its size", "/kv.bin", engine.FileOptions{Size: 1})
	refused(errs.InvalidArgument, "beyond", "/kv.bin", engine.FileOptions{Create: true, Size: 1<<62 + 1})
	refused(errs.InvalidArgument, "neither created", "/kv.bin", engine.FileOptions{Create: true, ReadOnly: true})
	refused(errs.InvalidArgument, "neither created", "/kv.bin", engine.FileOptions{Truncate: true, ReadOnly: true})
	refused(errs.InvalidArgument, "durability", "/kv.bin", engine.FileOptions{Durability: request.DurabilityData,
		ReadOnly: true})

	move := func(op transport.Op, at engine.SegmentID, offset uint64, durable bool) error {
		terms := engine.Terms{Op: op}
		if durable {
			terms.Durability = request.DurabilityData
		}
		_, err := e.Move(&engine.Request{Terms: terms, Source: address(own), Length: 4096,
			Remote: engine.Remote{Segment: at, Offset: offset}})
		return err
	}
	err := move(transport.Read, file, 65536-4095, false)
	require.Equal(t, errs.InvalidArgument, errs.CodeOf(err))
	require.ErrorContains(t, err, "4096 bytes at offset 61441 leave")
	require.ErrorContains(t, move(transport.Read, file, 0, true), "no file is written")
	require.ErrorContains(t, move(transport.Write, engine.Local, uint64(address(own)), true), "no file is written")

	only := openFile(t, e, "/kv.bin", engine.FileOptions{ReadOnly: true})
	err = move(transport.Write, only, 0, false)
	require.Equal(t, errs.PermissionDenied, errs.CodeOf(err))
	require.ErrorContains(t, err, "reading only")
	require.NoError(t, move(transport.Read, only, 0, false))
	_, err = e.Notify(file, engine.Note{Name: []byte("x")}, 0)
	require.ErrorContains(t, err, "takes no notification")

	s.network.Disk().Protect("/kv.bin")
	refused(errs.PermissionDenied, "/kv.bin", "/kv.bin", engine.FileOptions{})
	named, err := e.OpenSegment(context.Background(), "file:///kv.bin") // by its name alone: reading is enough
	require.NoError(t, err)
	require.Equal(t, errs.PermissionDenied, errs.CodeOf(move(transport.Write, named, 0, false)))
}

func TestAFileThatShrankFailsTheWholeREAD(t *testing.T) {
	s := newStorage(t)
	e := s.engine(t, nil)
	back := newGuarded(t, 8192)
	offer(t, e, back.all, "")
	file := openFile(t, e, "/kv.bin", engine.FileOptions{Create: true, Size: 8192})
	s.network.Disk().Truncate("/kv.bin", 8191)
	sum := get(t, e, back.bytes, file, 0)
	require.Equal(t, dispatch.Failed, sum.State)
	require.Equal(t, errs.AddressNotRegistered, sum.Err.Code)
	require.ErrorContains(t, sum.Err, "at offset 0 go past the end of the file of 8191 bytes")
	back.check(t)
	s.network.Disk().Remove("/kv.bin") // an open handle still reaches it
	require.Equal(t, dispatch.Completed, get(t, e, back.bytes[:8191], file, 0).State)
}

func TestTheNextTransportOfFilesTakesOver(t *testing.T) {
	s := newStorage(t)
	e := s.engine(t, nil)
	const size = 4 << 20
	own := memory(t, size)
	fill(own, 3)
	offer(t, e, own, "")
	file := openFile(t, e, "/kv.bin", engine.FileOptions{Create: true, Size: size})
	require.NoError(t, s.faults.Apply("transport=io-uring reject scope=link after_slices=1"))
	sum := ended(t, e, put(t, e, own, file, 0, true))
	require.Equal(t, dispatch.Completed, sum.State, "%v", sum.Err)
	require.EqualValues(t, 1, sum.Failovers)
	require.EqualValues(t, 0b11, sum.Transports)
	require.Equal(t, own, s.network.Disk().Durable("/kv.bin"))
	require.Equal(t, 2, s.network.Disk().Synced(), "each transport that wrote syncs its own descriptor")
	require.Equal(t, 1.0, e.Metrics()[`tent_transport_failover_total{from="io-uring",to="buf-io"}`])
}

func TestFilesAreNobodysPeers(t *testing.T) {
	s := newStorage(t)
	e, other := s.engine(t, nil), s.engine(t, nil)
	own := memory(t, 65536)
	offer(t, e, own, "kv")
	file := openFile(t, e, "/kv.bin", engine.FileOptions{Create: true, Size: 65536})
	x, err := e.Explain(&engine.Request{Terms: engine.Terms{Op: transport.Write}, Source: address(own), Length: 1,
		Remote: engine.Remote{Segment: file}})
	require.NoError(t, err)
	require.Len(t, x.Routes, 2)
	require.Equal(t, "io-uring", x.Routes[0].Transport)
	require.Contains(t, x.Routes[0].Detail, "file:///kv.bin")
	require.Equal(t, "buf-io", x.Routes[1].Transport)
	require.Equal(t, []engine.ExplainedRejected{{Transport: "sim", Reason: "the segment is a file"}}, x.Rejected)

	at := segment(t, other, e, "kv")
	theirs := memory(t, 65536)
	offer(t, other, theirs, "")
	x, err = other.Explain(&engine.Request{Terms: engine.Terms{Op: transport.Write}, Source: address(theirs), Length: 1,
		Remote: engine.Remote{Segment: at}})
	require.NoError(t, err)
	require.Len(t, x.Routes, 1)
	for _, r := range x.Rejected {
		require.Equal(t, "it moves bytes between memory and files", r.Reason)
	}
	info, err := other.Segment(context.Background(), at, true)
	require.NoError(t, err)
	require.Len(t, info.Regions, 1, "a peer is offered memory, never a file")
	require.Equal(t, mem.Host, info.Regions[0].Kind)
	_, err = other.OpenSegment(context.Background(), e.Address()+"//kv.bin")
	require.Equal(t, errs.AddressNotRegistered, errs.CodeOf(err))
	require.EqualValues(t, 1, other.Metrics()["tent_peers"])
	require.EqualValues(t, 0, e.Metrics()["tent_peers"], "a file is not a peer")
}

func TestClosingAFileLetsItsTransfersEnd(t *testing.T) {
	s := newStorage(t)
	e := s.engine(t, nil)
	own := memory(t, 65536)
	fill(own, 1)
	offer(t, e, own, "")
	file := openFile(t, e, "/kv.bin", engine.FileOptions{Create: true, Size: 65536})
	s.network.Cut(sim.Between(e.Address(), "file:///kv.bin"))
	id := put(t, e, own, file, 0, true)
	require.NoError(t, e.CloseSegment(file))
	_, err := e.Move(&engine.Request{Terms: engine.Terms{Op: transport.Write}, Source: address(own), Length: 1,
		Remote: engine.Remote{Segment: file}})
	require.Equal(t, errs.InvalidEntry, errs.CodeOf(err))
	require.Equal(t, dispatch.Pending, stateOf(e, id))
	s.network.Heal(sim.Between(e.Address(), "file:///kv.bin"))
	require.Equal(t, dispatch.Completed, ended(t, e, id).State)
	require.Equal(t, own, s.network.Disk().Durable("/kv.bin"))
}

func TestManyFilesAreOpenedByOneCall(t *testing.T) {
	s := newStorage(t)
	e := s.engine(t, nil)
	from := memory(t, 4096)
	offer(t, e, from, "")
	targets := make([]engine.FileTarget, 40)
	for i := range targets {
		targets[i] = engine.FileTarget{Path: fmt.Sprintf("/kv/%d", i),
			FileOptions: engine.FileOptions{Create: true, Size: 4096}}
	}
	files, err := e.OpenFiles(context.Background(), targets)
	require.NoError(t, err)
	for i, file := range files {
		info, err := e.Segment(context.Background(), file, false)
		require.NoError(t, err)
		require.Equal(t, targets[i].Path, info.Base, "as they were given")
		fill(from, i)
		require.Equal(t, dispatch.Completed, ended(t, e, put(t, e, from, file, 0, false)).State)
		require.Equal(t, from, s.network.Disk().Bytes(targets[i].Path))
	}
	e.CloseSegments(append(files, files[0], 0)) // again, and this engine itself: no effect
	for _, file := range files {
		_, err := e.Segment(context.Background(), file, false)
		require.Equal(t, errs.InvalidEntry, errs.CodeOf(err))
	}
}

func TestOfManyFilesAllAreOpenedOrNone(t *testing.T) {
	e := newStorage(t).engine(t, nil)
	made := engine.FileOptions{Create: true, Size: 4096}
	targets := []engine.FileTarget{{Path: "/a", FileOptions: made}, {Path: "/none"}, {Path: "/b", FileOptions: made}}
	before := e.Metrics()
	files, err := e.OpenFiles(context.Background(), targets)
	require.Equal(t, errs.NotFound, errs.CodeOf(err))
	require.ErrorContains(t, err, "/none")
	require.Empty(t, files)
	require.Equal(t, before["tent_segments"], e.Metrics()["tent_segments"])
}

// TestMemoryThatTheKernelKeepsStaysUsed: a transfer ends dirty when the kernel does not give its slices back in time.
// Then its region is in use until the kernel does, even if the user closes everything.
func TestMemoryThatTheKernelKeepsStaysUsed(t *testing.T) {
	s := newStorage(t)
	e := s.engine(t, map[string]any{"fence_timeout_file_ms": 30})
	file := openFile(t, e, "/kv.bin", engine.FileOptions{Create: true, Size: 65536})
	s.keepsMemory(t, e, file, sim.Between(e.Address(), "file:///kv.bin"))
}

// Memory of a transfer to a peer is kept as that of one to a file is: a driver may have it.
func TestMemoryThatADriverKeepsStaysUsed(t *testing.T) {
	s := newStorage(t)
	e, other := s.engine(t, map[string]any{"fence_timeout_host_ms": 30}), s.engine(t, nil)
	offer(t, other, memory(t, 65536), "kv")
	s.keepsMemory(t, e, segment(t, e, other, "kv"), sim.Between(e.Address(), other.Address()))
}

func (s *storage) keepsMemory(t *testing.T, e *engine.Engine, to engine.SegmentID, where sim.Where) {
	id, own, err := e.Allocate(engine.Memory{Size: 65536, Location: "cpu:0"})
	require.NoError(t, err)
	bytes := mem.Bytes(own.Addr, int(own.Size))
	fill(bytes, 1)
	s.network.Cut(where)
	move := put(t, e, bytes, to, 0, false)
	_, err = e.Cancel(move, -1)
	require.NoError(t, err)
	sum := ended(t, e, move)
	require.Equal(t, dispatch.Canceled, sum.State)
	require.True(t, sum.Dirty)
	require.NoError(t, e.CloseRegion(context.Background(), id))
	require.True(t, e.Lingers(id))
	require.NoError(t, e.FreeMemory(id))
	require.True(t, mapped(own), "what the kernel may still read is mapped")
	s.network.Heal(where)
	given := func() bool { // or something else is mapped there by now
		e.Progress()
		return !mapped(own) || !e.Lingers(id)
	}
	require.Eventually(t, given, patience, time.Millisecond)
}
