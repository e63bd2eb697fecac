package hixl_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	fake "github.com/tent-engine/tent/tests/fakes/ascend"
	"github.com/tent-engine/tent/transports/ascend/hixl"
)

// A machine that lacks one of the three libraries is told which, and a library that is something else is refused.
func TestAMissingLibraryIsNamed(t *testing.T) {
	library, shim := fake.HIXL(t), fake.Shim(t)
	for name, c := range map[string]struct {
		metadef, hixl, shim string
		says                string
	}{
		"no CANN":      {"", "", "", "libmetadef.so"},
		"no HIXL":      {library, "", shim, "libcann_hixl.so"},
		"no shim":      {library, library, "", "libtent_ascend.so"},
		"another shim": {library, library, "libm.so.6", "is of interface 0, and this is 1: compile it again"},
		"another HIXL": {"libm.so.6", "libm.so.6", shim, "undefined symbol: _ZN"},
	} {
		t.Run(name, func(t *testing.T) {
			environment := []string{"TENT_LIBMETADEF=" + c.metadef, "TENT_LIBHIXL=" + c.hixl,
				"TENT_LIBASCEND=" + c.shim}
			fake.In(t, environment, func(t *testing.T) {
				err := hixl.Load()
				require.Equal(t, errs.DeviceNotFound, errs.CodeOf(err), "%v", err)
				require.ErrorContains(t, err, c.says)
				require.ErrorContains(t, err, "make ascend-shim")
				require.Equal(t, err, hixl.Load(), "once")
			})
		})
	}
}
