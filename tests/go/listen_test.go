package tests

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/sim"
)

// listening is a transport that peers reach at addresses of its own, as an RDMA transport is.
type listening struct {
	sim.Factory
	addresses []string
}

func (l *listening) ListenAddresses() []string { return l.addresses }

func (l *listening) Open(ctx context.Context, _ any, host transport.Host, sink transport.Sink) (transport.Transport,
	error) {
	return l.Factory.Open(ctx, nil, host, sink)
}

// plugs are two such transports.
func listeningAt(n *sim.Network, first, second string) []engine.Plug {
	one := &listening{sim.Factory{Settings: sim.Settings{Network: n, Name: "one"}}, []string{first}}
	two := &listening{sim.Factory{Settings: sim.Settings{Network: n, Name: "two"}}, []string{second}}
	return []engine.Plug{{Factory: one, Settings: one}, {Factory: two, Settings: two}}
}

func TestTheControlPlaneListensAtTheAddressesOfEveryTransport(t *testing.T) {
	n := sim.NewInline(1)
	names := []string{"one", "two"}
	b := open(t, nil, names, func() []engine.Plug { return listeningAt(n, "127.0.0.2", "127.0.0.3") })
	a := open(t, nil, names, func() []engine.Plug { return listeningAt(n, "127.0.0.4", "127.0.0.5") })
	_, port, err := net.SplitHostPort(b.Address())
	require.NoError(t, err)
	for _, host := range []string{"127.0.0.2", "127.0.0.3"} {
		id, err := a.OpenSegment(context.Background(), net.JoinHostPort(host, port))
		require.NoError(t, err, host)
		require.NoError(t, a.CloseSegment(id))
	}
}

func TestAnAddressOfAnyTransportBeyondLoopbackNeedsSecurity(t *testing.T) {
	names := []string{"one", "two"}
	c, err := config.Load(config.Options{Transports: table(names)})
	require.NoError(t, err)
	_, err = engine.Open(t.Context(), engine.Options{Config: c,
		Transports: listeningAt(sim.NewInline(1), "127.0.0.2", "192.0.2.1")})
	require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, "transports/two/addresses")
}

// homed is a transport that has found the NICs of this machine.
type homed struct{ listening }

func (homed) HomeAddresses() (list []netip.Addr) {
	found, _ := net.InterfaceAddrs()
	for _, each := range found {
		list = append(list, netip.MustParsePrefix(each.String()).Addr())
	}
	return list
}

// TestAddressesOfNICsAreListenedOnBeyondLoopbackAlone: an address that nobody named opens no door of an engine without.
func TestAddressesOfNICsAreListenedOnBeyondLoopbackAlone(t *testing.T) {
	var own []string
	for _, a := range (homed{}).HomeAddresses() {
		if !a.IsLoopback() && !a.IsLinkLocalUnicast() {
			own = append(own, a.String())
		}
	}
	if len(own) == 0 {
		t.Skip("this machine has no address beyond loopback")
	}
	plugs := func() []engine.Plug {
		one := &homed{listening{sim.Factory{Settings: sim.Settings{Network: sim.NewInline(1), Name: "one"}}, nil}}
		return []engine.Plug{{Factory: one, Settings: one}}
	}
	reached := func(settings map[string]any) (list []string) {
		e := open(t, settings, []string{"one"}, plugs)
		_, port, err := net.SplitHostPort(e.Address())
		require.NoError(t, err)
		for _, host := range own {
			if conn, err := net.DialTimeout("tcp", net.JoinHostPort(host, port), patience); err == nil {
				list = append(list, host)
				require.NoError(t, conn.Close())
			}
		}
		return list
	}
	require.Empty(t, reached(nil))
	key := filepath.Join(t.TempDir(), "cluster.key")
	require.NoError(t, os.WriteFile(key, bytes.Repeat([]byte("key "), 16), 0o600))
	secret := map[string]any{"security/cluster_key": key}
	require.Empty(t, reached(secret), "loopback was asked for")
	secret["rpc_server_hostname"] = own[0]
	require.Equal(t, own, reached(secret))
}
