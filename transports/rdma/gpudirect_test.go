package rdma

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// buffer is memory of an accelerator as far as a NIC sees it. The NIC has the file alone, and the region's address
// leads to pages that nobody may touch. Bytes are looked at through a mapping of the file, with bands around it.
type buffer struct {
	fd     int
	bytes  []byte
	beyond []byte // no access: the address of the region
}

const (
	bufferSize = 256 << 10
	bufferBand = 4096
)

func newBuffer(t *testing.T) *buffer {
	t.Helper()
	fd, err := unix.MemfdCreate("buffer", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	require.NoError(t, unix.Ftruncate(fd, bufferSize+2*bufferBand))
	b := &buffer{fd: fd}
	b.bytes, err = unix.Mmap(fd, 0, bufferSize+2*bufferBand, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	b.beyond, err = unix.Mmap(-1, 0, bufferSize, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, unix.Munmap(b.bytes))
		require.NoError(t, unix.Munmap(b.beyond))
		require.NoError(t, unix.Close(fd))
	})
	return b
}

// region is the buffer with a descriptor of its own, which the caller of Register closes.
func (b *buffer) region() mem.Region {
	return mem.Region{Addr: mem.AddressOf(b.beyond), Size: bufferSize, Kind: mem.Cuda, Location: "cuda:0",
		Permission: mem.GlobalReadWrite, Fd: -1, DMABuf: &mem.DMABuf{Fd: b.fd, Offset: bufferBand}}
}

func (b *buffer) fill(tag byte) {
	for i := range b.bytes {
		b.bytes[i] = b.at(tag, i)
	}
}

func (b *buffer) at(tag byte, i int) byte { return byte(i) ^ byte(i>>8)*31 ^ byte(i>>16)*7 ^ tag }

// holds requires that a range has one tag, as the other buffer has it, and all else another.
func (b *buffer) holds(t *testing.T, inside byte, first, length int, outside byte) {
	t.Helper()
	for i, got := range b.bytes {
		tag := outside
		if at := i - bufferBand; at >= first && at < first+length {
			tag = inside
		}
		if got != b.at(tag, i) {
			require.FailNow(t, "a wrong byte", "at %d: %#x, not %#x", i-bufferBand, got, b.at(tag, i))
		}
	}
}

// onDevices is a rig with memory of a device at both ends.
type onDevices struct {
	*rig
	here, there *buffer
	local       transport.LocalKey
	remote      transport.RemoteKey
}

func newOnDevices(t *testing.T, change func(*Settings)) *onDevices {
	t.Helper()
	d := &onDevices{rig: newRig(t, change), here: newBuffer(t), there: newBuffer(t)}
	d.here.fill(1)
	d.there.fill(2)
	var err error
	d.local, _, err = d.a.Transport.Register(t.Context(), d.here.region())
	require.NoError(t, err)
	_, descriptor, err := d.b.Transport.Register(t.Context(), d.there.region())
	require.NoError(t, err)
	d.remote, err = d.a.Transport.Import(d.c.Link, descriptor)
	require.NoError(t, err)
	return d
}

func (d *onDevices) slice(t *testing.T, op transport.Op, length uint64) *transport.Slice {
	s := d.c.Slice(op, d.c.Rail(t), d.rig.local, 0, d.rig.remote, 0, length)
	s.LocalKey, s.Local, s.RemoteKey, s.Remote = d.local, mem.AddressOf(d.here.beyond)+512, d.remote, 512
	return s
}

// TestMemoryOfDevicesMovesByItsBuffer: no byte of it is touched by the processor, however small the WRITE. WRITEs are
// flushed, also where those of the host are not.
func TestMemoryOfDevicesMovesByItsBuffer(t *testing.T) {
	for _, cut := range []uint64{64 << 10, 2 << 30} { // in several registrations, each at its place in the buffer
		t.Run(fmt.Sprint(cut), func(t *testing.T) { movesByItsBuffer(t, cut) })
	}
}

func movesByItsBuffer(t *testing.T, cut uint64) {
	d := newOnDevices(t, func(s *Settings) { s.Relaxed, s.Cut = new(0), cut })
	flushes := d.a.Transport.(*Transport).Flushes()
	for _, length := range []uint64{8, 200 << 10} {
		d.c.Must(t, d.slice(t, transport.Write, length))
		d.there.holds(t, 1, 512, int(length), 2)
	}
	require.Zero(t, d.f.Control(t, "inlined"))
	if cut > 1<<20 {
		require.EqualValues(t, 2, d.a.Transport.(*Transport).Flushes()-flushes, "one for each registration")
	}
	d.there.fill(3)
	d.c.Must(t, d.slice(t, transport.Read, 100<<10))
	d.here.holds(t, 3, 512, 100<<10, 1)
	require.NoError(t, d.a.Transport.Deregister(t.Context(), d.local))
}

