//go:build cgo

package cuda

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/cuda"
	"github.com/tent-engine/tent/transports/cuda/driver"
	"github.com/tent-engine/tent/transports/transporttest"
)

// A region of the host is pinned once, as long as it is registered. Devices copy there directly: no memory of ours is
// pinned beside it. Where the driver refuses, bytes go the usual way, and the reason can be read.
func TestRegionsOfTheHostArePinnedWhileTheyAreRegistered(t *testing.T) {
	fake.Run(t, fake.Driver{}, nil, func(t *testing.T, gpu *fake.Loaded) {
		const n = 3 * 4096
		h := suiteOf(onDevice(0), onHost(), Settings{Copying: Copying{HostRegister: true}})
		for _, refused := range []bool{false, true} {
			w := transporttest.NewWorld(t, h)
			near, far := w.Open("near"), w.Open("far")
			link := near.Connect(t, far)
			before := gpu.Stats().Pinned
			if refused {
				gpu.Inject("cuMemHostRegister_v2", 1, 2, false)
			}
			local := near.Register(t, n, mem.LocalReadWrite)
			host := far.Register(t, n, mem.GlobalReadWrite)
			kept := gpu.Stats().Pinned - before
			remote := link.Import(t, host)
			want, got := make([]byte, n), make([]byte, n)
			for i := range want {
				want[i] = byte(i*7 + i/4096)
			}
			require.NoError(t, gpu.Poke(local.Addr, want))
			for _, op := range []transport.Op{transport.Write, transport.Read} {
				s := link.Slice(op, link.Rail(t), local, 0, remote, 0, n)
				require.Equal(t, 1, link.Submit(s))
				require.Nil(t, link.Wait(t, s)[0].Err)
				if op == transport.Write {
					require.Equal(t, want, mem.Bytes(host.Addr, n))
					for i := range want {
						want[i] = byte(i*13 + i/4096)
					}
					copy(mem.Bytes(host.Addr, n), want)
				}
			}
			require.NoError(t, gpu.Peek(got, local.Addr))
			require.Equal(t, want, got)
			explained := far.Transport.(*nvlink).unpinned()
			if refused {
				require.Zero(t, kept)
				require.Contains(t, explained, "CUDA_ERROR_OUT_OF_MEMORY")
				require.Greater(t, gpu.Stats().Pinned, before, "memory of ours")
			} else {
				require.EqualValues(t, 1, kept)
				require.Empty(t, explained)
				require.Equal(t, before+1, gpu.Stats().Pinned, "nothing else")
			}
			require.NoError(t, far.Transport.Deregister(t.Context(), host.Key))
			if !refused {
				require.Equal(t, before, gpu.Stats().Pinned)
			}
		}
	})
}

// An engine that closes lets the memory go that it has pinned: its regions are not closed one by one. Else the driver
// would copy those pages in place of others that come to their addresses.
func TestNothingStaysPinnedBehindClose(t *testing.T) {
	fake.Run(t, fake.Driver{}, nil, func(t *testing.T, gpu *fake.Loaded) {
		w := transporttest.NewWorld(t, suiteOf(onHost(), onDevice(0), Settings{Copying: Copying{HostRegister: true}}))
		near := w.Open("near")
		before := gpu.Stats().Pinned
		for range 3 {
			near.Register(t, 4096, mem.LocalReadWrite)
		}
		require.Equal(t, before+3, gpu.Stats().Pinned)
		near.Close(t)
		require.Equal(t, before, gpu.Stats().Pinned)
		hosts.Range(func(home, _ any) bool {
			t.Errorf("%v is still known", home)
			return true
		})
	})
}

// Behind a Remap nothing reaches the pages that were pinned before, at either end of a transfer. So it is where the
// driver refuses the new ones, too, as it does where there are none: the next Remap pins those that have come.
func TestARemapPinsThePagesOfNow(t *testing.T) {
	for _, ours := range []bool{false, true} {
		for _, refused := range []bool{false, true} {
			t.Run(fmt.Sprintf("ours %v, refused %v", ours, refused), func(t *testing.T) {
				fake.Run(t, fake.Driver{}, nil, func(t *testing.T, gpu *fake.Loaded) {
					remapPinned(t, gpu, ours, refused)
				})
			})
		}
	}
}

