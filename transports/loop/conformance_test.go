package loop

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/device/devicetest"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/transporttest"
)

func TestConformanceOnAPlatform(t *testing.T) {
	transporttest.Again(t, func(t *testing.T) transporttest.Harness {
		f := OnPlatform{Platform: devicetest.New(t, mem.Tpu, 1)}
		return transporttest.Harness{
			Check: f.Check, Local: transporttest.OnPlatform(f.Platform, 0),
			Open: func(t *testing.T, c transporttest.Config) transport.Transport {
				tr, err := f.Open(t.Context(), nil, c.Host, c.Sink)
				require.NoError(t, err)
				return tr
			},
		}
	})
}

func TestConformance(t *testing.T) {
	transporttest.Run(t, func(*testing.T) transporttest.Harness {
		return transporttest.Harness{
			Check: Factory{}.Check,
			Open: func(t *testing.T, c transporttest.Config) transport.Transport {
				tr, err := Factory{}.Open(t.Context(), nil, c.Host, c.Sink)
				require.NoError(t, err)
				return tr
			},
		}
	})
}

// Memory of the host that an engine allocates beside a platform is its own: loop's is in Go's heap, near no node.
func TestBesideAPlatformNothingIsAllocated(t *testing.T) {
	_, beside := OnPlatform{Platform: devicetest.New(t, mem.Tpu, 1)}.Describe()
	_, is := transport.Find[transport.Allocator](&loop{})
	require.True(t, is)
	_, is = transport.Find[transport.Allocator](beside)
	require.False(t, is)
}
