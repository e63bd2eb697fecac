package tcp

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

func testOffer(t *testing.T) offer {
	return offer{owner: transport.NumberedID(5), attachment: attachmentID{9}, secret: secret{8},
		requests: 128, bytes: 1 << 20, machine: "m",
		addresses: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:80"), netip.MustParseAddrPort("[fe80::1%lo]:81")}}
}

func TestSettingsAreCheckedByName(t *testing.T) {
	for key, s := range map[string]Settings{
		"addresses":       {Addresses: []string{"localhost"}},
		"port":            {Port: 1 << 16},
		"rail_pairs":      {RailPairs: "some"},
		"lanes":           {Lanes: 17},
		"Workers":         {Workers: -1},
		"Greeting":        {Greeting: -time.Second},
		"lease_ms":        {Lease: -time.Second},
		"slice_bytes":     {SliceBytes: 1},
		"window_bytes":    {WindowBytes: 1},
		"credit_bytes":    {CreditBytes: 1},
		"credit_requests": {CreditRequests: 100},
	} {
		_, err := settled(s)
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), key)
		require.ErrorContains(t, err, key)
	}
	_, err := settled(Settings{Addresses: []string{"0.0.0.0"}})
	require.ErrorContains(t, err, "transports/tcp/addresses")
}

func TestNoAddressIsThatOfTheEngine(t *testing.T) {
	s, err := settled(Settings{})
	require.NoError(t, err)
	for _, engine := range [][]netip.Addr{{netip.MustParseAddr("127.0.0.7")}, {netip.MustParseAddr("::1")}} {
		ends, err := s.ends(engine)
		require.NoError(t, err)
		require.Equal(t, engine, ends)
	}
	ends, err := s.ends(nil)
	require.NoError(t, err)
	require.Equal(t, []netip.Addr{netip.MustParseAddr("127.0.0.1")}, ends)
}

func TestRailsWithoutNamedEndsFollowTheRoutes(t *testing.T) {
	at := func(text string) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr(text), 80) }
	routes := map[string]string{"127.0.0.1": "127.0.0.1", "10.1.0.2": "10.1.0.1", "10.2.0.2": "10.2.0.1",
		"10.2.0.3": "10.2.0.1", "fd00::2": "fd00::1"}
	source := func(to netip.Addr) (netip.Addr, bool) {
		from, found := routes[to.String()]
		if !found {
			return netip.Addr{}, false
		}
		return netip.MustParseAddr(from), true
	}
	for _, c := range []struct {
		remote []string
		near   bool
		want   string
	}{
		{[]string{"10.1.0.2"}, false, "10.1.0.1-10.1.0.2"},
		{[]string{"10.1.0.2", "10.2.0.2"}, false, "10.1.0.1-10.1.0.2 10.2.0.1-10.2.0.2"},
		{[]string{"10.2.0.2", "10.2.0.3", "fd00::2"}, false, "10.2.0.1-10.2.0.2 ~10.2.0.1-10.2.0.3 fd00::1-fd00::2"},
		{[]string{"127.0.0.1", "10.1.0.2"}, false, "10.1.0.1-10.1.0.2"},
		{[]string{"127.0.0.1"}, true, "127.0.0.1-127.0.0.1"},
		{[]string{"127.0.0.1", "10.9.0.2"}, false, ""},
	} {
		var remote []netip.AddrPort
		for _, a := range c.remote {
			remote = append(remote, at(a))
		}
		require.Equal(t, c.want, written(routePairs(remote, source, c.near)), c.remote)
	}
}

// written lists pairs as "local-remote", alternates with "~".
func written(pairs []pair) string {
	var list []string
	for _, p := range pairs {
		text := p.local.String() + "-" + p.remote.Addr().String()
		if p.alternate {
			text = "~" + text
		}
		list = append(list, text)
	}
	return strings.Join(list, " ")
}