// fromDevice is a link on which bytes go from a device to the host.
type fromDevice struct {
	*transporttest.Conn
	device, host *transporttest.Operand
	owner        *nvlink // of the memory of the host
	slice        func() *transport.Slice
}

const hostBytes = 8 * 4096

// newFromDevice connects a device and some memory of the host, which is ours or the peer's.
func newFromDevice(t *testing.T, host *transporttest.Device, ours bool) *fromDevice {
	here, there, op := onDevice(0), host, transport.Write
	if ours {
		here, there, op = host, onDevice(0), transport.Read
	}
	w := transporttest.NewWorld(t, suiteOf(here, there, Settings{Copying: Copying{HostRegister: true}}))
	near, far := w.Open("near"), w.Open("far")
	f := &fromDevice{Conn: near.Connect(t, far)}
	local := near.Register(t, hostBytes, mem.LocalReadWrite)
	offered := far.Register(t, hostBytes, mem.GlobalReadWrite)
	remote := f.Import(t, offered)
	f.slice = func() *transport.Slice { return f.Slice(op, f.Rail(t), local, 0, remote, 0, hostBytes) }
	f.device, f.host, f.owner = local, offered, far.Transport.(*nvlink)
	if ours {
		f.device, f.host, f.owner = offered, local, near.Transport.(*nvlink)
	}
	return f
}

// move looks whether bytes reach the pages that are behind the memory of the host now.
func (f *fromDevice) move(t *testing.T, gpu *fake.Loaded, mark byte) {
	want := bytes.Repeat([]byte{mark}, hostBytes)
	require.NoError(t, gpu.Poke(f.device.Addr, want))
	f.Must(t, f.slice())
	require.True(t, bytes.Equal(want, mem.Bytes(f.host.Addr, hostBytes)), "the pages of now")
}

func (f *fromDevice) remap(t *testing.T) {
	require.NoError(t, f.owner.Remap(t.Context(), f.host.Key, transport.Remapped{Length: hostBytes}))
}

func remapPinned(t *testing.T, gpu *fake.Loaded, ours, refused bool) {
	f := newFromDevice(t, onHost(), ours)
	f.move(t, gpu, 1)
	kept := 1
	for mark := byte(2); mark < 4; mark++ {
		old, pinned := exchangePages(t, f.host.Addr, hostBytes), int(gpu.Stats().Pinned)-kept
		if kept = 1; refused {
			kept = 0
			gpu.Inject("cuMemHostRegister_v2", 1, 2, false)
		}
		f.remap(t)
		require.EqualValues(t, pinned+kept, gpu.Stats().Pinned)
		if refused {
			require.Contains(t, f.owner.unpinned(), "CUDA_ERROR_OUT_OF_MEMORY")
		}
		f.move(t, gpu, mark)
		require.Equal(t, bytes.Repeat([]byte{mark - 1}, hostBytes), old, "the pages of before")
		refused = false
	}
}

// The driver lets pages go behind the work of all streams, and the program's may wait for anything. A caller leaves in
// time; bytes do not go by the pages of before meanwhile, and those of now are pinned later.
func TestARemapDoesNotWaitForStreamsOfTheProgram(t *testing.T) {
	fake.Run(t, fake.Driver{}, nil, func(t *testing.T, gpu *fake.Loaded) {
		f := newFromDevice(t, onHost(), true)
		f.move(t, gpu, 1)
		r := f.owner.regions.Lookup(f.host.Key)
		latch, err := driver.Platform{}.Hold(1<<2 | 1) // the default stream of the first device waits
		require.NoError(t, err)
		old := exchangePages(t, f.host.Addr, hostBytes)
		over, cancel := context.WithCancel(t.Context())
		cancel()
		err = f.owner.Remap(over, f.host.Key, transport.Remapped{Length: hostBytes})
		require.Equal(t, errs.Timeout, errs.CodeOf(err), "%v", err)
		require.False(t, r.pinned.Load())
		latch.Release(1)
		latch.Close()
		await(t, "the pages of now to be pinned", r.pinned.Load)
		f.move(t, gpu, 2)
		require.Equal(t, bytes.Repeat([]byte{1}, hostBytes), old, "the pages of before")
	})
}