// TestAFlushReachesEachMemoryOfItsPosting posts WRITEs to memory of devices and of the host, in any order. They are
// acknowledged and not placed before a READ of the same memory comes.
func TestAFlushReachesEachMemoryOfItsPosting(t *testing.T) {
	const page, most = 4096, 12
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for relaxed := range 2 { // else WRITEs to the host are not flushed
		d := newOnDevices(t, func(s *Settings) { s.Lanes, s.Relaxed = 1, new(relaxed) })
		buffers, keys := []*buffer{d.there, newBuffer(t), newBuffer(t)}, []transport.RemoteKey{d.remote}
		for _, b := range buffers[1:] {
			_, descriptor, err := d.b.Transport.Register(t.Context(), b.region())
			require.NoError(t, err)
			key, err := d.a.Transport.Import(d.c.Link, descriptor)
			require.NoError(t, err)
			keys = append(keys, key)
		}
		sent, came := make([]byte, page), make([]byte, page)
		d.f.Control(t, "late %d", 60_000_000)
		for tag := range uint64(10) {
			d.rig.local.Fill(tag, 0, most*page)
			rail, flushes := d.c.Rail(t), d.a.Transport.(*Transport).Flushes()
			to, flushed := make([]int, 1+random.IntN(most)), map[int]bool{}
			list := make([]*transport.Slice, len(to))
			for i := range list {
				list[i] = d.rig.slice(t, rail, uint64(i)*page, page)
				if to[i] = random.IntN(len(buffers) + relaxed); to[i] < len(buffers) {
					list[i].RemoteKey = keys[to[i]]
				}
				flushed[to[i]] = true
			}
			d.c.Must(t, list...)
			for i, which := range to {
				at := i * page
				d.rig.local.Load(sent, uint64(at))
				if which < len(buffers) {
					copy(came, buffers[which].bytes[bufferBand+at:])
				} else {
					d.rig.remote.Load(came, uint64(at))
				}
				require.Equal(t, sent, came, "slice %d of %v", i, to)
			}
			require.EqualValues(t, len(flushed), d.a.Transport.(*Transport).Flushes()-flushes, "of %v", to)
		}
		d.f.Control(t, "late 0")
	}
}

// TestAREADEndsWhenTheDeviceSeesItsBytes: the NIC has placed them, and the device sees them behind a flush of its
// driver. One flush is enough for all READs that end together.
func TestAREADEndsWhenTheDeviceSeesItsBytes(t *testing.T) {
	d, late := newOnDevices(t, onOneLane), newBuffer(t)
	var flushes atomic.Int64
	var failed error
	region := late.region()
	region.Landing = &mem.Landing{Flush: func() error {
		flushes.Add(1)
		d.f.Control(t, "flush")
		return failed
	}}
	key, _, err := d.a.Transport.Register(t.Context(), region)
	require.NoError(t, err)
	d.there.fill(3)
	d.f.Control(t, "unseen %d", 60_000_000)
	reads := func() (list []*transport.Slice) {
		for i := range 4 {
			s := d.slice(t, transport.Read, 4096)
			s.LocalKey, s.Local, s.Remote = key, mem.AddressOf(late.beyond)+uintptr(i)*4096, uint64(i)*4096
			list = append(list, s)
		}
		return list
	}
	late.fill(4)
	d.c.Must(t, reads()...)
	late.holds(t, 3, 0, 4*4096, 4)
	require.Positive(t, flushes.Load())
	require.LessOrEqual(t, flushes.Load(), int64(4))

	failed = errs.New(errs.CudaError, "test", "the device is lost")
	list := reads()
	require.Equal(t, 4, d.c.Submit(list...))
	for _, end := range d.c.Wait(t, list...) {
		require.Equal(t, errs.CudaError, end.Err.Code)
		require.Equal(t, []any{errs.ScopeSlice, errs.SideLocal}, []any{end.Err.Scope, end.Err.Side})
		require.Zero(t, end.Bytes)
	}
	before := flushes.Load()
	write := d.slice(t, transport.Write, 4096)
	write.LocalKey, write.Local = key, mem.AddressOf(late.beyond)
	d.c.Must(t, write)
	require.Equal(t, before, flushes.Load(), "of a WRITE the peer's memory is flushed")

	region.Landing = &mem.Landing{Why: errs.New(errs.NotHere, "test", "its driver cannot flush")}
	_, _, err = d.a.Transport.Register(t.Context(), region)
	require.Equal(t, errs.NotHere, errs.CodeOf(err))
	require.ErrorContains(t, err, "its driver cannot flush")
	require.NoError(t, d.a.Transport.Deregister(t.Context(), key))
}

