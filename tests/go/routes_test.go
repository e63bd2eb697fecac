package tests

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/transport"
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

// nameless attaches peers and forgets to say under which number.
type nameless struct {
	transport.Transport
	link transport.Link
}

func (n *nameless) Attach(p transport.Peer) (transport.Link, error) {
	link, err := n.Transport.Attach(p)
	if err == nil {
		n.Detach(link)
	}
	return n.link, err
}

type namelessFactory struct {
	sim.Factory
	link transport.Link
}

func (f namelessFactory) Open(ctx context.Context, config any, host transport.Host,
	sink transport.Sink) (transport.Transport, error) {
	t, err := f.Factory.Open(ctx, config, host, sink)
	if err != nil {
		return nil, err
	}
	return &nameless{t, f.link}, nil
}

// A transport that attaches a peer without a link has no route to it. The index of such a link is the largest of all,
// and a table of that length is sixteen gigabytes.
func TestAPeerAttachedWithoutALinkHasNoRoute(t *testing.T) {
	for _, link := range []transport.Link{0, 1, 1 << 32} {
		n := sim.NewInline(1)
		built := []string{"nameless", "sound"}
		plug := func() []engine.Plug {
			return []engine.Plug{{Factory: namelessFactory{sim.Factory{Settings: sim.Settings{Network: n,
				Name: "nameless"}}, link}},
				{Factory: sim.Factory{Settings: sim.Settings{Network: n, Name: "sound"}}}}
		}
		here, there := open(t, nil, built, plug), open(t, nil, built, plug)
		own, theirs := memory(t, 4096), newGuarded(t, 4096)
		fill(own, 3)
		offer(t, here, own, "")
		offer(t, there, theirs.bytes, "kv")
		here.Logs(1000)
		exchange(t, here, segment(t, here, there, "kv"), own, transport.Write)
		same(t, theirs.bytes, 3, 0)
		theirs.check(t)
		said := ""
		for _, line := range here.Logs(1000) {
			said += line.Attrs["routes"] + "; " + line.Attrs["without"]
		}
		require.Contains(t, said, "sound; nameless: the transport attached the peer without a link")
	}
}
