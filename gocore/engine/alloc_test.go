package engine

import (
	"fmt"
	"log/slog"
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/tcp"
)

// machine is a kernel that has some bytes left.
func machine(left *uint64) func(path string) ([]byte, error) {
	return func(path string) ([]byte, error) {
		if path != "/proc/meminfo" {
			return nil, os.ErrNotExist
		}
		return fmt.Appendf(nil, "MemAvailable: %d kB\n", *left>>10), nil
	}
}

// fresh is memory that nobody has touched: of a memfd, or of nothing.
func fresh(t *testing.T, size int, shared bool) mem.Region {
	t.Helper()
	fd, kind := -1, unix.MAP_PRIVATE|unix.MAP_ANON
	if shared {
		var err error
		fd, err = unix.MemfdCreate("tent-test", unix.MFD_CLOEXEC)
		require.NoError(t, err)
		t.Cleanup(func() { _ = unix.Close(fd) })
		require.NoError(t, unix.Ftruncate(fd, int64(size)))
		kind = unix.MAP_SHARED
	}
	raw, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, kind)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Munmap(raw) })
	_ = unix.Madvise(raw, unix.MADV_NOHUGEPAGE)
	return mem.Region{Addr: uintptr(unsafe.Pointer(&raw[0])), Size: uint64(size), Fd: fd}
}

// TestMemoryThatNobodyTouchedYetIsNotFree counts the promises of earlier calls until they show in the kernel's numbers.
func TestMemoryThatNobodyTouchedYetIsNotFree(t *testing.T) {
	for _, shared := range []bool{false, true} {
		left := uint64(100 << 20)
		var a allocations
		a.init()
		a.kernel = machine(&left)
		err := a.promise(left + 1)
		require.NotNil(t, err)
		require.Equal(t, errs.OutOfMemory, err.Code)
		require.Contains(t, err.Error(), fmt.Sprint(left+1), "the bytes that are wanted")
		require.Contains(t, err.Error(), fmt.Sprint(left), "the bytes that are there")
		require.Nil(t, a.promise(60<<20))
		require.NotNil(t, a.promise(60<<20), "a call under way has them")
		a.settle(60 << 20)
		require.Nil(t, a.promise(60<<20))
		a.settle(60 << 20)
		r := fresh(t, 60<<20, shared)
		a.byID[1] = &region{Region: r}
		err = a.promise(60 << 20)
		require.NotNil(t, err, "they are promised")
		require.Contains(t, err.Error(), fmt.Sprintf("%d of those", 60<<20))
		require.Nil(t, a.populate(r.Addr, 30<<20, false, goOn))
		require.EqualValues(t, 30<<20, owed(&r), "shared %v", shared)
		require.Nil(t, a.promise(60<<20), "half of them count in the kernel's number now")
	}
}

// A name that is in use is refused before memory is looked for, and before pages are made for it.
func TestMemoryUnderANameInUseIsNotMade(t *testing.T) {
	w := newWorkshop(t, "hand")
	w.region("kv")
	w.allocations.kernel = func(string) ([]byte, error) {
		t.Error("free memory was looked for")
		return nil, nil
	}
	_, _, err := w.Allocate(Memory{Size: lookFrom, Name: "kv", Location: "cpu:0", Prefault: true})
	require.Equal(t, errs.InvalidArgument, errs.CodeOf(err))
	require.ErrorContains(t, err, "in use")
}

func goOn() error { return nil }

// A close stops it too: the memory of a call that was interrupted is not wanted any more.
func TestPrefaultStopsWhereItsEngineCloses(t *testing.T) {
	var a allocations
	a.init()
	r := fresh(t, 3*populateBytes, true)
	steps := 0
	err := a.populate(r.Addr, r.Size, false, func() error {
		if steps++; steps > 2 {
			return closedError()
		}
		return nil
	})
	require.Equal(t, errs.EngineClosed, errs.From("test", err).Code)
	require.EqualValues(t, populateBytes, owed(&r))
}

func TestPrefaultStopsWhereThereIsNoRoom(t *testing.T) {
	left := uint64(1 << 40)
	looks := 0
	var a allocations
	a.init()
	a.kernel = func(path string) ([]byte, error) {
		if path == "/proc/meminfo" {
			if looks++; looks == 2 {
				left = populateBytes
			}
		}
		return machine(&left)(path)
	}
	r := fresh(t, 3*populateBytes, true)
	err := a.populate(r.Addr, r.Size, false, goOn)
	require.NotNil(t, err)
	require.Equal(t, errs.OutOfMemory, errs.From("test", err).Code)
	require.Contains(t, err.Error(), fmt.Sprintf("%d bytes of %d are there, and only %d are left", populateBytes,
		3*populateBytes, populateBytes))
	require.EqualValues(t, 2*populateBytes, owed(&r), "nothing was touched behind the first step")
}

// A slip of the unit asks for more than any machine has. It is the same error as for a little too much.
func TestTheGreatestSizesAreOutOfMemoryToo(t *testing.T) {
	c, err := config.Load(config.Options{Transports: config.WithRails(tcp.Name)}, nil)
	require.NoError(t, err)
	plugs := []Plug{{Factory: tcp.Factory{}, Settings: tcp.Settings{}}}
	e, err := Open(t.Context(), Options{Config: c, Transports: plugs})
	require.NoError(t, err)
	defer func() { require.Empty(t, e.Close(patience, true)) }()
	for _, size := range []uint64{1 << 42, 1<<46 + 1, 1<<63 - 1, 1<<64 - 1} {
		_, _, err := e.Allocate(Memory{Size: size, Location: "cpu:0"})
		require.Equal(t, errs.OutOfMemory, errs.From("test", err).Code, "%d bytes", size)
		require.ErrorContains(t, err, fmt.Sprintf("%d bytes are more than the ", size))
	}
}

// fullPlace is a transport that has no memory to give.
type fullPlace struct {
	transport.Transport
	code errs.Code
}

func (p fullPlace) Allocate(transport.Allocation) (mem.Region, error) {
	return mem.Region{}, errs.New(p.code, "test.allocate", "nothing is left")
}

func (fullPlace) Free(mem.Region) error { return nil }

func TestNoOtherMemoryReplacesThatOfAFullPlace(t *testing.T) {
	for code, replaced := range map[errs.Code]bool{errs.NotHere: true, errs.OutOfMemory: true, errs.NoSpace: false} {
		e := &Engine{log: slog.New(slog.DiscardHandler),
			ports: []*port{{name: "test", transport: fullPlace{code: code}}}}
		r, err := e.mapFor(Memory{Size: 4096, Location: "cpu:0"}, mem.Host, 0)
		require.Equal(t, replaced, err == nil, "%v", err)
		if !replaced {
			require.Equal(t, code, errs.CodeOf(err))
			continue
		}
		require.NoError(t, r.owner.Free(r.Region))
	}
}