// TestANICThatDoesNotReachADeviceIsKeptApartFromIt, and goes on to serve memory of the host.
func TestANICThatDoesNotReachADeviceIsKeptApartFromIt(t *testing.T) {
	for status, side := range map[int]errs.Side{4: errs.SideLocal, 10: errs.SideRemote} {
		d := newOnDevices(t, nil)
		rail := d.c.Rails()[0]
		for range 2 {
			d.f.Control(t, "status %d", status)
			d.f.Control(t, "statuses 1")
			await(t, "a slice that fails", func() bool {
				s := d.slice(t, transport.Write, 64)
				s.Rail = rail
				return d.c.Submit(s) == 1 && d.c.Wait(t, s)[0].Err != nil
			})
		}
		s := d.slice(t, transport.Write, 64)
		s.Rail = rail
		require.Equal(t, 1, d.c.Submit(s))
		err := d.c.Wait(t, s)[0].Err
		require.Equal(t, []any{errs.NotHere, errs.ScopeRail, side}, []any{err.Code, err.Scope, err.Side}, "%v", err)
		await(t, "memory of the host", func() bool {
			s := d.rig.slice(t, rail, 0, 4096)
			return d.c.Submit(s) == 1 && d.c.Wait(t, s)[0].Err == nil
		})
		other := d.slice(t, transport.Write, 64)
		other.Rail = d.c.Rails()[1]
		d.c.Must(t, other)
		d.there.holds(t, 1, 512, 64, 2)
	}
}

// TestANICWhoseFlushFailsIsKeptApart: WRITEs of a NIC that does not reach a GPU are posted on PCI and acknowledged.
// Only their flush fails, by the fault of the slice alone or of the rail.
func TestANICWhoseFlushFailsIsKeptApart(t *testing.T) {
	for status, code := range map[int]errs.Code{10: errs.AddressNotRegistered, 11: errs.Lost} {
		d := newOnDevices(t, onOneLane)
		index := d.c.Rail(t).Index
		d.f.Control(t, "deaf %d", status)
		var ends []errs.Code
		await(t, "an end that keeps them apart", func() bool {
			s := d.slice(t, transport.Write, 64)
			s.Rail = d.railAt(index)
			if s.Rail.Generation == 0 || d.c.Submit(s) == 0 {
				return false
			}
			err := d.c.Wait(t, s)[0].Err
			require.NotNil(t, err)
			require.False(t, err.Collateral, "%v", err)
			require.Equal(t, errs.SideRemote, err.Side, "%v", err)
			ends = append(ends, err.Code)
			return err.Code == errs.NotHere
		})
		require.Equal(t, []errs.Code{code, code, errs.NotHere}, ends)
		await(t, "memory of the host over the same rail", func() bool {
			s := d.rig.slice(t, d.railAt(index), 0, 4096)
			return s.Rail.Generation != 0 && d.c.Submit(s) == 1 && d.c.Wait(t, s)[0].Err == nil
		})
		d.f.Control(t, "deaf 0")
	}
}

// railAt is the rail with an index, zero while it is down.
func (d *onDevices) railAt(index uint16) transport.Rail {
	for _, rail := range d.c.Rails() {
		if rail.Index == index {
			return rail
		}
	}
	return transport.Rail{}
}

// TestAPairComesBackAfterItsPause, which doubles.
func TestAPairComesBackAfterItsPause(t *testing.T) {
	s := &Settings{GDRThreshold: 2, GDRWindow: time.Second, GDRCooldown: time.Minute}
	var table reachTable
	key, now := reachKey{nic: 3, location: "cuda:1"}, clock.Time(1)
	for _, pause := range []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute, apartMost, apartMost} {
		require.False(t, table.struck(key, s, now))
		require.True(t, table.struck(key, s, now))
		require.True(t, table.apart(key, now.Add(pause-1)))
		require.False(t, table.apart(key, now.Add(pause)))
		require.False(t, table.apart(reachKey{nic: 3}, now))
		now = now.Add(pause)
	}
}

// Memory of a device that was exchanged is in another dma-buf. A NIC that does not take it leaves the region as it was,
// and the error says so.
func TestExchangedMemoryIsRegisteredByItsNewBuffer(t *testing.T) {
	d, fresh := newOnDevices(t, nil), newBuffer(t)
	fresh.fill(5)
	key, descriptor, err := d.b.Transport.Register(t.Context(), d.there.region())
	require.NoError(t, err)
	d.remote, err = d.a.Transport.Import(d.c.Link, descriptor)
	require.NoError(t, err)
	now := transport.Remapped{Length: bufferSize, DMABuf: &mem.DMABuf{Fd: fresh.fd, Offset: bufferBand}}
	owner := d.b.Transport.(*Transport)
	before := owner.regions.Lookup(key).DMABuf
	d.f.Control(t, "register %d", 2*len(owner.nics()))
	require.ErrorContains(t, owner.Remap(t.Context(), key, now), "no device takes the memory")
	d.f.Control(t, "register 0")
	require.Same(t, before, owner.regions.Lookup(key).DMABuf, "a NIC that comes later would register other pages")
	d.c.Must(t, d.slice(t, transport.Write, 4096))
	d.there.holds(t, 1, 512, 4096, 2)

	require.NoError(t, owner.Remap(t.Context(), key, now))
	d.remote, err = d.a.Transport.Import(d.c.Link, owner.describe(owner.regions.Lookup(key)))
	require.NoError(t, err)
	d.c.Must(t, d.slice(t, transport.Write, 8192))
	fresh.holds(t, 1, 512, 8192, 5)
	d.there.holds(t, 1, 512, 4096, 2)
	require.NoError(t, owner.Deregister(t.Context(), key))
}
