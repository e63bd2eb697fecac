//go:build cgo

package ascend

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/tests/fakes/compiled"
	"github.com/tent-engine/tent/tests/fakes/cuda"
)

// Settings of the runtime in a process, by the names of its environment variables without TENT_FAKEACL_.
//
//	DEVICES   2
//	BYTES     4 GiB of each device
type Settings map[string]string

// Environment is that of a child which is to load a library with settings.
func (s Settings) Environment(library string) []string {
	list := []string{"TENT_LIBASCENDCL=" + library}
	for name, value := range s {
		list = append(list, "TENT_FAKEACL_"+name+"="+value)
	}
	return list
}

// Older is the symbols that CANN 8.1 lacks, and one more.
var Older = []string{"aclrtMemGetAddressRange", "aclrtDeviceGetPCIBusId", "aclrtMemset"}

// Library builds a runtime without some symbols, and returns its path.
func Library(t testing.TB, absent ...string) string {
	l := compiled.Fake("ascend", "libascendcl.so")
	l.Absent = absent
	return l.Build(t)
}

// Run carries a test out in a child process with the emulated runtime. The end of the test checks that all its memory
// was given back.
func Run(t *testing.T, s Settings, absent []string, test func(t *testing.T, npu *Loaded)) {
	RunWith(t, s, absent, nil, test)
}

// RunWith is Run with more of an environment.
func RunWith(t *testing.T, s Settings, absent, more []string, test func(t *testing.T, npu *Loaded)) {
	In(t, append(s.Environment(Library(t, absent...)), more...), func(t *testing.T) {
		npu, err := Load()
		require.NoError(t, err)
		t.Cleanup(func() {
			left := npu.Stats()
			left.Copies, left.Calls = 0, 0
			require.Zero(t, left, "left allocated")
		})
		test(t, npu)
	})
}

// In carries a test out in a child process with more of an environment.
func In(t *testing.T, environment []string, test func(t *testing.T)) { cuda.In(t, environment, test) }
