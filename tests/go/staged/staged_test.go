//go:build cgo

// Package staged runs engines in two processes with an emulated library of devices. No transport carries its
// memory to the other process, so it goes through memory of the host. Memory of devices is PROT_NONE for the processor:
// any touch of it by a transport of the host ends the process.
package staged

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/device"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/fakes/ascend"
	fake "github.com/tent-engine/tent/tests/fakes/cuda"
	"github.com/tent-engine/tent/tests/forked"
	"github.com/tent-engine/tent/transports/all"
	"github.com/tent-engine/tent/transports/ascend/acl"
	"github.com/tent-engine/tent/transports/cuda/driver"
)

const (
	patience = 20 * time.Second // bounds every wait; a longer one hangs
	size     = 3<<20 + 777
	band     = 4096 // around a region: it stays as it was
)

func TestMain(m *testing.M) {
	if forked.RunChild(new(Actor)) {
		return
	}
	os.Exit(m.Run())
}

// settings are those of every engine here: pieces are small and slots few, so that transfers wait for slots. Rails are
// suspected late: tests look at routes and failovers, and a busy machine must not change them.
var settings = map[string]any{"transports/nvlink/enable": true, "transports/shm/enable": false,
	"transports/nvlink/trust": "none", "transports/nvlink/slice_bytes": 1 << 20, "staging/slots": 3,
	"staging/slot_bytes": 64 << 10, "rail_suspect_ms": 900}

func openEngine(more map[string]any) (*engine.Engine, error) {
	return openOver(all.Factories(), more)
}

func openOver(factories []transport.Factory, more map[string]any) (*engine.Engine, error) {
	c, err := config.Load(config.Options{Transports: all.Transports()}, settings, more)
	if err != nil {
		return nil, err
	}
	return engine.Open(context.Background(), engine.Options{Config: c,
		Transports: engine.Plugs(factories...), Platforms: all.Platforms()})
}

// pattern depends on the position and a seed.
func pattern(seed uint64, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte((uint64(i) + seed) * 0x9e37_79b9_7f4a_7c15 >> 56)
	}
	return b
}

// memory is a region of an engine, and the bands around it.
type memory struct {
	at  uintptr // of the first band
	by  owner
	own []byte // memory of the host; nil: of a device
}

// owner is the emulated library of devices, and the platform over it.
type owner struct {
	bare interface {
		Peek(into []byte, at uintptr) error
		Poke(at uintptr, from []byte) error
	}
	device.Platform
}

// owns returns the library that the test gave to this process.
func owns() (o owner, err error) {
	if os.Getenv("TENT_LIBASCENDCL") != "" {
		o.Platform = acl.Platform{}
		o.bare, err = ascend.Load()
		return o, err
	}
	o.Platform = driver.Platform{}
	o.bare, err = fake.Load()
	return o, err
}

