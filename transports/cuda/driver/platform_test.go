//go:build cgo

package driver_test

import (
	"bytes"
	"fmt"
	"math/rand"
	"os"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/device"
	"github.com/tent-engine/tent/gocore/device/devicetest"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	fake "github.com/tent-engine/tent/tests/fakes/cuda"
	"github.com/tent-engine/tent/transports/cuda/driver"
)

var platform driver.Platform

// Copies run late, on other threads, and old drivers lack symbols: the rules hold all the same.
func TestTheDriverKeepsTheRulesOfPlatforms(t *testing.T) {
	old := []string{"cuDeviceGetUuid_v2", "cuThreadExchangeStreamCaptureMode", "cuStreamIsCapturing"}
	for name, c := range map[string]struct {
		library  fake.Driver
		settings fake.Settings
	}{
		"at once":   {fake.Driver{}, nil},
		"late":      {fake.Driver{}, fake.Settings{"DELAY_US": "300", "SEED": fmt.Sprint(rand.Int31())}},
		"CUDA 12.4": {fake.Driver{Version: 12040, Absent: old}, nil},
		"one GPU":   {fake.Driver{}, fake.Settings{"DEVICES": "1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Logf("settings %v", c.settings)
			fake.Run(t, c.library, c.settings, func(t *testing.T, _ *fake.Loaded) { devicetest.Run(t, platform) })
		})
	}
}

// A machine without a driver, or with one that cannot be used, has a reason and no crash.
func TestAnUnusableDriverIsAReason(t *testing.T) {
	check := func(t *testing.T, says ...string) {
		err := platform.Check()
		require.Equal(t, errs.DeviceNotFound, errs.CodeOf(err), "%v", err)
		for _, part := range says {
			require.ErrorContains(t, err, part)
		}
		_, err = platform.Devices()
		require.Error(t, err)
		_, err = platform.Locate(4096, 4096)
		require.Error(t, err)
		_, err = platform.Allocate(0, 4096)
		require.Error(t, err)
		require.Error(t, platform.Copy(4096, 8192, 1))
		_, err = platform.Export(4096, 4096)
		require.Error(t, err)
		_, err = platform.Gate(0)
		require.Error(t, err)
	}
	t.Run("no library", func(t *testing.T) {
		fake.In(t, []string{"TENT_LIBCUDA=/nonexistent/libcuda.so.1"},
			func(t *testing.T) { check(t, "no driver", "/nonexistent/libcuda.so.1") })
	})
	t.Run("another library", func(t *testing.T) {
		fake.In(t, []string{"TENT_LIBCUDA=libm.so.6"},
			func(t *testing.T) { check(t, "lacks", "cuInit", "cuEventQuery") })
	})
	t.Run("too old", func(t *testing.T) {
		fake.Run(t, fake.Driver{Absent: []string{"cuMemAlloc_v2", "cuStreamGetCtx"}}, nil,
			func(t *testing.T, _ *fake.Loaded) { check(t, "too old", "cuMemAlloc_v2 cuStreamGetCtx") })
	})
	t.Run("no device", func(t *testing.T) {
		fake.Run(t, fake.Driver{}, fake.Settings{"DEVICES": "0"}, func(t *testing.T, _ *fake.Loaded) {
			check(t, "cuInit: no CUDA-capable device is detected (CUDA_ERROR_NO_DEVICE, 100)")
		})
	})
	t.Run("a driver that fails", func(t *testing.T) {
		fake.Run(t, fake.Driver{}, nil, func(t *testing.T, gpu *fake.Loaded) {
			gpu.Inject("cuInit", 1, 803, false)
			check(t, "an error that the driver has no text for (CUresult, 803)")
		})
	})
}

func TestDevicesAreNamedForEveryProcess(t *testing.T) {
	fake.Run(t, fake.Driver{}, fake.Settings{"DEVICES": "3"}, func(t *testing.T, _ *fake.Loaded) {
		list, err := platform.Devices()
		require.NoError(t, err)
		require.Len(t, list, 3)
		require.Equal(t, "face:1b:00.0", list[1].PCI, "as the kernel writes it")
		require.Equal(t, "Emulated GPU", list[1].Name)
		require.Equal(t, -1, list[1].Node, "the kernel does not know this device")
		require.NotEqual(t, list[0].UUID, list[1].UUID)
	})
}

