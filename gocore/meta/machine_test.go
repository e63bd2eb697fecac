package meta

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	bootID  = "6f0d0f1e-7a52-4ad4-9a55-5e7f6c3f1f11"
	otherID = "0123456789abcdef0123456789abcdef"
)

func readFrom(files map[string]string) func(string) ([]byte, error) {
	return func(name string) ([]byte, error) {
		if text, ok := files[name]; ok {
			return []byte(text), nil
		}
		return nil, os.ErrNotExist
	}
}

func noHardware() string { return "" }

func TestContainersOfOneHostAreOneMachine(t *testing.T) {
	host := machineIDFrom(readFrom(map[string]string{"/proc/sys/kernel/random/boot_id": bootID + "\n",
		"/etc/machine-id": otherID}), noHardware)
	container := machineIDFrom(readFrom(map[string]string{"/proc/sys/kernel/random/boot_id": bootID + "\n"}),
		noHardware)
	require.Equal(t, host, container)
	require.NotContains(t, host, bootID[:8], "the id itself does not leave the machine")
}

func TestMachineIDFallsBackWhereTheBootIDIsMissing(t *testing.T) {
	fromFile := machineIDFrom(readFrom(map[string]string{"/etc/machine-id": otherID + "\n"}), noHardware)
	unset := machineIDFrom(readFrom(map[string]string{"/etc/machine-id": "uninitialized\n"}),
		func() string { return "a" })
	other := machineIDFrom(readFrom(map[string]string{"/etc/machine-id": "00000000000000000000000000000000"}),
		func() string { return "b" })
	require.NotEqual(t, fromFile, unset)
	require.NotEqual(t, unset, other)
	require.Len(t, other, 32)
}

func TestMachineIDIsStable(t *testing.T) {
	require.Equal(t, MachineID(), MachineID())
	require.NotEmpty(t, hardwareIdentity())
}
