package tests

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/device/devicetest"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/sim"
)

// growable is address space with pages that come and go, as that of a KV cache that grows.
type growable struct {
	bytes []byte
	page  int
}

func newGrowable(t *testing.T, pages int) *growable {
	g := &growable{page: unix.Getpagesize()}
	b, err := unix.Mmap(-1, 0, pages*g.page, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	g.bytes = b
	t.Cleanup(func() { require.NoError(t, unix.Munmap(b)) })
	return g
}

// back maps fresh pages behind a range, and returns a second view of them: it shows later writes.
func (g *growable) back(t *testing.T, from, to int) (view []byte) {
	size := (to - from) * g.page
	fd, err := unix.MemfdCreate("tent-growable", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Close(fd)) }()
	require.NoError(t, unix.Ftruncate(fd, int64(size)))
	_, err = unix.MmapPtr(fd, 0, mem.Pointer(address(g.bytes[from*g.page:])), uintptr(size),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
	require.NoError(t, err)
	view, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(view)) })
	return view
}

// drop takes the pages of a range away.
func (g *growable) drop(t *testing.T, from, to int) {
	_, err := unix.MmapPtr(-1, 0, mem.Pointer(address(g.bytes[from*g.page:])), uintptr((to-from)*g.page),
		unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_FIXED)
	require.NoError(t, err)
}

// remapWorlds are transports that reach memory by its address, and one that holds the pages of the registration, as a
// NIC that pins them does.
func remapWorlds() []world {
	only := func(name string) func(testing.TB, map[string]any) *engine.Engine {
		return func(t testing.TB, _ map[string]any) *engine.Engine {
			settings := map[string]any{}
			for _, other := range []string{"tcp", "shm"} {
				settings["transports/"+other+"/enable"] = other == name
			}
			return openAll(t, settings)
		}
	}
	networks := map[string]*sim.Network{}
	held := func(t testing.TB, _ map[string]any) *engine.Engine {
		if networks[t.Name()] == nil {
			networks[t.Name()] = sim.NewInline(1)
		}
		return open(t, nil, []string{"sim"}, func() []engine.Plug {
			return []engine.Plug{{Factory: sim.Factory{Settings: sim.Settings{Network: networks[t.Name()], Holds: true,
				Pins: true}}}}
		})
	}
	return []world{{"tcp", only("tcp")}, {"shm", only("shm")}, {"held", held}}
}

// Pages that change under a region are reached by peers that hold its old descriptor, over every transport, and the old
// ones by nobody. A range without pages fails the transfers that need it, and no others, until it has pages again.
func TestRemappedPagesAreReached(t *testing.T) {
	for _, w := range remapWorlds() {
		t.Run(w.name, func(t *testing.T) {
			const pages = 8
			kv := newGrowable(t, pages)
			first := kv.back(t, 0, pages)
			owner, writer := w.open(t, nil), w.open(t, nil)
			source := offeredShared(t, writer, len(kv.bytes))
			id := offer(t, owner, kv.bytes, "kv")
			to := segment(t, writer, owner, "kv")
			page := uint64(kv.page)
			move := func(op transport.Op, from, upTo int) dispatch.Summary {
				t.Helper()
				batch, err := writer.Move(&engine.Request{Terms: request.Terms{Op: op},
					Source: address(source[from*kv.page:]), Length: uint64(upTo-from) * page,
					Remote: engine.Remote{Segment: to, Offset: uint64(from) * page}})
				require.NoError(t, err)
				return ended(t, writer, batch)
			}
			moved := func(op transport.Op, from, upTo int) {
				t.Helper()
				sum := move(op, from, upTo)
				require.Equal(t, dispatch.Completed, sum.State, "%v", sum.Err)
			}
			remap := func(from, upTo int) {
				t.Helper()
				require.NoError(t, owner.RemapRegion(t.Context(), id, uint64(from)*page, uint64(upTo-from)*page))
			}
			fill(source, 1)
			moved(transport.Write, 0, pages)
			same(t, first, 1, 0)

			second := kv.back(t, 2, 5)
			remap(2, 5)
			fill(source, 2)
			moved(transport.Write, 0, pages)
			same(t, kv.bytes, 2, 0)
			same(t, second, 2, 2*kv.page)
			same(t, first[2*kv.page:5*kv.page], 1, 2*kv.page) // nobody reached the old pages
			fill(source, 3)
			moved(transport.Read, 0, pages)
			same(t, source, 2, 0)

			kv.drop(t, 4, 6)
			remap(4, 6)
			for _, op := range []transport.Op{transport.Write, transport.Read} {
				sum := move(op, 4, 5)
				require.Equal(t, dispatch.Failed, sum.State)
				require.Equal(t, errs.AddressNotRegistered, sum.Err.Code, "%v", sum.Err)
				require.False(t, sum.Dirty)
				moved(op, 0, 4)
				moved(op, 6, pages)
			}
			third := kv.back(t, 4, 6)
			remap(4, 6)
			fill(source, 4)
			moved(transport.Write, 0, pages)
			same(t, kv.bytes, 4, 0)
			same(t, third, 4, 4*kv.page)
			same(t, second[2*kv.page:], 2, 4*kv.page)
		})
	}
}