// fill allocates memory of a device, or of the host for -1, and fills all of it with a pattern.
func fill(device int, seed uint64) (m memory, err error) {
	if m.by, err = owns(); err != nil {
		return m, err
	}
	if device >= 0 {
		m.at, err = m.by.Allocate(device, size+2*band)
	} else {
		// Outside of Go's heap: the race detector does not see the order that a socket makes.
		m.own, err = unix.Mmap(-1, 0, size+2*band, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		m.at = mem.AddressOf(m.own)
	}
	if err != nil {
		return m, err
	}
	return m, m.poke(0, pattern(seed, size+2*band))
}

// give registers filled memory, for all peers if it has a name.
func give(e *engine.Engine, device int, name string, seed uint64) (m memory, id mem.RegionID, err error) {
	if m, err = fill(device, seed); err != nil {
		return m, 0, err
	}
	permission := mem.LocalReadWrite
	if name != "" {
		permission = mem.GlobalReadWrite
	}
	id, err = e.Register(engine.Memory{Addr: m.at + band, Size: size, Name: name, Location: mem.Wildcard,
		Permission: permission})
	return m, id, err
}

func (m memory) poke(offset int, from []byte) error {
	if m.own != nil {
		copy(m.own[offset:], from)
		return nil
	}
	return m.by.bare.Poke(m.at+uintptr(offset), from)
}

// all returns the bytes of the region and its bands.
func (m memory) all() ([]byte, error) {
	b := make([]byte, size+2*band)
	if m.own != nil {
		copy(b, m.own)
		return b, nil
	}
	return b, m.by.bare.Peek(b, m.at)
}

// Actor is the child: an engine that owns a region.
type Actor struct {
	engine *engine.Engine
	line   *line
	memory memory
	region mem.RegionID
	peer   engine.SegmentID
	batch  dispatch.BatchID
}

// Open starts the engine.
func (a *Actor) Open(more map[string]any, address *string) (err error) {
	if a.engine, a.line, err = overLine(more); err == nil {
		*address = a.engine.Address()
	}
	return err
}

// Own registers memory that the peer knows as "cache".
func (a *Actor) Own(device int, _ *forked.Nothing) (err error) {
	a.memory, a.region, err = give(a.engine, device, "cache", 1)
	return err
}

// Peek returns all bytes of the memory.
func (a *Actor) Peek(_ forked.Nothing, b *[]byte) (err error) {
	*b, err = a.memory.all()
	return err
}

// Poke fills all bytes of the memory with a pattern.
func (a *Actor) Poke(seed uint64, _ *forked.Nothing) error {
	return a.memory.poke(0, pattern(seed, size+2*band))
}

// Metrics returns those of the engine.
func (a *Actor) Metrics(_ forked.Nothing, m *map[string]float64) error {
	*m = a.engine.Metrics()
	return nil
}

// child is another process with an engine.
type child struct {
	*forked.Child
	t       *testing.T
	address string
}

func start(t *testing.T, device int) *child { return startWith(t, device, map[string]any{}) }

func startWith(t *testing.T, device int, more map[string]any) *child {
	c, err := forked.Start()
	require.NoError(t, err)
	p := &child{Child: c, t: t}
	t.Cleanup(p.Kill)
	p.do("Open", more, &p.address)
	p.do("Own", device, &forked.Nothing{})
	return p
}

func (c *child) do(method string, arg, result any) {
	require.NoError(c.t, c.Call("Actor."+method, arg, result))
}

func (c *child) bytes() (b []byte) {
	c.do("Peek", forked.Nothing{}, &b)
	return b
}

// here opens the engine of this process, and memory for it.
func here(t *testing.T, device int) (*engine.Engine, memory) { return hereWith(t, device, nil) }

func hereWith(t *testing.T, device int, more map[string]any) (*engine.Engine, memory) {
	e, err := openEngine(more)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.Empty(t, e.Close(patience, true), "the engine could not take everything back")
		require.NoError(t, e.Forget())
	})
	m, id, err := give(e, device, "", 2)
	require.NoError(t, err)
	t.Cleanup(func() { release(t, e, m, id) })
	return e, m
}

// release closes a region and frees its memory.
func release(t *testing.T, e *engine.Engine, m memory, id mem.RegionID) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(t, e.CloseRegion(ctx, id))
	if m.own != nil {
		require.NoError(t, unix.Munmap(m.own))
		return
	}
	require.NoError(t, m.by.Free(m.at, size+2*band))
}

func open(t *testing.T, e *engine.Engine, address string) engine.SegmentID {
	return openAt(t, e, address+"/cache")
}

func openAt(t *testing.T, e *engine.Engine, name string) engine.SegmentID {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	at, err := e.OpenSegment(ctx, name)
	require.NoError(t, err)
	return at
}

// finish waits for a batch and returns how it ended.
func finish(t *testing.T, e *engine.Engine, id dispatch.BatchID) dispatch.Summary {
	require.True(t, e.Wait(id, patience).Terminal(), "no end within %v", patience)
	s, err := e.Summary(id)
	require.NoError(t, err)
	require.NoError(t, e.FreeBatch(id))
	return s
}

