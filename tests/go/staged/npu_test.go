//go:build cgo

package staged

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/fakes/ascend"
)

// Bytes of an NPU reach another process without HIXL, and come back: the platform copies them, and the transports of
// the host carry them on. Old toolkits know addresses alone.
func TestBytesOfAnNPUCrossThroughHostMemory(t *testing.T) {
	for name, c := range map[string]struct {
		here, there int
		absent      []string
		taken       string
	}{
		"to a host":   {0, -1, nil, "tcp"},
		"to a device": {0, 1, ascend.Older, "delegate"},
		"from a host": {-1, 0, nil, "delegate"},
		"on one host": {1, 0, nil, "delegate"},
		"of CANN 8.1": {1, -1, ascend.Older, "tcp"},
	} {
		t.Run(name, func(t *testing.T) {
			ascend.Run(t, nil, c.absent, func(t *testing.T, _ *ascend.Loaded) {
				only := map[string]any{"transports/nvlink/enable": false, "transports/acl/enable": true}
				p := startWith(t, c.there, only)
				e, m := hereWith(t, c.here, only)
				to := open(t, e, p.address)
				crosses(t, e, m, p.bytes, to)
				x, err := e.Explain(request(transport.Write, m, to, 0, size))
				require.NoError(t, err)
				require.Equal(t, c.taken, x.Taken, "%+v", x)
				require.Equal(t, 2, x.Routes[0].Hops)
			})
		})
	}
}
