package tcp

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/transporttest"
)

// TestConformance runs the suite of the contract over loopback, with two rails on two of its addresses.
func TestConformance(t *testing.T) {
	transporttest.Run(t, transporttest.Harness{
		Check: Factory{}.Check,
		Open: func(t *testing.T, c transporttest.Config) transport.Transport {
			s := Settings{Addresses: []string{"127.0.0.1", "127.0.0.2"}[:min(c.Rails, 2)]}
			tr, err := Factory{}.Open(context.Background(), s, c.Host, c.Sink)
			require.NoError(t, err)
			return tr
		},
		CutRail: func(_ *testing.T, n *transporttest.Node, rail transport.Rail) {
			if set := n.Transport.(*Transport).setOf(rail); set != nil {
				set.each((*lane).shutdown)
			}
		},
	})
}
