//go:build cgo

package cufile

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/tests/fakes/compiled"
	"github.com/tent-engine/tent/tests/fakes/cuda"
	"github.com/tent-engine/tent/tests/fakes/loaded"
)

// Settings of the library in a process, by the names of its environment variables without TENT_FAKECUFILE_.
//
//	NATIVE    0: the major version of nvidia-fs; 0 is compat mode
//	COMPAT    1: compat mode is allowed
//	BATCHES   1: its properties say that it has batches
//	DELAY_US  0: the longest delay of an I/O; SEED of the delays and of the order, 1
//	VERSION   1090
//	LOST      1: it answers for the ends of runs also on a device that is lost
//	PIN_MOST  bytes of a buffer that can be registered
//	TMPFS     1: it takes files of tmpfs, as no library does, since folders of tests may be there
type Settings map[string]string

// Environment is that of a child which is to load a library with settings.
func (s Settings) Environment(library string) []string {
	list := []string{"TENT_LIBCUFILE=" + library}
	for name, value := range s {
		list = append(list, "TENT_FAKECUFILE_"+name+"="+value)
	}
	return list
}

// BatchCalls are the symbols that libraries without batches do not export.
var BatchCalls = []string{"cuFileBatchIOSetUp", "cuFileBatchIOSubmit", "cuFileBatchIOGetStatus", "cuFileBatchIOCancel",
	"cuFileBatchIODestroy"}

// Library builds a library without some symbols, and returns its path.
func Library(t testing.TB, absent ...string) string {
	l := compiled.Fake("cufile", "libcufile.so.0")
	l.Absent = absent
	return l.Build(t)
}

// Run carries a test out in a child process with the emulated libraries. The end of the test checks that nothing of
// them is left open.
func Run(t *testing.T, s Settings, gpu cuda.Settings, absent []string, test func(t *testing.T, io *Loaded,
	gpu *cuda.Loaded)) {
	cuda.RunWith(t, cuda.Driver{}, gpu, s.Environment(Library(t, absent...)), func(t *testing.T, gpu *cuda.Loaded) {
		io, err := Load()
		require.NoError(t, err)
		t.Cleanup(func() {
			left := io.Stats()
			left.Moved, left.Submits, left.Cancels, left.Drivers, left.Faults = 0, 0, 0, 0, 0
			require.Zero(t, left, "left open")
		})
		test(t, io, gpu)
	})
}

// Loaded is the library in this process, a child of a test. Its methods may be called from any goroutine.
// Hold holds I/Os back before they move a byte.
type Loaded struct{ loaded.Library }

// Stats are counters of the library in this process. The first four return to 0.
type Stats struct {
	Handles, Buffers, Batches, UnderWay int64

	Moved                     int64 // bytes
	Submits, Cancels, Drivers int64
	Faults                    int64 // injected ones that have come
}

// Load returns the library that TENT_LIBCUFILE names.
func Load() (*Loaded, error) {
	library, err := loaded.Open("TENT_LIBCUFILE", "fakecufile_")
	return &Loaded{library}, err
}

// Inject makes the nth call of a function from now on fail with a code. Of "io" it is the nth I/O, which fails late
// with an errno, and of "short" the nth I/O, of which half is carried out.
func (l *Loaded) Inject(function string, nth, code int) { l.Library.Inject(function, nth, code, false) }

// Stats returns the counters.
func (l *Loaded) Stats() (s Stats) {
	l.Counters(unsafe.Pointer(&s))
	return s
}
