package loop

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/transporttest"
)

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
