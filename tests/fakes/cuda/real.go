//go:build cgo

package cuda

import (
	"os"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/tests/fakes/loaded"
)

// OverReal returns the path of a library of doors over a real driver, which TENT_REAL_LIBCUDA names; "" means that
// tests have the emulated one. Folder real has its source, and doc.go its build.
func OverReal() string { return os.Getenv("TENT_REAL_LIBCUDA") }

// Last returns the ordinal of the last device of tests. The emulated driver has two unless DEVICES says otherwise. A
// machine with one GPU has 0, so a test that uses device 0 and this one runs there, too.
func Last() int {
	if OverReal() == "" {
		return 1
	}
	return realDevices() - 1
}

// realDevices asks the real driver.
var realDevices = sync.OnceValue(func() int {
	library, err := loaded.Open("TENT_REAL_LIBCUDA", "fakecuda_")
	if err != nil {
		panic(err)
	}
	return int(library.Number("devices"))
})

// harmless are the settings that no test sees.
var harmless = map[string]bool{"DELAY_US": true, "SEED": true}

// skipUnreal skips a test that asks for another driver than the real one of this machine. DEVICES is the least number
// of devices there.
func skipUnreal(t *testing.T, d Driver, s Settings) {
	t.Helper()
	if d.Version != 0 || len(d.Absent) > 0 {
		t.Skipf("only the emulated driver has other versions: %+v", d)
	}
	for name, value := range s {
		if name == "DEVICES" {
			least, err := strconv.Atoi(value)
			require.NoError(t, err)
			if has := realDevices(); least == 0 || least > has {
				t.Skipf("this machine has %d devices, and the test is for %d", has, least)
			}
		} else if !harmless[name] {
			t.Skipf("only the emulated driver has the setting %s=%s", name, value)
		}
	}
}