// A reservation is registered before it has pages, and fills from anywhere.
func TestAReservationFills(t *testing.T) {
	for _, w := range remapWorlds()[:2] {
		t.Run(w.name, func(t *testing.T) {
			const pages = 8
			kv := newGrowable(t, pages)
			owner, writer := w.open(t, nil), w.open(t, nil)
			source := offeredShared(t, writer, len(kv.bytes))
			m := engine.Memory{Addr: address(kv.bytes), Size: uint64(len(kv.bytes)), Name: "kv",
				Permission: mem.GlobalReadWrite}
			_, err := owner.Register(m)
			require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), "%v", err)
			require.ErrorContains(t, err, "growable")
			m.Growable = true
			id, err := owner.Register(m)
			require.NoError(t, err)
			to, page := segment(t, writer, owner, "kv"), uint64(kv.page)
			fill(source, 1)
			write := func(at int) dispatch.Summary {
				t.Helper()
				batch, err := writer.Move(&engine.Request{Terms: request.Terms{Op: transport.Write},
					Source: address(source[at*kv.page:]), Length: page,
					Remote: engine.Remote{Segment: to, Offset: uint64(at) * page}})
				require.NoError(t, err)
				return ended(t, writer, batch)
			}
			backed := map[int]bool{}
			for _, next := range []int{5, 0, 7} {
				kv.back(t, next, next+1)
				require.NoError(t, owner.RemapRegion(t.Context(), id, uint64(next)*page, page))
				backed[next] = true
				for at := range pages {
					sum := write(at)
					if !backed[at] {
						require.Equal(t, dispatch.Failed, sum.State)
						require.Equal(t, errs.AddressNotRegistered, sum.Err.Code, "%v", sum.Err)
						continue
					}
					require.Equal(t, dispatch.Completed, sum.State, "%v", sum.Err)
					same(t, kv.bytes[at*kv.page:(at+1)*kv.page], 1, at*kv.page)
				}
			}
		})
	}
}

// offeredShared is registered memory of a file, which transports that hold pages can hold.
func offeredShared(t *testing.T, e *engine.Engine, size int) []byte {
	g := newGrowable(t, size/unix.Getpagesize())
	g.back(t, 0, size/unix.Getpagesize())
	offer(t, e, g.bytes, "")
	return g.bytes
}