func request(op transport.Op, m memory, to engine.SegmentID, offset, n uint64) *engine.Request {
	return &engine.Request{Terms: engine.Terms{Op: op}, Source: m.at + band + uintptr(offset),
		Remote: engine.Remote{Segment: to, Offset: offset}, Length: n}
}

// Bytes of a device reach another process and come back. Memory of one end may be the host's. Nothing around the bytes
// changes.
func TestBytesCrossThroughHostMemory(t *testing.T) {
	for name, c := range map[string]struct {
		here, there int
		taken, how  string
	}{
		"device to host": {0, -1, "tcp", "staged through host memory: 3 slots of 64 KiB, copied by nvlink"},
		"device to device": {0, 1, "delegate", "staged through host memory: 8 slots of 64 KiB, copied by nvlink; " +
			"the peer's engine moves the bytes between there and its device"},
		"host to device": {-1, 1, "delegate", "staged through host memory: 8 slots of 64 KiB, copied by tcp; " +
			"the peer's engine moves the bytes between there and its device"},
	} {
		t.Run(name, func(t *testing.T) {
			chaos := fake.Settings{"DELAY_US": "20", "SEED": fmt.Sprint(rand.Int32())}
			t.Logf("settings %v", chaos)
			fake.Run(t, fake.Driver{}, chaos, func(t *testing.T, _ *fake.Loaded) {
				p := start(t, c.there)
				e, m := here(t, c.here)
				to := open(t, e, p.address)
				crosses(t, e, m, p.bytes, to)
				x, err := e.Explain(request(transport.Write, m, to, 0, size))
				require.NoError(t, err)
				require.Equal(t, c.taken, x.Taken, "%+v", x)
				require.Equal(t, 2, x.Routes[0].Hops)
				require.Equal(t, c.how, x.Routes[0].Staged)
			})
		})
	}
}

// crosses moves ranges both ways, and looks at every byte of both memories after each.
func crosses(t *testing.T, e *engine.Engine, m memory, far func() []byte, to engine.SegmentID) {
	there, mine := pattern(1, size+2*band), pattern(2, size+2*band)
	require.Equal(t, there, far())
	for range 8 {
		n := 1 + rand.Uint64N(size)
		offset := rand.Uint64N(size - n + 1)
		op := transport.Op(rand.IntN(2))
		id, err := e.Move(request(op, m, to, offset, n))
		require.NoError(t, err)
		s := finish(t, e, id)
		require.Equal(t, dispatch.Completed, s.State, "%v", s.Err)
		require.Equal(t, n, s.Bytes)
		first, last := band+offset, band+offset+n
		if op == transport.Write {
			copy(there[first:last], mine[first:last])
		} else {
			copy(mine[first:last], there[first:last])
		}
		require.Equal(t, there, far(), "%v of %d bytes at %d", op, n, offset)
		now, err := m.all()
		require.NoError(t, err)
		require.Equal(t, mine, now, "%v of %d bytes at %d", op, n, offset)
	}
}

