package rdma

import (
	"io/fs"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	fake "github.com/tent-engine/tent/tests/fakes/verbs"
	"github.com/tent-engine/tent/transports/rdma/verbs"
)

// address is an entry of a port's table; its bytes begin with those given.
func address(v2 bool, index int, prefix ...byte) verbs.GID {
	g := verbs.GID{Index: index, Port: 1, RoCEv2: v2}
	copy(g.GID[:], prefix)
	g.GID[15] = byte(index + 1)
	return g
}

func ipv4(v2 bool, index int, a, b byte) verbs.GID {
	return address(v2, index, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b)
}

// TestTheAddressThatRailsTryFirstIsNamed has a case for each reason against a port's addresses.
func TestTheAddressThatRailsTryFirstIsNamed(t *testing.T) {
	active, local := verbs.Port{Active: true, Ethernet: true}, address(true, 1, 0xfe, 0x80)
	infiniband := address(false, 0, 0xfe, 0x80)
	infiniband.InfiniBnd = true
	for _, test := range []struct {
		name          string
		port          verbs.Port
		gids          []verbs.GID
		found, reason string
	}{
		{"a routed one behind others", active, []verbs.GID{local, ipv4(false, 2, 10, 1), ipv4(true, 3, 10, 1)},
			"RoCE v2 10.1.0.4 at index 3, of 3", ""},
		{"IPv6", active, []verbs.GID{local, address(true, 4, 0x20, 1)}, "RoCE v2 2001::5 at index 4, of 2", ""},
		{"link-local alone", active, []verbs.GID{{}, local}, "",
			"the best is RoCE v2 fe80::2 at index 1, which no router passes on"},
		{"version 1 alone", active, []verbs.GID{ipv4(false, 0, 10, 1)}, "", "the best is RoCE v1 10.1.0.1 at index 0"},
		{"none", active, []verbs.GID{{}}, "", "port 1 has none"},
		{"a port that is down", verbs.Port{Ethernet: true}, []verbs.GID{ipv4(true, 3, 10, 1)}, "", "port 1 is down"},
		{"InfiniBand", verbs.Port{Active: true, LID: 7}, []verbs.GID{infiniband},
			"InfiniBand fe80::1 at index 0, of 1", ""},
		{"InfiniBand without a subnet manager", verbs.Port{Active: true}, []verbs.GID{infiniband}, "",
			"port 1 has no LID"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := ofAddresses("mlx5_0", test.port, test.gids)
			require.Equal(t, test.reason, p.Reason)
			require.NotEmpty(t, p.Matters)
			if test.found != "" {
				require.Equal(t, []string{test.found}, p.Found)
			}
		})
	}
}

func TestSmallPacketsAndTheirCauseAreNamed(t *testing.T) {
	root := fstest.MapFS{"sys/class/net/eth0/flags": {Data: []byte("0x1003")},
		"sys/class/net/eth0/mtu": {Data: []byte("1500")}}
	port := verbs.Port{Active: true, MTU: 3}
	require.Equal(t, "1024 bytes, of 4096 at most; the MTU of eth0 is 1500",
		ofPackets(root, "mlx5_0", "eth0", port).Reason)
	require.Equal(t, "1024 bytes, of 4096 at most", ofPackets(root, "mlx5_0", "", port).Reason)
	large := ofPackets(root, "mlx5_0", "eth0", verbs.Port{Active: true, MTU: 5})
	require.Empty(t, large.Reason)
	require.Equal(t, []string{"4096 bytes"}, large.Found)
}

// TestADeviceIsExaminedWhole goes over the fake library, and over a bridge that redirects.
func TestADeviceIsExaminedWhole(t *testing.T) {
	f := fake.Open(t)
	library, err := verbs.Load(f.Path)
	require.NoError(t, err)
	config := make([]byte, 0x110)
	config[0x100], config[0x106] = 0x0d, 1<<2
	root := fstest.MapFS{
		"sys/class/infiniband/fake0/device": {Mode: fs.ModeSymlink,
			Data: []byte("../../../devices/0000:00:01.0/0000:01:00.0")},
		"sys/bus/pci/devices/0000:01:00.0": {Mode: fs.ModeSymlink,
			Data: []byte("../../../devices/0000:00:01.0/0000:01:00.0")},
		"sys/devices/0000:00:01.0/config":                 {Data: config},
		"sys/devices/0000:00:01.0/0000:01:00.0/numa_node": {Data: []byte("0")},
	}
	list := examine(root, library, "fake0")
	require.Len(t, list, 4)
	for _, p := range list[:3] {
		require.Empty(t, p.Reason, p.Name)
		require.NotEmpty(t, p.Found, p.Name)
	}
	require.Equal(t, "ACS of 0000:00:01.0 redirects requests between devices", list[3].Reason)
	list = examine(fstest.MapFS{}, library, "fake1")
	require.Equal(t, []string{"none"}, list[3].Found)
	require.Empty(t, list[3].Reason)
	f.Control(t, "port fake0 0")
	require.Equal(t, "port 1 is down", examine(root, library, "fake0")[0].Reason)
}
