package acl_test

import (
	"bytes"
	"math/rand"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/device"
	"github.com/tent-engine/tent/gocore/device/devicetest"
	"github.com/tent-engine/tent/gocore/errs"
	fake "github.com/tent-engine/tent/tests/fakes/ascend"
	"github.com/tent-engine/tent/transports/ascend/acl"
)

var platform acl.Platform

// Old toolkits lack symbols: the rules hold all the same.
func TestTheRuntimeKeepsTheRulesOfPlatforms(t *testing.T) {
	for name, c := range map[string]struct {
		absent   []string
		settings fake.Settings
	}{
		"CANN 9.1": {nil, nil},
		"CANN 8.1": {fake.Older, nil},
		"one NPU":  {nil, fake.Settings{"DEVICES": "1"}},
	} {
		t.Run(name, func(t *testing.T) {
			fake.Run(t, c.settings, c.absent, func(t *testing.T, _ *fake.Loaded) { devicetest.Run(t, platform) })
		})
	}
}

// A machine without CANN, or with one that cannot be used, has a reason and no crash.
func TestAnUnusableRuntimeIsAReason(t *testing.T) {
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
		require.Error(t, acl.Adopt(0))
		require.Equal(t, -1, acl.Current())
	}
	t.Run("no library", func(t *testing.T) {
		fake.In(t, []string{"TENT_LIBASCENDCL=/nonexistent/libascendcl.so"},
			func(t *testing.T) { check(t, "no CANN runtime", "/nonexistent/libascendcl.so", "set_env.sh") })
	})
	t.Run("the home of the toolkit", func(t *testing.T) {
		fake.In(t, []string{"TENT_LIBASCENDCL=", "ASCEND_HOME_PATH=/nonexistent"},
			func(t *testing.T) { check(t, "/nonexistent/lib64/libascendcl.so") })
	})
	t.Run("another library", func(t *testing.T) {
		fake.In(t, []string{"TENT_LIBASCENDCL=libm.so.6"}, func(t *testing.T) { check(t, "lacks aclInit", "8.1") })
	})
	t.Run("no device", func(t *testing.T) {
		fake.Run(t, fake.Settings{"DEVICES": "0"}, nil, func(t *testing.T, _ *fake.Loaded) {
			check(t, "sees no device", "ASCEND_RT_VISIBLE_DEVICES")
		})
	})
	t.Run("a runtime that fails", func(t *testing.T) {
		fake.Run(t, nil, nil, func(t *testing.T, npu *fake.Loaded) {
			npu.Inject("aclrtGetDeviceCount", 1, 507899)
			check(t, "aclrtGetDeviceCount: a failure of the test (aclError 507899)")
		})
	})
}

func TestDevicesAreNamed(t *testing.T) {
	fake.Run(t, fake.Settings{"DEVICES": "3"}, nil, func(t *testing.T, _ *fake.Loaded) {
		list, err := platform.Devices()
		require.NoError(t, err)
		require.Len(t, list, 3)
		require.Equal(t, "face:5b:00.0", list[1].PCI, "as the kernel writes it")
		require.Equal(t, "Emulated910", list[1].Name)
		require.Equal(t, -1, list[1].Node, "the kernel does not know this device")
	})
}

// Random ranges are cut exactly where allocations end, also by a runtime that knows addresses alone.
func TestLocateCutsAtAllocations(t *testing.T) {
	seed := rand.Int63()
	for name, absent := range map[string][]string{"by allocation": nil, "by address": fake.Older} {
		t.Run(name, func(t *testing.T) {
			fake.Run(t, nil, absent, func(t *testing.T, npu *fake.Loaded) {
				t.Logf("seed %d", seed)
				random := rand.New(rand.NewSource(seed))
				sizes := []uint64{1 << 20, 5<<20 + 4096}
				var at [2]uintptr
				for i := range at {
					var err error
					at[i], err = platform.Allocate(i, sizes[i])
					require.NoError(t, err)
				}
				for range 300 {
					i := random.Intn(2)
					from := uint64(random.Int63n(int64(sizes[i])))
					n := 1 + uint64(random.Int63n(int64(sizes[i]-from)))
					spans, err := platform.Locate(at[i]+uintptr(from), n)
					require.NoError(t, err)
					require.Equal(t, []device.Span{{Addr: at[i] + uintptr(from), Size: n, Ordinal: i}}, spans)
				}
				spans, err := platform.Locate(at[1]-4096, sizes[1]+8192)
				require.NoError(t, err)
				for _, s := range spans { // the host's, or a neighbour's, is around it
					if s.Ordinal == 1 {
						require.Equal(t, device.Span{Addr: at[1], Size: sizes[1], Ordinal: 1}, s)
					}
				}
				pinned := npu.MallocHost(8192)
				spans, err = platform.Locate(pinned, 8192)
				require.NoError(t, err)
				require.Empty(t, spans)
				require.True(t, acl.Pinned(pinned, 8192))
				require.False(t, acl.Pinned(pinned+4096, 8192))
				require.False(t, acl.Pinned(at[0], 4096))
				require.NoError(t, npu.FreeHost(pinned))
				for i := range at {
					require.NoError(t, platform.Free(at[i], sizes[i]))
				}
				require.Equal(t, errs.InvalidArgument, errs.CodeOf(platform.Free(at[0], sizes[0])), "freed twice")
			})
		})
	}
}

