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
	"github.com/tent-engine/tent/transports/all"
	"github.com/tent-engine/tent/transports/sim"
)

// openWithGPU opens an engine over a simulated network that moves memory of the host and of a platform's devices.
func openWithGPU(t *testing.T, n *sim.Network, gpu *devicetest.Platform) *engine.Engine {
	s := sim.Settings{Network: n, Platform: gpu, Inline: true, Vectors: true}
	for _, one := range []mem.Kind{mem.Host, mem.Cuda} {
		s.Pairs[one] = [mem.KindCount]bool{mem.Host: true, mem.Cuda: true}
	}
	return openWith(t, nil, table([]string{"sim"}), []engine.Plug{{Factory: sim.Factory{Settings: s}}}, gpu)
}

// taken is memory of a device that the end of the test frees, after the engines that the test opens later.
func taken(t *testing.T, gpu *devicetest.Platform, ordinal int, size uint64) uintptr {
	addr, err := gpu.Allocate(ordinal, size)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, gpu.Free(addr, size)) })
	return addr
}

// Memory of a device that comes as a bare address, with no location, is never touched by the processor. It is PROT_NONE
// here, and the bytes arrive all the same. Each combination of memories is moved both ways.
func TestABareAddressOfADeviceIsMovedAsSuch(t *testing.T) {
	const size = 300_000
	gpu := devicetest.New(t, mem.Cuda, 2)
	for name, c := range map[string]struct{ local, remote bool }{
		"device to device": {true, true}, "device to host": {true, false}, "host to device": {false, true},
	} {
		t.Run(name, func(t *testing.T) {
			place := func(onDevice bool, ordinal int) uintptr {
				if onDevice {
					return taken(t, gpu, ordinal, size)
				}
				return address(memory(t, size))
			}
			load := func(addr uintptr) []byte {
				b := make([]byte, size)
				require.NoError(t, gpu.Load(b, addr))
				return b
			}
			own, theirs := place(c.local, 0), place(c.remote, 1)
			n := sim.NewInline(1)
			here, there := openWithGPU(t, n, gpu), openWithGPU(t, n, gpu)
			_, err := here.Register(engine.Memory{Addr: own, Size: size, Location: "*"})
			require.NoError(t, err)
			_, err = there.Register(engine.Memory{Addr: theirs, Size: size, Name: "kv",
				Permission: mem.GlobalReadWrite})
			require.NoError(t, err)
			to := segment(t, here, there, "kv")
			for i, op := range []transport.Op{transport.Write, transport.Read} {
				source, sink := own, theirs
				if op == transport.Read {
					source, sink = theirs, own
				}
				want := make([]byte, size)
				fill(want, i+1)
				require.NoError(t, gpu.Store(source, want))
				batch, err := here.Move(&engine.Request{Terms: request.Terms{Op: op}, Source: own, Length: size,
					Remote: engine.Remote{Segment: to}})
				require.NoError(t, err)
				sum := ended(t, here, batch)
				require.Equal(t, dispatch.Completed, sum.State, "%v", sum.Err)
				same(t, load(sink), i+1, 0)
			}
			require.NoError(t, gpu.CheckBands())
		})
	}
}

// A transport that moves memory of the host alone is never given memory of a device.
func TestMemoryOfADeviceIsNotOfferedToTransportsOfTheHost(t *testing.T) {
	gpu := devicetest.New(t, mem.Cuda, 1)
	addr := taken(t, gpu, 0, 4096)
	e := openWith(t, nil, all.Transports(), engine.Plugs(all.Factories()...), gpu)
	_, err := e.Register(engine.Memory{Addr: addr, Size: 4096, Name: "kv", Location: "*",
		Permission: mem.GlobalReadWrite})
	require.NoError(t, err)
	own := memory(t, 4096)
	offer(t, e, own, "")
	_, err = e.Move(&engine.Request{Terms: request.Terms{Op: transport.Write}, Source: address(own), Length: 4096,
		Remote: engine.Remote{Offset: uint64(addr)}})
	require.Equal(t, errs.NoRoute, errs.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, "cuda:0")
}

