//go:build cgo

package gds

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/cufile"
	"github.com/tent-engine/tent/transports/cuda/cufile"
	"github.com/tent-engine/tent/transports/file"
	"github.com/tent-engine/tent/transports/transporttest"
)

// takesFiles skips a test where the library takes no file of the folder for temporary ones. It refuses tmpfs and file
// systems that it does not know.
func takesFiles(t *testing.T) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(t.TempDir(), "probe"), os.O_RDWR|os.O_CREATE, 0o600)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, f.Truncate(4096))
	_, err = cufile.Driver()
	require.NoError(t, err)
	handle, err := cufile.Adopt(int(f.Fd()))
	if err != nil {
		t.Skipf("libcufile takes no file of %s: %v", os.TempDir(), err)
	}
	cufile.Drop(handle)
}

// TestConformanceOfTheRealLibrary runs the suite over NVIDIA's own libcufile, in compat mode over the emulated driver.
func TestConformanceOfTheRealLibrary(t *testing.T) {
	fake.Real(t, nil, func(t *testing.T) {
		takesFiles(t)
		transporttest.Again(t, func(*testing.T) transporttest.Harness { return harness(file.Settings{}) })
	})
}

// The real library never returns from its opening on a kernel without modules. It is a reason instead.
func TestTheRealLibraryIsNotOpenedWhereItWouldNotReturn(t *testing.T) {
	fake.Real(t, []string{"TENT_NO_MODULES=1"}, func(t *testing.T) {
		_, err := Factory{}.Open(t.Context(), nil, nil, nil)
		require.Equal(t, errs.DeviceNotFound, errs.CodeOf(err))
		require.ErrorContains(t, err, "/proc/modules")
	})
}

// Its version and its mode are told as those of the emulated one.
func TestTheModeOfTheRealLibraryIsReported(t *testing.T) {
	fake.Real(t, nil, func(t *testing.T) {
		takesFiles(t)
		r := open(t, file.Settings{})
		require.True(t, r.node.Info.Bounces)
		said := r.node.Transport.(transport.Explainer).Explain(r.conn.Link)
		require.Contains(t, said, "in compat mode, without nvidia-fs")
		r.conn.Must(t, r.slice(transport.Write, 0, size))
		require.NoError(t, r.remote.Check(tag, 0, 0, size))
	})
}
