package access

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/transports/host/manifest"
	"github.com/tent-engine/tent/transports/host/vm"
)

const aVersion = 2

// FuzzWelcome offers any bytes: those that are a welcome say the same when they are written again.
func FuzzWelcome(f *testing.F) {
	claim := manifest.Claim{PID: 41, Started: 42, File: vm.File{Fd: 43, Dev: 44, Ino: 45}}
	f.Add(welcome{NewToken(), claim, vm.File{Fd: 5, Dev: 6, Ino: 7}, vm.AnyTracer}.append([]byte{aVersion}))
	f.Add([]byte{aVersion})
	f.Fuzz(func(t *testing.T, b []byte) {
		if w, err := readWelcome(b, aVersion); err == nil {
			require.Equal(t, b, w.append([]byte{aVersion}))
		}
	})
}