// A location must agree with the memory's platform, and a region has one owner.
func TestLocationsAgreeWithThePlatform(t *testing.T) {
	page := uint64(unix.Getpagesize())
	gpu := devicetest.New(t, mem.Cuda, 2)
	addr := taken(t, gpu, 1, page)
	sides, err := gpu.AllocateSide(page, 0, 1)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, gpu.Free(sides, 2*page)) })
	host := address(memory(t, int(page)))
	e := openWithGPU(t, sim.NewInline(1), gpu)
	for name, c := range map[string]struct {
		addr     uintptr
		size     uint64
		location mem.Location
		code     errs.Code
		says     string
	}{
		"no location":         {addr, page, "", errs.OK, "cuda:1"},
		"wildcard":            {addr, page, "*", errs.OK, "cuda:1"},
		"kind alone":          {addr, page, "cuda", errs.OK, "cuda:1"},
		"the right one":       {addr, page, "cuda:1", errs.OK, "cuda:1"},
		"another device":      {addr, page, "cuda:0", errs.InvalidArgument, "memory of cuda:1"},
		"said to be the host": {addr, page, "cpu:0", errs.InvalidArgument, "memory of cuda:1"},
		"another kind":        {addr, page, "npu:1", errs.InvalidArgument, "memory of cuda:1"},
		"host said a device":  {host, page, "cuda:0", errs.InvalidArgument, "not memory of such a device"},
		"host":                {host, page, "*", errs.OK, "cpu:0"},
		"two devices":         {sides, 2 * page, "*", errs.InvalidArgument, "a region of its own"},
		"two devices, said":   {sides, 2 * page, "cuda:0", errs.InvalidArgument, "a region of its own"},
		"one of the two":      {sides + uintptr(page), page, "*", errs.OK, "cuda:1"},
		"device and host":     {addr - 1, page, "*", errs.InvalidArgument, "the host has 1 bytes"},
		"no platform of it":   {addr, page, "tpu:0", errs.InvalidArgument, "memory of cuda:1"},
	} {
		id, err := e.Register(engine.Memory{Addr: c.addr, Size: c.size, Location: c.location, Name: name,
			Permission: mem.GlobalReadOnly})
		require.Equal(t, c.code, errs.CodeOf(err), "%s: %v", name, err)
		if err != nil {
			require.ErrorContains(t, err, c.says, name)
			continue
		}
		info, err := e.Segment(t.Context(), engine.Local, true)
		require.NoError(t, err)
		for _, r := range info.Regions {
			if r.ID == id {
				require.EqualValues(t, c.says, r.Location, name)
			}
		}
		require.NoError(t, e.CloseRegion(t.Context(), id))
	}
}

// A driver that has failed cannot say to which device memory belongs. Then "*" is an error, and a location of the host
// is believed.
func TestAPlatformThatCannotSayStopsGuesses(t *testing.T) {
	gpu := devicetest.New(t, mem.Cuda, 1)
	gpu.Trouble = errs.New(errs.CudaError, "cuda", "error 700: illegal address")
	own := memory(t, 4096)
	e := openWithGPU(t, sim.NewInline(1), gpu)
	for _, location := range []mem.Location{"*", "", "cuda:0"} {
		_, err := e.Register(engine.Memory{Addr: address(own), Size: 4096, Location: location})
		require.Equal(t, errs.CudaError, errs.CodeOf(err), "%q: %v", location, err)
		require.ErrorContains(t, err, "error 700")
		require.ErrorContains(t, err, `location="cpu:0"`)
	}
	_, err := e.Register(engine.Memory{Addr: address(own), Size: 4096, Location: "cpu:0"})
	require.NoError(t, err)
}

// A platform that cannot work here is left out. Only a location of its kind hears why.
func TestAPlatformWithoutDevicesIsNotAsked(t *testing.T) {
	gpu := devicetest.New(t, mem.Cuda, 0)
	gpu.Absent = errs.New(errs.DeviceNotFound, "cuda", "no driver")
	gpu.Trouble = errs.New(errs.CudaError, "cuda", "not initialized")
	own := memory(t, 4096)
	e := openWithGPU(t, sim.NewInline(1), gpu)
	offer(t, e, own, "")
	for _, call := range []func(engine.Memory) error{
		func(m engine.Memory) error { _, err := e.Register(m); return err },
		func(m engine.Memory) error { _, _, err := e.Allocate(m); return err },
	} {
		err := call(engine.Memory{Addr: address(own), Size: 4096, Location: "cuda:0"})
		require.Equal(t, errs.DeviceNotFound, errs.CodeOf(err), "%v", err)
		require.ErrorContains(t, err, `"cuda:0": cuda: no driver`)
	}
}

// Memory of Allocate on a device is zeroed, moves, and goes back to the platform.
func TestAllocatedMemoryOfADevice(t *testing.T) {
	const size = 100_000
	gpu := devicetest.New(t, mem.Cuda, 2)
	e := openWithGPU(t, sim.NewInline(1), gpu)
	id, m, err := e.Allocate(engine.Memory{Size: size, Location: "cuda:1", Name: "kv",
		Permission: mem.GlobalReadWrite})
	require.NoError(t, err)
	require.Equal(t, mem.Location("cuda:1"), m.Location)
	require.Equal(t, mem.Cuda, m.Kind)
	require.Equal(t, "0000:02:00.0", m.Device.PCI)
	require.NotZero(t, m.Device.UUID)
	got := make([]byte, size)
	got[0] = 1
	require.NoError(t, gpu.Load(got, m.Addr))
	require.Equal(t, make([]byte, size), got)
	source := memory(t, size)
	fill(source, 3)
	offer(t, e, source, "")
	batch, err := e.Move(&engine.Request{Terms: request.Terms{Op: transport.Write}, Source: address(source),
		Length: size, Remote: engine.Remote{Offset: uint64(m.Addr)}})
	require.NoError(t, err)
	sum := ended(t, e, batch)
	require.Equal(t, dispatch.Completed, sum.State, "%v", sum.Err)
	require.NoError(t, gpu.Load(got, m.Addr))
	same(t, got, 3, 0)
	require.NoError(t, e.CloseRegion(t.Context(), id))
	require.NoError(t, e.FreeMemory(id))
	_, _, err = e.Allocate(engine.Memory{Size: size, Location: "cuda:2"})
	require.Equal(t, errs.DeviceNotFound, errs.CodeOf(err), "%v", err)
	_, _, err = e.Allocate(engine.Memory{Size: size, Location: "npu:0"})
	require.Equal(t, errs.DeviceNotFound, errs.CodeOf(err), "%v", err)
}
