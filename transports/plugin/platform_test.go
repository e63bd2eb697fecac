package plugin

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/device"
	"github.com/tent-engine/tent/gocore/device/devicetest"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
)

func TestMemoryOfTheHostIsADevice(t *testing.T) {
	for _, compiler := range [][]string{asC, asCPlusPlus} {
		path := built(t, compiler, "example/memory.c")
		list := Platforms([]string{path})
		require.Len(t, list, 1)
		require.Equal(t, "memory", list[0].Name())
		require.Equal(t, mem.Tpu, list[0].Kind())
		devicetest.Run(t, list[0])
		require.Empty(t, Load([]string{path}, nil), "it brings no transport")
	}
	require.Empty(t, Platforms([]string{built(t, asC, "example/inside.c")}), "it brings no devices")
}

func TestDevicesOfAPlugInHaveTheirAddresses(t *testing.T) {
	p := Platforms([]string{built(t, asC, "example/memory.c")})[0]
	list, err := p.Devices()
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.Equal(t, "0000:f1:00.0", list[1].PCI)
	require.Equal(t, -1, list[1].Node)
	addr, err := p.Allocate(1, 8192)
	require.NoError(t, err)
	place, err := device.Find([]device.Platform{p}, addr, 8192)
	require.NoError(t, err)
	require.Equal(t, mem.Location("tpu:1"), place.Location())
	_, err = device.Find([]device.Platform{p, p}, addr, 8192)
	require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), "two platforms claim it")
	require.Equal(t, errs.InvalidArgument, errs.CodeOf(p.Free(addr, 4096)), "another size")
	require.NoError(t, p.Free(addr, 8192))
	require.Equal(t, errs.InvalidArgument, errs.CodeOf(p.Free(addr, 8192)), "twice")
}

func TestDevicesThatCannotBeUsedAreRefusedWithTheReason(t *testing.T) {
	compiled := built(t, asC, "testdata/device_abuse.c")
	for abuse, reason := range map[string]string{
		"refuses":       "tent_register_device_plugin returned -1",
		"no-function":   "a function or a name that is NULL",
		"no-class":      "a function or a name that is NULL",
		"no-create":     "create_plugin returned NULL",
		"odd-class":     `the class of its devices, "toaster"`,
		"other-version": "its devices are of version 2 of the interface, and this is 1",
	} {
		t.Run(abuse, func(t *testing.T) {
			path := placed(t, compiled, filepath.Join(filepath.Dir(compiled), "lib"+abuse+".so"))
			require.Empty(t, Platforms([]string{path}))
			err := factory(t, path).Check()
			require.ErrorContains(t, err, reason)
			require.ErrorContains(t, err, path)
		})
	}
}

func TestAnswersOfDevicesWithoutSenseAreErrorsThatNameThePlugIn(t *testing.T) {
	compiled := built(t, asC, "testdata/device_abuse.c")
	for abuse, row := range map[string]struct {
		says string
		call func(p device.Platform, addr uintptr) error
	}{
		"no-devices":   {"get_device_count returned 0", checks},
		"many-devices": {"it has 1000 devices", checks},
		"broken-count": {"get_device_count returned -7", checks},
		"no-memory":    {"alloc of 4096 bytes at tpu:0 returned 2", allocates},
		"empty-memory": {"alloc of 4096 bytes at tpu:0 returned 0", allocates},
		"no-copy":      {"returned 700", allocates},
		"cannot-say":   {"query_location returned -1", locates},
		"65-locations": {"query_location returned 65", locates},
		"no-end":       {"a location has no end", locates},
		"other-kind":   {`a location is "cuda:0", and its devices are tpu:N`, locates},
		"no-kind":      {"a location is", locates},
		"beyond":       {"a part of 18446744073709551615 bytes", locates},
		"overlap":      {"two of its devices have the byte", locates},
		"host-too":     {"", locates},
	} {
		t.Run(abuse, func(t *testing.T) {
			path := placed(t, compiled, filepath.Join(filepath.Dir(compiled), "lib"+abuse+".so"))
			p := Platforms([]string{path})[0]
			addr, size := uintptr(0), uint64(8192)
			if p.Check() == nil {
				addr, _ = p.Allocate(1, size)
			}
			err := row.call(p, addr)
			if row.says == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, row.says)
			require.ErrorContains(t, err, path)
			require.NotContains(t, err.Error(), "\033")
		})
	}
}

func checks(p device.Platform, _ uintptr) error { return p.Check() }

func allocates(p device.Platform, _ uintptr) error {
	_, err := p.Allocate(0, 4096)
	return err
}

func locates(p device.Platform, addr uintptr) error {
	_, err := p.Locate(addr, 8192)
	return err
}