// Pages that lie apart are gathered and scattered at both ends, in an order of their own. Nothing between them changes.
func TestPagesCrossThroughHostMemory(t *testing.T) {
	const page, stride, count = 3000, 8192, 200
	for name, device := range map[string]int{"to a host": -1, "to a device": 1} {
		t.Run(name, func(t *testing.T) {
			fake.Run(t, fake.Driver{}, nil, func(t *testing.T, _ *fake.Loaded) {
				c := start(t, device)
				e, m := here(t, 0)
				to := open(t, e, c.address)
				info, err := e.Segment(t.Context(), to, false)
				require.NoError(t, err)
				layout := engine.Layout{PageBytes: page, Stride: stride}
				own, _, err := e.NewGrid(engine.OwnMemory, []engine.GridRegion{{Addr: m.at + band, Size: size}}, layout)
				require.NoError(t, err)
				far, _, err := e.NewGrid(to, []engine.GridRegion{{Region: info.Regions[0].ID, Size: size}}, layout)
				require.NoError(t, err)
				from, into := rand.Perm(count), rand.Perm(count)
				there, mine := pattern(1, size+2*band), pattern(2, size+2*band)
				for _, op := range []transport.Op{transport.Write, transport.Read} {
					src, dst := make([]int64, count), make([]int64, count)
					for i := range src {
						src[i], dst[i] = int64(from[i]), int64(into[(i+int(op))%count])
						ours := mine[band+from[i]*stride:][:page]
						theirs := there[band+into[(i+int(op))%count]*stride:][:page]
						if op == transport.Write {
							copy(theirs, ours)
						} else {
							copy(ours, theirs)
						}
					}
					id, err := e.Pages(engine.Terms{Op: op}, &engine.Pages{Local: own, Remote: far, N: count,
						Src: engine.IndexesOf(src), Dst: engine.IndexesOf(dst)}, nil)
					require.NoError(t, err)
					s := finish(t, e, id)
					require.Equal(t, dispatch.Completed, s.State, "%v", s.Err)
					require.Equal(t, there, c.bytes(), "%v", op)
					now, err := m.all()
					require.NoError(t, err)
					require.Equal(t, mine, now, "%v", op)
				}
				awaitSlots(t, e)
			})
		})
	}
}

// Memory of a device goes to a file and comes back.
func TestBytesOfADeviceReachAFile(t *testing.T) {
	fake.Run(t, fake.Driver{}, nil, func(t *testing.T, _ *fake.Loaded) {
		e, m := here(t, 0)
		path := filepath.Join(t.TempDir(), "cache")
		file, err := e.OpenFile(t.Context(), path, engine.FileOptions{Create: true, Size: size})
		require.NoError(t, err)
		move := func(op transport.Op) {
			id, err := e.Move(&engine.Request{Terms: engine.Terms{Op: op}, Source: m.at + band,
				Remote: engine.Remote{Segment: file}, Length: size})
			require.NoError(t, err)
			s := finish(t, e, id)
			require.Equal(t, dispatch.Completed, s.State, "%v", s.Err)
		}
		mine := pattern(2, size+2*band)
		move(transport.Write)
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, mine[band:band+size], content)
		content = pattern(3, size)
		require.NoError(t, os.WriteFile(path, content, 0o600))
		move(transport.Read)
		copy(mine[band:], content)
		now, err := m.all()
		require.NoError(t, err)
		require.Equal(t, mine, now)
	})
}

// Memory of the host stands on no list of orders: it would be waited for.
func TestMemoryOfTheHostIsForTheOthers(t *testing.T) {
	fake.Run(t, fake.Driver{}, nil, func(t *testing.T, _ *fake.Loaded) {
		e, _ := here(t, 0)
		m, id, err := give(e, -1, "host", 1)
		require.NoError(t, err)
		s, err := e.Standing(id)
		require.NoError(t, err)
		require.Contains(t, s.On, "tcp")
		require.NotContains(t, s.On, "delegate")
		release(t, e, m, id)
	})
}

// Without staging the request is refused, and the reasons are those of the transports.
func TestStagingCanBeSwitchedOff(t *testing.T) {
	fake.Run(t, fake.Driver{}, nil, func(t *testing.T, _ *fake.Loaded) {
		settings["staging/enable"] = false
		c := start(t, -1)
		e, m := here(t, 0)
		to := open(t, e, c.address)
		_, err := e.Move(&engine.Request{Source: m.at + band, Remote: engine.Remote{Segment: to}, Length: 4096})
		require.Equal(t, errs.NoRoute, errs.CodeOf(err), "%v", err)
		require.ErrorContains(t, err, "tcp: it does not move bytes between cuda and cpu")
	})
}
