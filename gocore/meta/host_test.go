package meta

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
)

// twoNICs is a machine with eth0 (10.0.0.5, fd00::5), eth1 (10.1.0.5) and no carrier on eth2.
func twoNICs(defaultRoute string) Lookups {
	parse := func(list ...string) (out []netip.Addr) {
		for _, a := range list {
			out = append(out, netip.MustParseAddr(a))
		}
		return out
	}
	interfaces := map[string][]netip.Addr{"eth0": parse("fe80::1", "fd00::5", "10.0.0.5"), "eth1": parse("10.1.0.5"),
		"eth2": nil, "eth3": parse("fe80::3")}
	names := map[string][]netip.Addr{"localhost": parse("::1", "127.0.0.1"), "node7": parse("fd00::5", "10.0.0.5"),
		"debian": parse("127.0.1.1"), "node8": parse("10.0.0.8"), "both": parse("127.0.1.1", "10.1.0.5"),
		"outside.example": parse("203.0.113.9")}
	return Lookups{
		Lookup: func(name string) ([]netip.Addr, error) {
			if found := names[name]; found != nil {
				return found, nil
			}
			return nil, errors.New("no such host")
		},
		Interface: func(name string) ([]netip.Addr, bool) { a, is := interfaces[name]; return a, is },
		Own: func(a netip.Addr) bool {
			for _, list := range interfaces {
				for _, own := range list {
					if own == a {
						return true
					}
				}
			}
			return a.IsLoopback()
		},
		Source: func(to netip.Addr) (netip.Addr, bool) {
			if defaultRoute == "" || netip.MustParseAddr(defaultRoute).Is4() != to.Is4() {
				return netip.Addr{}, false
			}
			return netip.MustParseAddr(defaultRoute), true
		},
	}
}

func TestAHostNameLeadsToAnAddressThatPeersCanUse(t *testing.T) {
	for _, c := range []struct{ hostname, advertised, route, bind, data, name string }{
		{"", "", "10.0.0.5", "127.0.0.1", "127.0.0.1", "127.0.0.1"},
		{"localhost", "", "", "127.0.0.1", "127.0.0.1", "localhost"},
		{"10.0.0.5", "", "", "10.0.0.5", "10.0.0.5", "10.0.0.5"},
		{"fd00::5", "", "", "fd00::5", "fd00::5", "fd00::5"},
		{"[fd00::5]", "", "", "fd00::5", "fd00::5", "fd00::5"},
		{"node7", "", "", "10.0.0.5", "10.0.0.5", "node7"},
		{"debian", "", "", "127.0.1.1", "127.0.1.1", "debian"},
		{"both", "", "", "10.1.0.5", "10.1.0.5", "both"},
		{"eth0", "", "", "10.0.0.5", "10.0.0.5", "10.0.0.5"},
		{"eth1", "node7", "", "10.1.0.5", "10.1.0.5", "node7"},
		{"eth1", "[fd00::9]", "", "10.1.0.5", "10.1.0.5", "fd00::9"},
		{"0.0.0.0", "[fd00::5]", "10.1.0.5", "0.0.0.0", "10.1.0.5", "fd00::5"},
		{"0.0.0.0", "", "10.1.0.5", "0.0.0.0", "10.1.0.5", "10.1.0.5"},
		{"0.0.0.0", "node7", "10.1.0.5", "0.0.0.0", "10.0.0.5", "node7"},
		{"0.0.0.0", "outside.example", "10.1.0.5", "0.0.0.0", "10.1.0.5", "outside.example"},
		{"::", "", "10.1.0.5", "::", "10.1.0.5", "10.1.0.5"},
		{"::", "", "fd00::5", "::", "fd00::5", "fd00::5"},
		{"::", "eth1", "", "::", "10.1.0.5", "10.1.0.5"},
	} {
		h, err := FindHost(c.hostname, c.advertised, twoNICs(c.route))
		require.NoError(t, err, c.hostname)
		require.Equal(t, Host{netip.MustParseAddr(c.bind), netip.MustParseAddr(c.data), c.name}, h, "%s as %s",
			c.hostname, c.advertised)
	}
}

func TestAHostNameThatLeadsNowhereIsRefused(t *testing.T) {
	for hostname, why := range map[string]string{"node9": "is unknown", "node8": "no address of this machine",
		"eth2": "has no address", "fe80::1": "local to a link", "fe80::1%eth0": "local to a link",
		"eth3": "local to a link", "0.0.0.0": "rpc_advertise_hostname", "::": "rpc_advertise_hostname",
		"224.0.0.1": "a group", "255.255.255.255": "a group", "ff02::1": "a group", "::ffff:224.0.0.1": "a group"} {
		_, err := FindHost(hostname, "", twoNICs(""))
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), hostname)
		require.ErrorContains(t, err, why, hostname)
		require.ErrorContains(t, err, "rpc_server_hostname", hostname)
	}
}

// The name that an engine gives its host is half of its address. Peers check that, so nothing else is taken.
func TestAnAdvertisedHostStandsInAnAddress(t *testing.T) {
	for _, bad := range []string{"host:4000", "foo bar:99", "10.0.0.5:7000", "[fd00::5]:7000", "a/b", "a b", ".", "-",
		"0.0.0.0", "::", "224.0.0.1", "ff05::2", strings.Repeat("h", 250), strings.Repeat("h", 300), "\x00", "\xff"} {
		_, err := FindHost("127.0.0.1", bad, twoNICs(""))
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), "%q", bad)
		require.ErrorContains(t, err, "rpc_advertise_hostname", bad)
	}
	for _, good := range []string{"node-7.prod", "under_score", "10.0.0.9", "fd00::9", "[::1]", "eth0",
		strings.Repeat("h", 249)} {
		h, err := FindHost("127.0.0.1", good, twoNICs(""))
		require.NoError(t, err, good)
		address := net.JoinHostPort(h.Name, "65535")
		require.NoError(t, CheckAddress(address), good)
		require.LessOrEqual(t, len(address), addressMax)
	}
}

func TestThisMachineKnowsItsOwnAddresses(t *testing.T) {
	h, err := FindHost("localhost", "", ThisMachine())
	require.NoError(t, err)
	require.True(t, h.Bind.IsLoopback())
	h, err = FindHost("lo", "", ThisMachine())
	require.NoError(t, err)
	require.True(t, h.Bind.IsLoopback())
	_, err = FindHost("203.0.113.77.invalid", "", ThisMachine())
	require.Equal(t, errs.InvalidArgument, errs.CodeOf(err))
}