// Without the call, a transport that holds pages reaches the old ones: the test above is not true of itself.
func TestWithoutRemapHeldPagesAreTheOldOnes(t *testing.T) {
	w := remapWorlds()[2]
	kv := newGrowable(t, 1)
	old := kv.back(t, 0, 1)
	owner, writer := w.open(t, nil), w.open(t, nil)
	source := offeredShared(t, writer, kv.page)
	offer(t, owner, kv.bytes, "kv")
	to := segment(t, writer, owner, "kv")
	kv.back(t, 0, 1)
	fill(source, 1)
	batch, err := writer.Move(&engine.Request{Terms: request.Terms{Op: transport.Write}, Source: address(source),
		Length: uint64(kv.page), Remote: engine.Remote{Segment: to}})
	require.NoError(t, err)
	require.Equal(t, dispatch.Completed, ended(t, writer, batch).State)
	same(t, old, 1, 0)
	require.Equal(t, make([]byte, kv.page), kv.bytes)
}

// Transfers under way when the pages change end by the fence of the remap, or have ended before. Nothing lands in the
// new pages but by those that begin afterwards.
func TestRemapFencesWhatBeganBefore(t *testing.T) {
	for _, w := range remapWorlds() {
		t.Run(w.name, func(t *testing.T) {
			const size = 16 << 20
			pages := size / unix.Getpagesize()
			kv := newGrowable(t, pages)
			kv.back(t, 0, pages)
			owner, writer := w.open(t, nil), w.open(t, nil)
			source := offeredShared(t, writer, size)
			fill(source, 1)
			id := offer(t, owner, kv.bytes, "kv")
			to := segment(t, writer, owner, "kv")
			for range 3 {
				var begun []dispatch.BatchID
				for range 4 {
					batch, err := writer.Move(&engine.Request{Terms: request.Terms{Op: transport.Write},
						Source: address(source), Length: size, Remote: engine.Remote{Segment: to}})
					require.NoError(t, err)
					begun = append(begun, batch)
				}
				kv.back(t, 0, pages)
				require.NoError(t, owner.RemapRegion(t.Context(), id, 0, size))
				clear(kv.bytes)
				for _, batch := range begun {
					if sum := ended(t, writer, batch); sum.State != dispatch.Completed {
						require.Equal(t, errs.AddressNotRegistered, sum.Err.Code, "%v", sum.Err)
					}
				}
				require.Equal(t, make([]byte, size), kv.bytes, "bytes of before landed in the new pages")
			}
		})
	}
}

func TestRemapsThatMakeNoSense(t *testing.T) {
	e := openAll(t, nil)
	b := memory(t, 8192)
	id := offer(t, e, b, "kv")
	own, _, err := e.Allocate(engine.Memory{Size: 8192, Location: "cpu:0"})
	require.NoError(t, err)
	for name, c := range map[string]struct {
		id             mem.RegionID
		offset, length uint64
		code           errs.Code
	}{
		"nothing":            {id, 0, 0, errs.InvalidArgument},
		"beyond the end":     {id, 4096, 4097, errs.InvalidArgument},
		"wraps around":       {id, 4096, 1<<64 - 4096, errs.InvalidArgument},
		"memory of tent":     {own, 0, 4096, errs.InvalidArgument},
		"a region not there": {id + 1<<32, 0, 4096, errs.AddressNotRegistered},
	} {
		err := e.RemapRegion(t.Context(), c.id, c.offset, c.length)
		require.Equal(t, c.code, errs.CodeOf(err), "%s: %v", name, err)
	}
	require.NoError(t, e.CloseRegion(t.Context(), id))
	require.Error(t, e.RemapRegion(t.Context(), id, 0, 4096))
}

// Memory of another device behind a region of one is another region.
func TestRemapKnowsTheDevice(t *testing.T) {
	gpu := devicetest.New(t, mem.Cuda, 2)
	page := uint64(unix.Getpagesize())
	sides, err := gpu.AllocateSide(page, 0, 1)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, gpu.Free(sides, 2*page)) })
	e := openWithGPU(t, sim.NewInline(1), gpu)
	id, err := e.Register(engine.Memory{Addr: sides, Size: page, Location: "*"})
	require.NoError(t, err)
	require.NoError(t, e.RemapRegion(t.Context(), id, 0, page))
	gpu.Move(sides, 1)
	err = e.RemapRegion(t.Context(), id, 0, page)
	require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, "memory of cuda:1 is behind a region of cuda:0")
}