// owned is memory of a test, by its parts: ordinal -1 is the host's.
type owned struct {
	addr uintptr
	size uint64
	on   int
}

// Random ranges over memory of all kinds are cut exactly where allocations end.
func TestLocateCutsAtAllocations(t *testing.T) {
	seed := rand.Int63()
	fake.Run(t, fake.Driver{}, nil, func(t *testing.T, gpu *fake.Loaded) {
		t.Logf("seed %d", seed)
		random := rand.New(rand.NewSource(seed))
		a, err := platform.Allocate(0, 1<<20)
		require.NoError(t, err)
		last := fake.Last()
		b, err := platform.Allocate(last, 3<<20)
		require.NoError(t, err)
		chunks := gpu.Chunks(last, 4, fake.PosixFd)
		require.NotZero(t, chunks)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		require.NoError(t, gpu.Enter(0))
		pinned := gpu.Pinned(1 << 20)
		require.NotZero(t, pinned)
		host, err := unix.MmapPtr(-1, 0, nil, 1<<20, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANON)
		require.NoError(t, err)
		all := []owned{{a, 1 << 20, 0}, {b, 3 << 20, last}, {chunks, 4 * fake.ChunkBytes, last},
			{pinned, 1 << 20, device.Pinned}, {uintptr(host), 1 << 20, device.Pinned}}
		for range 2000 {
			locates(t, random, all[random.Intn(len(all))], chunks)
		}
		require.NoError(t, gpu.Unpin(pinned))
		require.NoError(t, gpu.Leave())
		require.NoError(t, gpu.FreeChunks(chunks, 4))
		require.NoError(t, platform.Free(a, 1<<20))
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(platform.Free(a, 1<<20)), "freed twice")
		require.NoError(t, platform.Free(b, 3<<20))
		require.NoError(t, unix.MunmapPtr(host, 1<<20))
	})
}

// locates checks one random range inside of memory.
func locates(t *testing.T, random *rand.Rand, m owned, chunks uintptr) {
	from := uint64(random.Int63n(int64(m.size)))
	n := 1 + uint64(random.Int63n(int64(m.size-from)))
	spans, err := platform.Locate(m.addr+uintptr(from), n)
	require.NoError(t, err)
	if m.on == device.Pinned {
		require.Empty(t, spans)
		return
	}
	next, names := m.addr+uintptr(from), map[uint64]bool{}
	for _, s := range spans {
		require.Equal(t, next, s.Addr)
		require.Equal(t, m.on, s.Ordinal)
		next += uintptr(s.Size)
		names[s.Allocation] = true
	}
	require.Equal(t, m.addr+uintptr(from+n), next)
	parts := uint64(1)
	if m.addr == chunks {
		parts = (from+n-1)/fake.ChunkBytes - from/fake.ChunkBytes + 1
	}
	require.Len(t, names, int(parts), "one allocation a part")
}

// No other driver can hold pages that this one moves, and no other process maps them. That of a pool it does not map
// either, without a handle of the pool.
func TestManagedMemoryIsSaidToBe(t *testing.T) {
	fake.Run(t, fake.Driver{}, nil, func(t *testing.T, gpu *fake.Loaded) {
		require.NoError(t, platform.Check())
		require.NoError(t, onThread(t, gpu, 0, func() {
			const size = 1 << 20
			for addr, managed := range map[uintptr]bool{gpu.Managed(size): true, gpu.Pooled(size): false} {
				require.NotZero(t, addr)
				spans, err := platform.Locate(addr+4096, size-4096)
				require.NoError(t, err)
				require.Len(t, spans, 1)
				require.NotZero(t, spans[0].Allocation)
				spans[0].Allocation = 0
				require.Equal(t, device.Span{Addr: addr + 4096, Size: size - 4096, Managed: managed}, spans[0])
				require.False(t, driver.Plain(addr, size), "peers do not reach it by opening their contexts")
				_, err = driver.Share(addr, size, 0)
				require.Equal(t, errs.NotHere, errs.CodeOf(err), "%v", err)
				require.ErrorContains(t, err, "cuda:0: cuIpcGetMemHandle: no other process can map memory")
				require.ErrorContains(t, err, "cudaMallocAsync")
				_, err = platform.Export(addr, 4096)
				require.ErrorContains(t, err, "cuMemGetHandleForAddressRange", "no NIC reaches it either")
				require.NoError(t, gpu.Free(addr))
			}
		}))
	})
}

