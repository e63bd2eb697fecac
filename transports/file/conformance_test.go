package file

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/transporttest"
)

// harness runs the suite of the contract on files in a folder.
func harness(f transport.Factory, s Settings, folder string) func(*testing.T) transporttest.Harness {
	h := transporttest.Harness{
		Check:  f.Check,
		Folder: folder,
		Open: func(t *testing.T, c transporttest.Config) transport.Transport {
			tr, err := f.Open(t.Context(), s, c.Host, c.Sink)
			require.NoError(t, err)
			return tr
		},
		NoSelf:      "its peers are files, not engines",
		SilentClose: "files do not close",
	}
	return func(*testing.T) transporttest.Harness { return h }
}

// inMemory is a folder on tmpfs.
func inMemory(t *testing.T) string {
	if testing.Short() {
		t.Skip("the same suite on a disk is enough for a short run")
	}
	if _, err := os.Stat("/dev/shm"); err != nil {
		t.Skipf("no tmpfs: %v", err)
	}
	return "/dev/shm"
}

func TestConformanceOfBufferedIO(t *testing.T) {
	transporttest.Run(t, harness(BufferedFactory{}, Settings{}, ""))
}

func TestConformanceOfBufferedIOInMemory(t *testing.T) {
	transporttest.Again(t, harness(BufferedFactory{}, Settings{Workers: 2, Descriptors: 1}, inMemory(t)))
}

// TestConformanceOfIOUring uses O_DIRECT where the folder for temporary files takes it.
func TestConformanceOfIOUring(t *testing.T) {
	transporttest.Beside(t, harness(UringFactory{}, Settings{}, ""))
}

func TestConformanceOfIOUringThroughThePageCache(t *testing.T) {
	transporttest.Again(t, harness(UringFactory{}, Settings{Direct: DirectOff, Depth: 3, Descriptors: 1}, inMemory(t)))
}
