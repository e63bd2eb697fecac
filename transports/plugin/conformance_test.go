package plugin

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/transporttest"
)

// TestConformance runs the suite over the example, with a source that is C99 and C++11 at once.
func TestConformance(t *testing.T) {
	inside := factory(t, built(t, asC, "example/inside.c"))
	transporttest.Run(t, func(*testing.T) transporttest.Harness {
		return transporttest.Harness{
			Check: inside.Check,
			Open: func(t *testing.T, c transporttest.Config) transport.Transport {
				tr, err := inside.Open(t.Context(), nil, c.Host, c.Sink)
				require.NoError(t, err)
				return tr
			},
		}
	})
}

// TestConformanceOfFiles runs the suite over the example of a transport for files.
func TestConformanceOfFiles(t *testing.T) {
	disk := factory(t, built(t, asCPlusPlus, "example/disk.c"))
	transporttest.Beside(t, func(*testing.T) transporttest.Harness {
		return transporttest.Harness{
			Check: disk.Check,
			Open: func(t *testing.T, c transporttest.Config) transport.Transport {
				tr, err := disk.Open(t.Context(), nil, c.Host, c.Sink)
				require.NoError(t, err)
				return tr
			},
			NoSelf:      "its peers are files, not engines",
			SilentClose: "files do not close",
		}
	})
}
