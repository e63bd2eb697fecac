//go:build cgo

package driver

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	fake "github.com/tent-engine/tent/tests/fakes/cuda"
)

// Peer access does not change while a process lives, so the driver is asked once. The reason names both devices, the
// call that says so, and a cure.
func TestADeviceReachesAnotherOrSaysWhy(t *testing.T) {
	type script struct {
		driver   fake.Driver
		settings fake.Settings
		function string // its next call fails
		result   int
		code     errs.Code // OK: there is access
		says     string
	}
	const enable = "cuCtxEnablePeerAccess"
	for name, c := range map[string]script{
		"access": {},
		"none": {settings: fake.Settings{"APART": "all"}, code: errs.NotHere,
			says: "cuDeviceCanAccessPeer says 0"},
		"unsupported": {function: enable, result: 217, code: errs.NotHere, says: "PEER_ACCESS_UNSUPPORTED, 217"},
		"too many":    {function: enable, result: 711, code: errs.NotHere, says: enable + ": "},
		"enabled":     {function: enable, result: 704}, // by a framework
		"an old one":  {driver: fake.Driver{Absent: []string{"cuDeviceCanAccessPeer", enable}}},
	} {
		t.Run(name, func(t *testing.T) {
			fake.Run(t, c.driver, c.settings, func(t *testing.T, gpu *fake.Loaded) {
				require.NoError(t, Join(0, 0), "a device reaches itself")
				if c.function != "" {
					gpu.Inject(c.function, 1, c.result, false)
				}
				for range 2 {
					err := Join(0, 1)
					asked := gpu.Stats().Calls
					require.Equal(t, err, Join(0, 1))
					require.Equal(t, asked, gpu.Stats().Calls, "the driver is asked once")
					require.Equal(t, c.code, errs.CodeOf(err), "%v", err)
					if c.code != errs.OK {
						require.ErrorContains(t, err,
							"cuda:0 (PCI face:1a:00.0) has no peer access to cuda:1 (PCI face:1b:00.0): ")
						require.ErrorContains(t, err, c.says)
						require.ErrorContains(t, err, "with staging/enable their bytes go through memory of the host")
					}
				}
			})
		})
	}
}

// Both contexts are open to each other then. Until then the driver carries copies between two devices of one process
// through memory of the host.
func TestJoinedDevicesAreOpenInBothDirections(t *testing.T) {
	fake.Run(t, fake.Driver{}, fake.Settings{"DEVICES": "2"}, func(t *testing.T, gpu *fake.Loaded) {
		require.NoError(t, Reach(0, 1))
		require.Zero(t, gpu.Stats().Peers, "a question opens nothing, and makes no context")
		require.Zero(t, gpu.Stats().Retained)
		require.NoError(t, Join(0, 1))
		require.EqualValues(t, 2, gpu.Stats().Peers)
		require.NoError(t, Join(1, 0))
		require.EqualValues(t, 2, gpu.Stats().Peers)
	})
}

// An error that stays is none of the pair: another question asks the driver again, and its device is lost.
func TestALostDeviceReachesNothing(t *testing.T) {
	fake.Run(t, fake.Driver{}, nil, func(t *testing.T, gpu *fake.Loaded) {
		gpu.Inject("cuCtxEnablePeerAccess", 1, 700, true)
		require.Equal(t, errs.CudaError, errs.CodeOf(Join(0, 1)))
		require.ErrorContains(t, Reach(0, 1), "CUDA_ERROR_ILLEGAL_ADDRESS")
		require.NotNil(t, Lost(0))
		gpu.Forgive()
	})
}

// A process that does not see the peer's GPU learns it from the driver's own refusal, and names it by its UUID.
func TestAGPUThatIsNotSeenIsNamedByItsUUID(t *testing.T) {
	fake.Run(t, fake.Driver{}, fake.Settings{"OWN": "1"}, func(t *testing.T, gpu *fake.Loaded) {
		at, err := Platform{}.Allocate(1, 4096)
		require.NoError(t, err)
		blocks, err := Share(at, 4096, 1)
		require.NoError(t, err)
		for owner, says := range map[[16]byte]string{
			{0xab, 0xcd, 15: 0xef}: "no peer access to the peer's GPU-abcd0000-0000-0000-0000-0000000000ef: ",
			{}:                     "no peer access to the peer's GPU: ", // a driver without UUIDs
		} {
			m, err := Map(blocks, at, owner)
			require.NoError(t, err)
			gpu.Inject("cuIpcOpenMemHandle_v2", 1, 217, false)
			_, err = m.On(0)
			require.ErrorContains(t, err, says+"cuIpcOpenMemHandle_v2: peer access is not supported")
			require.Equal(t, errs.NotHere, errs.CodeOf(err))
			require.NoError(t, m.Close())
		}
		require.NoError(t, Platform{}.Free(at, 4096))
	})
}

// A mapping that the driver does not take down is there still, and the next call tries again.
func TestAMappingThatStaysIsClosedAgain(t *testing.T) {
	fake.Run(t, fake.Driver{}, fake.Settings{"OWN": "1"}, func(t *testing.T, gpu *fake.Loaded) {
		at, err := Platform{}.Allocate(1, 4096)
		require.NoError(t, err)
		blocks, err := Share(at, 4096, 1)
		require.NoError(t, err)
		m, err := Map(blocks, at, [16]byte{})
		require.NoError(t, err)
		_, err = m.On(0)
		require.NoError(t, err)
		gpu.Inject("cuIpcCloseMemHandle", 1, 2, false)
		require.ErrorContains(t, m.Close(), "CUDA_ERROR_OUT_OF_MEMORY")
		require.EqualValues(t, 1, gpu.Stats().Imports)
		require.NoError(t, m.Close())
		require.Zero(t, gpu.Stats().Imports)
		require.NoError(t, m.Close(), "nothing is left to close")
		_, err = m.On(0)
		require.Equal(t, errs.AddressNotRegistered, errs.CodeOf(err), "%v", err)
		require.Zero(t, gpu.Stats().Imports, "it is opened no more")
		require.NoError(t, Platform{}.Free(at, 4096))
	})
}
