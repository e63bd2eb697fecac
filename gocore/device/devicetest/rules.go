package devicetest

import (
	"bytes"
	"math/rand"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/device"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
)

// Run checks that a platform keeps its contract. It needs one device that works, and a megabyte of it.
func Run(t *testing.T, p device.Platform) {
	require.NoError(t, p.Check())
	list, err := p.Devices()
	require.NoError(t, err)
	require.NotEmpty(t, list, "Check says that there are devices")
	for name, rule := range rules {
		t.Run(name, func(t *testing.T) { rule(t, p) })
	}
}

var rules = map[string]func(t *testing.T, p device.Platform){
	"MemoryIsLocatedWholeAndInPart": testLocates, "MemoryOfTheHostIsNone": testHost,
	"AllocatedMemoryIsZeroed": testZeroed, "CopiesReachTheirBytesOnly": testCopies,
	"AnotherAllocationHasAnotherName": testNames, "OrdinalsThatAreNotThere": testOrdinals,
	"ExportsHoldTheRange": testExports, "GatesOpenBehindTheirStream": testGates,
	"LatchesHoldTheirStream": testLatches,
}

// taken is an allocation that the end of the test frees.
func taken(t *testing.T, p device.Platform, size uint64) uintptr {
	addr, err := p.Allocate(0, size)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Free(addr, size)) })
	return addr
}

// ofHost is memory of the host outside of Go's heap, and its address.
func ofHost(t *testing.T, size int) ([]byte, uintptr) {
	at, err := unix.MmapPtr(-1, 0, nil, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.MunmapPtr(at, uintptr(size))) })
	return mem.Bytes(uintptr(at), size), uintptr(at)
}

func testLocates(t *testing.T, p device.Platform) {
	const size = 1 << 16
	addr := taken(t, p, size)
	for _, part := range [][2]uint64{{0, size}, {1, size - 1}, {size / 2, 1}, {size - 1, 1}} {
		spans, err := p.Locate(addr+uintptr(part[0]), part[1])
		require.NoError(t, err)
		require.Len(t, spans, 1)
		require.Equal(t, addr+uintptr(part[0]), spans[0].Addr)
		require.Equal(t, part[1], spans[0].Size, "no byte that was not asked for")
		require.Zero(t, spans[0].Ordinal)
	}
}

func testHost(t *testing.T, p device.Platform) {
	_, at := ofHost(t, 4096)
	spans, err := p.Locate(at, 4096)
	require.NoError(t, err)
	require.Empty(t, spans)
}

func testZeroed(t *testing.T, p device.Platform) {
	const size = 100_000
	got, at := ofHost(t, size)
	for range 3 { // a platform may give the same pages again
		addr, err := p.Allocate(0, size)
		require.NoError(t, err)
		copy(got, bytes.Repeat([]byte{0xff}, size))
		require.NoError(t, p.Copy(at, addr, size))
		require.True(t, bytes.Equal(make([]byte, size), got), "not all bytes are 0")
		copy(got, bytes.Repeat([]byte{0xee}, size))
		require.NoError(t, p.Copy(addr, at, size))
		require.NoError(t, p.Free(addr, size))
	}
}

func testCopies(t *testing.T, p device.Platform) {
	const size = 1 << 16
	seed := rand.Int63()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewSource(seed))
	a, b := taken(t, p, size), taken(t, p, size)
	staged, at := ofHost(t, size)
	want := [2][]byte{make([]byte, size), make([]byte, size)}
	for range 50 {
		n := 1 + random.Intn(size/2)
		from, to := random.Intn(size-n+1), random.Intn(size-n+1)
		_, _ = random.Read(staged[:n])
		require.NoError(t, p.Copy(a+uintptr(from), at, uint64(n)), "host to device")
		copy(want[0][from:], staged[:n])
		require.NoError(t, p.Copy(b+uintptr(to), a+uintptr(from), uint64(n)), "device to device")
		copy(want[1][to:to+n], want[0][from:])
	}
	for i, addr := range []uintptr{a, b} {
		require.NoError(t, p.Copy(at, addr, size), "device to host")
		require.True(t, bytes.Equal(want[i], staged), "buffer %d has other bytes", i)
	}
}

func testNames(t *testing.T, p device.Platform) {
	seen := map[uint64]bool{}
	for range 10 { // the address may be the same each time
		addr, err := p.Allocate(0, 4096)
		require.NoError(t, err)
		spans, err := p.Locate(addr, 4096)
		require.NoError(t, err)
		require.Len(t, spans, 1)
		if name := spans[0].Allocation; name != 0 {
			require.False(t, seen[name], "allocation %d is named twice", name)
			seen[name] = true
		}
		require.NoError(t, p.Free(addr, 4096))
		spans, err = p.Locate(addr, 4096)
		require.NoError(t, err)
		require.Empty(t, spans, "it was freed")
	}
}