func TestRailsPairLocalAndRemoteEnds(t *testing.T) {
	subnets := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("10.2.0.0/16"),
		netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("fd00::/64")}
	for _, c := range []struct {
		name          string
		local, remote []string
		all, sameHost bool
		want          string
	}{
		{"one subnet each", []string{"10.1.0.1", "10.2.0.1"}, []string{"10.1.0.2", "10.2.0.2"}, false, false,
			"10.1.0.1-10.1.0.2 10.2.0.1-10.2.0.2 ~10.1.0.1-10.2.0.2 ~10.2.0.1-10.1.0.2"},
		{"order does not matter", []string{"10.1.0.1", "10.2.0.1"}, []string{"10.2.0.2", "10.1.0.2"}, false, false,
			"10.1.0.1-10.1.0.2 10.2.0.1-10.2.0.2 ~10.1.0.1-10.2.0.2 ~10.2.0.1-10.1.0.2"},
		{"no subnet is shared", []string{"10.1.0.1", "10.2.0.1"}, []string{"10.8.0.2", "10.9.0.2"}, false, false,
			"10.1.0.1-10.8.0.2 10.2.0.1-10.9.0.2 ~10.1.0.1-10.9.0.2 ~10.2.0.1-10.8.0.2"},
		{"one of two is shared", []string{"10.1.0.1", "10.2.0.1"}, []string{"10.8.0.2", "10.2.0.2"}, false, false,
			"10.2.0.1-10.2.0.2 ~10.1.0.1-10.8.0.2 ~10.1.0.1-10.2.0.2 ~10.2.0.1-10.8.0.2"},
		{"same subnet twice: same index",
			[]string{"127.0.0.1", "127.0.0.2"}, []string{"127.0.0.1", "127.0.0.2"}, false, true,
			"127.0.0.1-127.0.0.1 127.0.0.2-127.0.0.2 ~127.0.0.1-127.0.0.2 ~127.0.0.2-127.0.0.1"},
		{"an end is left over, in the subnet first",
			[]string{"10.1.0.1", "10.2.0.1", "10.2.0.3"}, []string{"10.2.0.2"}, false, false,
			"10.2.0.1-10.2.0.2 ~10.2.0.3-10.2.0.2 ~10.1.0.1-10.2.0.2"},
		{"all", []string{"10.1.0.1", "10.2.0.1"}, []string{"10.1.0.2", "10.9.0.2"}, true, false,
			"10.1.0.1-10.1.0.2 10.1.0.1-10.9.0.2 10.2.0.1-10.1.0.2 10.2.0.1-10.9.0.2"},
		{"loopback of another machine", []string{"127.0.0.1"}, []string{"127.0.0.1"}, false, false, ""},
		{"families do not mix", []string{"10.1.0.1", "fd00::1"}, []string{"fd00::2"}, true, false, "fd00::1-fd00::2"},
		{"families in another order", []string{"10.1.0.1"}, []string{"fd00::2", "10.1.0.2"}, false, false,
			"10.1.0.1-10.1.0.2"},
	} {
		var local []netip.Addr
		for _, a := range c.local {
			local = append(local, netip.MustParseAddr(a))
		}
		var remote []netip.AddrPort
		for _, a := range c.remote {
			remote = append(remote, netip.AddrPortFrom(netip.MustParseAddr(a), 80))
		}
		got := written(pairUp(local, remote, subnets, c.all, c.sameHost))
		require.Equal(t, c.want, got, c.name)
	}
}

// The credit of a lane is the smaller one of both ends: a peer ends a lane that goes beyond its own.
func TestTheCreditOfALaneIsTheSmallerOne(t *testing.T) {
	tr := newTestEndpoint(t, Settings{CreditRequests: 1024}).tr.(*Transport)
	l := tr.newLink(visitor)
	for offered, credit := range map[uint32]int{requestsMin: requestsMin, 100: 64, 128: 128, 1023: 512, 1024: 1024,
		requestsMax: 1024, 1<<32 - 1: 1024} {
		l.offer.requests = offered
		require.Equal(t, credit, l.requests(), "%d", offered)
	}
}