// onThread carries f out with a device's context current, as in a thread of a framework.
func onThread(t *testing.T, gpu *fake.Loaded, ordinal int, f func()) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := gpu.Enter(ordinal); err != nil {
		return err
	}
	depth := gpu.Depth()
	f()
	require.Equal(t, depth, gpu.Depth(), "the thread's contexts were changed")
	return gpu.Leave()
}

// TestBytesOfNICsAreFlushedWhereTheGPUSeesThemLate: in the context of the device, and not where it sees them by itself.
func TestBytesOfNICsAreFlushedWhereTheGPUSeesThemLate(t *testing.T) {
	const name = "cuFlushGPUDirectRDMAWrites"
	for _, c := range []struct {
		title    string
		absent   []string
		settings fake.Settings
		late     bool
		why      bool
	}{
		{"a GPU that sees them", nil, fake.Settings{"ORDERING": "100"}, false, false},
		{"one that others see, too", []string{name}, fake.Settings{"ORDERING": "200", "FLUSH": "0"}, false, false},
		{"one that does not", nil, fake.Settings{"ORDERING": "0"}, true, false},
		{"a driver of before", []string{name}, fake.Settings{"ORDERING": "0"}, true, true},
		{"a GPU without a flush", nil, fake.Settings{"ORDERING": "0", "FLUSH": "0"}, true, true},
	} {
		t.Run(c.title, func(t *testing.T) {
			fake.Run(t, fake.Driver{Absent: c.absent}, c.settings, func(t *testing.T, gpu *fake.Loaded) {
				require.NoError(t, platform.Check())
				l := platform.Landing(1)
				require.Equal(t, c.late, l != nil)
				if !c.late {
					return
				}
				require.Equal(t, c.why, l.Why != nil)
				require.Equal(t, c.why, l.Flush == nil)
				if c.why {
					require.ErrorContains(t, l.Why, "cuda:1 may see the bytes of a NIC late")
					return
				}
				require.NoError(t, l.Flush())
				require.Equal(t, []int{0, 1}, []int{gpu.Flushes(0), gpu.Flushes(1)})
				require.Zero(t, gpu.Depth(), "the context of the thread stays")
				gpu.Inject(name, 1, 999, false)
				require.Equal(t, errs.CudaError, errs.CodeOf(l.Flush()))
			})
		})
	}
}

// No call changes the thread's current context, and no call needs one.
func TestContextsOfThreadsStay(t *testing.T) {
	fake.Run(t, fake.Driver{}, nil, func(t *testing.T, gpu *fake.Loaded) {
		require.NoError(t, platform.Check())
		everything := func() {
			addr, err := platform.Allocate(fake.Last(), 8192)
			require.NoError(t, err)
			_, err = platform.Locate(addr, 8192)
			require.NoError(t, err)
			b, err := platform.Export(addr, 100)
			require.NoError(t, err)
			require.NoError(t, unix.Close(b.Fd))
			require.NoError(t, platform.Copy(addr, addr+4096, 4096))
			require.Error(t, platform.Copy(addr+4096, addr, 8192), "leaves the allocation")
			_, err = platform.Allocate(fake.Last(), 1<<40)
			require.Equal(t, errs.OutOfMemory, errs.CodeOf(err), "%v", err)
			g, err := platform.Gate(0)
			require.NoError(t, err)
			g.Close()
			require.Equal(t, errs.InvalidArgument, errs.CodeOf(platform.Free(addr, 4096)), "not its size")
			require.NoError(t, platform.Free(addr, 8192))
		}
		require.NoError(t, onThread(t, gpu, 0, everything))
		var all sync.WaitGroup
		for range 64 {
			all.Go(everything)
		}
		all.Wait()
	})
}