func testOrdinals(t *testing.T, p device.Platform) {
	list, err := p.Devices()
	require.NoError(t, err)
	for _, ordinal := range []int{len(list), -1} {
		_, err = p.Allocate(ordinal, 4096)
		require.Equal(t, errs.DeviceNotFound, errs.CodeOf(err), "device %d: %v", ordinal, err)
	}
}

func testExports(t *testing.T, p device.Platform) {
	exporter, is := p.(device.Exporter)
	if !is {
		t.Skip("no other driver can import this memory")
	}
	const size = 1 << 16
	addr := taken(t, p, size)
	want, at := ofHost(t, size)
	for i := range want {
		want[i] = byte(i ^ i>>8)
	}
	require.NoError(t, p.Copy(addr, at, size))
	for _, part := range [][2]uint64{{0, size}, {4096, 8192}, {100, 5000}} {
		got, err := exporter.Export(addr+uintptr(part[0]), part[1])
		require.NoError(t, err)
		flags, err := unix.FcntlInt(uintptr(got.Fd), unix.F_GETFD, 0)
		require.NoError(t, err)
		require.NotZero(t, flags&unix.FD_CLOEXEC, "a program that is started has it, too")
		// An emulated driver gives a file, which begins at its position. No processor reads a driver's own.
		if begin, err := unix.Seek(got.Fd, 0, unix.SEEK_CUR); err == nil {
			bytesOf := make([]byte, part[1])
			n, err := unix.Pread(got.Fd, bytesOf, begin+int64(got.Offset))
			require.NoError(t, err)
			require.EqualValues(t, part[1], n)
			require.True(t, bytes.Equal(want[part[0]:part[0]+part[1]], bytesOf), "other bytes")
		}
		require.NoError(t, unix.Close(got.Fd))
	}
	_, err := exporter.Export(at, 4096)
	require.Error(t, err, "memory of the host")
}

// queues are those of the platform without hardware.
type queues interface {
	Enqueue(handle uintptr)
	Finish(handle uintptr)
}

func testGates(t *testing.T, p device.Platform) {
	streams, is := p.(device.Streams)
	if !is {
		t.Skip("it has no streams")
	}
	g, err := streams.Gate(0)
	require.NoError(t, err)
	defer g.Close()
	open, err := g.Open()
	require.NoError(t, err)
	if fake, is := p.(queues); is {
		require.True(t, open, "nothing was enqueued")
		fake.Enqueue(7)
		before, err := streams.Gate(7)
		require.NoError(t, err)
		defer before.Close()
		fake.Enqueue(7)
		open, err = before.Open()
		require.NoError(t, err)
		require.False(t, open)
		fake.Finish(7)
		open, err = before.Open()
		require.NoError(t, err)
		require.True(t, open, "work that was enqueued behind the gate is not waited for")
	}
}

// A latch holds the work that enters its stream from then on, until it is released: no work of before, and no other
// stream.
func testLatches(t *testing.T, p device.Platform) {
	streams, is := p.(device.Streams)
	if !is {
		t.Skip("it has no streams")
	}
	addr := taken(t, p, 4096) // drivers free memory behind all streams: at the end, when no latch holds one
	_, at := ofHost(t, 4096)
	const stream = 1<<2 | 1 // the default stream of the first device, see device.SplitStream
	gate := func() func() bool {
		g, err := streams.Gate(stream)
		require.NoError(t, err)
		t.Cleanup(g.Close)
		return func() bool {
			open, err := g.Open()
			require.NoError(t, err)
			return open
		}
	}
	hold := func() (release func()) {
		l, err := streams.Hold(stream)
		require.NoError(t, err)
		release = sync.OnceFunc(func() { l.Release(1) })
		t.Cleanup(func() { release(); l.Close() })
		return release
	}
	opens := func(open func() bool, which string) {
		require.Eventually(t, open, 10*time.Second, time.Millisecond, which)
	}
	before, first := gate(), hold()
	between, second := gate(), hold()
	behind := gate()
	opens(before, "it waits for no work that comes later")
	for range 20 { // by another stream, and so a device has had the time to go on with this one
		require.NoError(t, p.Copy(addr, at, 4096))
		require.False(t, between() || behind(), "the stream has not waited")
	}
	first()
	opens(between, "the latch was released")
	for range 20 {
		require.NoError(t, p.Copy(at, addr, 4096))
		require.False(t, behind(), "one latch holds the stream still")
	}
	second()
	opens(behind, "both were released")
}