// The program may have pinned the pages of before, and keeps them. Where the driver pins none, there may be no pages:
// the transfer fails, and not the process. So it is at either end.
func TestARemapEndsDirectCopiesToMemoryThatIsNotOurs(t *testing.T) {
	for _, ours := range []bool{false, true} {
		for _, gone := range []bool{false, true} {
			t.Run(fmt.Sprintf("ours %v, gone %v", ours, gone), func(t *testing.T) {
				fake.Run(t, fake.Driver{}, nil, func(t *testing.T, gpu *fake.Loaded) {
					remapForeign(t, gpu, ours, gone)
				})
			})
		}
	}
}

func remapForeign(t *testing.T, gpu *fake.Loaded, ours, gone bool) {
	host := onHost()
	allocate, free := host.Allocate, host.Free
	host.Allocate = func(t *testing.T, size int) uintptr {
		at := allocate(t, size)
		if !gone {
			require.NoError(t, driver.Keep(0, at, uint64(size)), "by the program")
		}
		return at
	}
	host.Free = func(at uintptr, size int) {
		if !gone {
			require.NoError(t, driver.Unkeep(0, at))
		}
		free(at, size)
	}
	f := newFromDevice(t, host, ours)
	f.move(t, gpu, 6)
	exchangePages(t, f.host.Addr, hostBytes)
	if gone {
		page := mem.Bytes(f.host.Addr&^4095, 4096)
		require.NoError(t, unix.Mprotect(page, unix.PROT_NONE))
		defer func() { require.NoError(t, unix.Mprotect(page, unix.PROT_READ|unix.PROT_WRITE)) }()
		gpu.Inject("cuMemHostRegister_v2", 1, 1, false)
	}
	f.remap(t)
	if gone {
		require.Equal(t, errs.AddressNotRegistered, f.One(t, f.slice()).Code)
		return
	}
	f.move(t, gpu, 7)
}

// exchangePages maps other pages with the same bytes behind a range, and returns the range in those of before.
func exchangePages(t *testing.T, addr uintptr, bytes int) (old []byte) {
	page := uintptr(unix.Getpagesize())
	first := addr &^ (page - 1)
	size := (addr + uintptr(bytes) - first + page - 1) &^ (page - 1)
	kept, err := unix.MremapPtr(mem.Pointer(first), 0, nil, size, unix.MREMAP_MAYMOVE)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.MunmapPtr(kept, size) })
	_, err = unix.MmapPtr(-1, 0, mem.Pointer(first), size, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED|unix.MAP_ANON|unix.MAP_FIXED)
	require.NoError(t, err)
	copy(mem.Bytes(first, int(size)), mem.Bytes(uintptr(kept), int(size)))
	return mem.Bytes(uintptr(kept)+addr-first, bytes)
}

// A program may have pinned its memory in parts, as SGLang's HiCache does. The driver makes no copy that lies in two of
// them, or in one and beside it: bytes of such a region go the usual way, and the reason can be read.
func TestMemoryThatIsPinnedInPartsIsNoPinnedRegion(t *testing.T) {
	for name, parts := range map[string][2][2]uintptr{"side by side": {{0, 3}, {3, 9}}, "apart": {{0, 3}, {6, 9}}} {
		t.Run(name, func(t *testing.T) {
			fake.Run(t, fake.Driver{}, nil, func(t *testing.T, gpu *fake.Loaded) {
				const page = 4096
				host := onHost()
				allocate, free := host.Allocate, host.Free
				host.Allocate = func(t *testing.T, size int) uintptr {
					at := allocate(t, size)
					for _, part := range parts {
						require.NoError(t, driver.Keep(0, at+part[0]*page, uint64(part[1]-part[0])*page))
					}
					return at
				}
				host.Free = func(at uintptr, size int) {
					for _, part := range parts {
						require.NoError(t, driver.Unkeep(0, at+part[0]*page))
					}
					free(at, size)
				}
				f := newFromDevice(t, host, false)
				f.move(t, gpu, 1)
				require.Contains(t, f.owner.unpinned(), "712")
			})
		})
	}
}

// Under WSL 2 a device knows registered memory by another address than the processor. No region is pinned there.
func TestARegionWithTwoAddressesIsNotPinned(t *testing.T) {
	fake.Run(t, fake.Driver{}, fake.Settings{"HOSTPTR": "0"}, func(t *testing.T, gpu *fake.Loaded) {
		f := newFromDevice(t, onHost(), false)
		f.move(t, gpu, 1)
		require.Contains(t, f.owner.unpinned(), "attribute 91 is 0")
	})
}