func TestContextsOfThreadsStayWhereACallFails(t *testing.T) {
	fake.Run(t, fake.Driver{}, nil, func(t *testing.T, gpu *fake.Loaded) {
		require.NoError(t, platform.Check())
		for _, name := range []string{"cuMemAlloc_v2", "cuMemsetD8Async", "cuStreamSynchronize"} {
			gpu.Inject(name, 1, 2, false)
			require.NoError(t, onThread(t, gpu, 0, func() {
				_, err := platform.Allocate(1, 4096)
				require.Equal(t, errs.OutOfMemory, errs.CodeOf(err), "%v", err)
				require.ErrorContains(t, err, "cuda:1: "+name)
			}))
		}
	})
}

// A gate opens when the work before it has been carried out, and work behind it does not count.
func TestGatesWaitForTheirStreamAlone(t *testing.T) {
	fake.Run(t, fake.Driver{}, nil, func(t *testing.T, gpu *fake.Loaded) {
		addr, err := platform.Allocate(fake.Last(), 4096)
		require.NoError(t, err)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		require.NoError(t, gpu.Enter(fake.Last()))
		busy, idle := gpu.Stream(), gpu.Stream()
		gpu.Hold(true)
		require.NoError(t, gpu.Work(addr, 7, 4096, busy))
		require.NoError(t, gpu.Leave())
		behind, err := platform.Gate(busy)
		require.NoError(t, err)
		free, err := platform.Gate(idle)
		require.NoError(t, err)
		for range 3 {
			open, err := behind.Open()
			require.NoError(t, err)
			require.False(t, open)
		}
		gpu.Hold(false)
		await(t, behind)
		got := make([]byte, 4096)
		require.NoError(t, gpu.Peek(got, addr))
		require.Equal(t, bytes.Repeat([]byte{7}, 4096), got)
		await(t, free)
		behind.Close()
		free.Close()
		unused, err := platform.Gate(busy)
		require.NoError(t, err)
		unused.Close() // without a look

		require.NoError(t, gpu.Capture(busy, true))
		_, err = platform.Gate(busy)
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), "%v", err)
		require.ErrorContains(t, err, "captured")
		require.NoError(t, gpu.Capture(busy, false))
		require.NoError(t, gpu.Enter(fake.Last()))
		require.NoError(t, gpu.EndStream(busy))
		require.NoError(t, gpu.EndStream(idle))
		require.NoError(t, gpu.Leave())
		require.NoError(t, platform.Free(addr, 4096))
	})
}

// A framework captures a graph, which forbids this thread to allocate, and tent works on it all the same.
func TestACaptureOfTheProgramForbidsUsNothing(t *testing.T) {
	fake.Run(t, fake.Driver{}, nil, func(t *testing.T, gpu *fake.Loaded) {
		from, err := platform.Allocate(0, 4096)
		require.NoError(t, err)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		require.NoError(t, gpu.Enter(0))
		captured := gpu.Stream()
		require.NoError(t, gpu.Capture(captured, true))
		require.Zero(t, gpu.Pinned(4096))

		to, err := platform.Allocate(0, 4096)
		require.NoError(t, err)
		require.NoError(t, gpu.Poke(from, bytes.Repeat([]byte{7}, 4096)))
		copies, burst, round := new(driver.Copies), new(driver.Burst), new(driver.Round)
		require.NoError(t, burst.Begin(copies, 0, 0))
		burst.Add(to, from, 4096)
		burst.Post()
		for !copies.Ended() {
			round.Add(copies)
			round.Ask()
		}
		require.NoError(t, copies.Finish())
		got := make([]byte, 4096)
		require.NoError(t, gpu.Peek(got, to))
		require.Equal(t, bytes.Repeat([]byte{7}, 4096), got)
		pinned, err := driver.Pin(0, 4096)
		require.NoError(t, err)
		require.NoError(t, driver.Unpin(0, pinned))
		require.NoError(t, platform.Free(to, 4096))

		require.Zero(t, gpu.Pinned(4096), "the thread's mode is the program's again")
		require.NoError(t, gpu.Capture(captured, false))
		require.NoError(t, gpu.EndStream(captured))
		require.NoError(t, gpu.Leave())
		require.NoError(t, platform.Free(from, 4096))
	})
}