// A range with memory of the host in front is cut where the device's begins, by bisection if need be.
func TestLocateFindsTheBorderOfTheHost(t *testing.T) {
	for name, absent := range map[string][]string{"by allocation": nil, "by address": fake.Older} {
		t.Run(name, func(t *testing.T) {
			fake.Run(t, nil, absent, func(t *testing.T, _ *fake.Loaded) {
				const size = 3 << 20
				addr, err := platform.Allocate(1, size)
				require.NoError(t, err)
				spans, err := platform.Locate(addr-777, size)
				require.NoError(t, err)
				require.Equal(t, []device.Span{{Addr: addr, Size: size - 777, Ordinal: 1}}, spans)
				spans, err = platform.Locate(addr+777, size)
				require.NoError(t, err)
				require.Equal(t, []device.Span{{Addr: addr + 777, Size: size - 777, Ordinal: 1}}, spans)
				_, err = device.Find([]device.Platform{platform}, addr-777, size)
				require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), "%v", err)
				require.ErrorContains(t, err, "the host has 777 bytes")
				require.NoError(t, platform.Free(addr, size))
			})
		})
	}
}

// No call changes the device of a thread that has one, and none gives one to a thread that has none.
func TestContextsOfThreadsStay(t *testing.T) {
	fake.Run(t, nil, nil, func(t *testing.T, npu *fake.Loaded) {
		require.NoError(t, platform.Check())
		everything := func() {
			addr, err := platform.Allocate(1, 8192)
			require.NoError(t, err)
			_, err = platform.Locate(addr, 8192)
			require.NoError(t, err)
			require.NoError(t, platform.Copy(addr, addr+4096, 4096))
			require.Error(t, platform.Copy(addr+4096, addr, 8192), "leaves the allocation")
			_, err = platform.Allocate(1, 1<<40)
			require.Equal(t, errs.OutOfMemory, errs.CodeOf(err), "%v", err)
			require.ErrorContains(t, err, "npu:1: aclrtMalloc: the device has less memory (aclError 207001)")
			_, err = platform.Allocate(2, 4096)
			require.Equal(t, errs.DeviceNotFound, errs.CodeOf(err), "%v", err)
			require.NoError(t, platform.Free(addr, 8192))
		}
		on := func(device int) {
			runtime.LockOSThread() // never unlocked where it has a device: the thread ends with the goroutine
			if device >= 0 {
				require.NoError(t, npu.Enter(device))
			}
			everything()
			require.Equal(t, device, npu.Current())
			require.Equal(t, device, acl.Current())
		}
		var all sync.WaitGroup
		for i := range 30 {
			all.Go(func() { on(i%3 - 1) })
		}
		all.Wait()
		for _, name := range []string{"aclrtMalloc", "aclrtMemset"} {
			npu.Inject(name, 1, 207001)
			_, err := platform.Allocate(1, 4096)
			require.Equal(t, errs.OutOfMemory, errs.CodeOf(err), "%v", err)
		}
	})
}

// Bytes go from one device to another although nobody has enabled the library's own way.
func TestCopiesBetweenDevicesGoThroughTheHost(t *testing.T) {
	fake.Run(t, nil, nil, func(t *testing.T, npu *fake.Loaded) {
		const size = 9<<20 + 5 // several rooms
		want := make([]byte, size)
		_, _ = rand.New(rand.NewSource(1)).Read(want)
		var at [2]uintptr
		for i := range at {
			var err error
			at[i], err = platform.Allocate(i, size+2)
			require.NoError(t, err)
		}
		require.NoError(t, npu.Poke(at[0], want))
		require.NoError(t, platform.Copy(at[1]+1, at[0], size))
		got := make([]byte, size+2)
		require.NoError(t, npu.Peek(got, at[1]))
		require.True(t, bytes.Equal(want, got[1:size+1]))
		require.Zero(t, got[0]+got[size+1], "bytes beside")
		for i := range at {
			require.NoError(t, platform.Free(at[i], size+2))
		}
	})
}

// Copies inside of the host are none of the library's, and a page that is gone is an error and no crash.
func TestMemoryOfTheHostIsCopiedByTheProcessor(t *testing.T) {
	fake.Run(t, nil, nil, func(t *testing.T, npu *fake.Loaded) {
		host, err := unix.MmapPtr(-1, 0, nil, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		require.NoError(t, err)
		before := npu.Stats().Copies
		require.NoError(t, platform.Copy(uintptr(host), uintptr(host)+2048, 1024))
		require.Equal(t, before, npu.Stats().Copies)
		require.NoError(t, unix.MunmapPtr(host, 4096))
		require.Equal(t, errs.AddressNotRegistered, errs.CodeOf(platform.Copy(uintptr(host), uintptr(host)+2048, 1024)))
	})
}
