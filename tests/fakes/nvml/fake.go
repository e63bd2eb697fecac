// Package nvml builds a management library without hardware, for tests: src/fake.c.
package nvml

import (
	"testing"

	"github.com/tent-engine/tent/tests/fakes/compiled"
)

// Env is the variable of the environment by which a test names the library.
const Env = "TENT_LIBNVIDIA_ML"

// Library builds the library, with further options of the compiler, and returns its path. Settings of it come by the
// environment, see src/fake.c.
func Library(t testing.TB, options ...string) string {
	return compiled.Fake("nvml", "libnvidia-ml.so.1", options...).Build(t)
}