// await looks at a gate until it is open.
func await(t *testing.T, g device.Gate) {
	for range 1 << 22 {
		open, err := g.Open()
		require.NoError(t, err)
		if open {
			return
		}
		runtime.Gosched()
	}
	require.Fail(t, "the gate stays shut")
}

// The default stream of a thread without a context is that of every device in use.
func TestTheDefaultStreamOfAnyDevice(t *testing.T) {
	fake.Run(t, fake.Driver{}, nil, func(t *testing.T, gpu *fake.Loaded) {
		addr, err := platform.Allocate(fake.Last(), 4096)
		require.NoError(t, err)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		require.NoError(t, gpu.Enter(fake.Last()))
		gpu.Hold(true)
		require.NoError(t, gpu.Work(addr, 7, 4096, 0))
		own, err := platform.Gate(0)
		require.NoError(t, err)
		require.NoError(t, gpu.Leave())
		any, err := platform.Gate(0)
		require.NoError(t, err)
		for _, g := range []device.Gate{own, any} {
			open, err := g.Open()
			require.NoError(t, err)
			require.False(t, open)
		}
		gpu.Hold(false)
		for _, g := range []device.Gate{own, any} {
			await(t, g)
			g.Close()
		}
		require.NoError(t, platform.Free(addr, 4096))
	})
}

// A dma-buf holds the pages around the range. Where the driver has none, that is a reason.
func TestExports(t *testing.T) {
	export := func(t *testing.T) (mem.DMABuf, error) {
		addr, err := platform.Allocate(0, 1<<20)
		require.NoError(t, err)
		defer func() { require.NoError(t, platform.Free(addr, 1<<20)) }()
		return platform.Export(addr+5000, 10_000)
	}
	t.Run("whole pages", func(t *testing.T) {
		fake.Run(t, fake.Driver{}, nil, func(t *testing.T, _ *fake.Loaded) {
			b, err := export(t)
			require.NoError(t, err)
			require.EqualValues(t, 5000-4096, b.Offset)
			require.NoError(t, unix.Close(b.Fd))
		})
	})
	t.Run("a device without", func(t *testing.T) {
		fake.Run(t, fake.Driver{}, fake.Settings{"DMABUF": "0"}, func(t *testing.T, _ *fake.Loaded) {
			_, err := export(t)
			require.ErrorContains(t, err, "CUDA_ERROR_NOT_SUPPORTED")
		})
	})
	t.Run("a driver without", func(t *testing.T) {
		fake.Run(t, fake.Driver{Absent: []string{"cuMemGetHandleForAddressRange"}}, nil,
			func(t *testing.T, _ *fake.Loaded) {
				_, err := export(t)
				require.ErrorContains(t, err, "cuMemGetHandleForAddressRange")
			})
	})
}

// A processor that touches emulated memory dies, as it does on hardware. Without this rule no test would notice.
func TestAProcessorCannotTouchADevice(t *testing.T) {
	if os.Getenv("TENT_TEST_TOUCH") != "" {
		addr, err := platform.Allocate(0, 4096)
		require.NoError(t, err)
		fmt.Println("touches", mem.Bytes(addr, 1)[0])
		return
	}
	out := diesIn(t, append(fake.Settings(nil).Environment(fake.Library(t, fake.Driver{})), "TENT_TEST_TOUCH=1"))
	require.Contains(t, out, "SIGSEGV")
	require.NotContains(t, out, "touches")
}
