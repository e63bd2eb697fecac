package tests

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/transports/sim"
)

func TestOpenLogsTheRoutesOnce(t *testing.T) {
	n := sim.NewInline(1)
	built := []string{"near", "far", "off"}
	plug := func() (plugs []engine.Plug) {
		for _, name := range built {
			plugs = append(plugs, engine.Plug{Factory: sim.Factory{Settings: sim.Settings{Network: n, Name: name}}})
		}
		return plugs
	}
	here := open(t, map[string]any{"transports/off/enable": false}, built, plug)
	there := open(t, nil, built, plug)
	here.Logs(1000)
	_, err := here.OpenSegment(context.Background(), there.Address())
	require.NoError(t, err)
	var said []map[string]string
	for _, line := range here.Logs(1000) {
		if line.Message == "A peer was opened" {
			said = append(said, line.Attrs)
		}
	}
	require.Equal(t, []map[string]string{{"peer": there.Address(), "routes": "near, far",
		"without": "off: transports/off/enable is false"}}, said)
}
