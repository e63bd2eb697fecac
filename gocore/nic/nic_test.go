package nic

import (
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// machine makes a /sys of lines "name device key=value ...": devices are below sys/devices, keys are files, and lower_x
// is a link to an interface.
func machine(lines ...string) fstest.MapFS {
	root := fstest.MapFS{}
	for _, line := range lines {
		fields := strings.Fields(line)
		name, device := fields[0], "sys/devices/"+fields[1]+"/net/"+fields[0]
		root[Folder+"/"+name] = &fstest.MapFile{Data: []byte("../../" + device[len("sys/"):]),
			Mode: fs.ModeSymlink | 0o777}
		for _, f := range fields[2:] {
			key, value, file := strings.Cut(f, "=")
			switch {
			case !file:
				root[device+"/"+key] = &fstest.MapFile{Data: []byte("anywhere"), Mode: fs.ModeSymlink | 0o777}
			case key == "node":
				root["sys/devices/"+fields[1]+"/numa_node"] = &fstest.MapFile{Data: []byte(value + "\n"), Mode: 0o444}
			default:
				root[device+"/"+key] = &fstest.MapFile{Data: []byte(value + "\n"), Mode: 0o444}
			}
		}
	}
	return root
}

func TestWhereAnInterfaceIs(t *testing.T) {
	const (
		ens1 = "ens1 pci0000:00/0000:01:00.0 flags=0x1003 speed=200000 mtu=9000 node=0"
		ens2 = "ens2 pci0000:80/0000:84:00.0/virtio5 flags=0x1003 speed=100000 node=1"
		ens3 = "ens3 pci0000:80/0000:85:00.0 flags=0x1003 speed=100000 node=1"
		lost = "lost pci0000:80/0000:86:00.0 flags=0x1003 speed=-1 node=-1"
		veth = "veth0 virtual flags=0x1003 speed=10000"
	)
	for _, c := range []struct {
		name  string
		about string
		lines []string
		want  NIC
	}{
		{"ens1", "a device", []string{ens1}, NIC{PCIBusID: "0000:01:00.0", Node: 0, Up: true, SpeedMbps: 200000,
			MTU: 9000}},
		{"ens2", "its own folder tells the node", []string{ens2},
			NIC{PCIBusID: "0000:84:00.0", Node: 1, Up: true, SpeedMbps: 100000}},
		{"lost", "firmware that does not know", []string{lost}, NIC{PCIBusID: "0000:86:00.0", Node: -1, Up: true}},
		{"down", "no carrier", []string{"down pci0/0000:01:00.0 flags=0x1003 operstate=down speed=4294967295"},
			NIC{PCIBusID: "0000:01:00.0", Node: -1}},
		{"v0", "a veth whose other end is down", []string{"v0 virtual flags=0x1003 operstate=lowerlayerdown"},
			NIC{Node: -1, Virtual: true}},
		{"gone", "hardware that is not there", []string{"gone virtual flags=0x1003 operstate=notpresent"},
			NIC{Node: -1, Virtual: true}},
		{"dormant", "before it is let into the network", []string{"dormant virtual flags=0x1003 operstate=dormant"},
			NIC{Node: -1, Virtual: true}},
		{"tun0", "a state that nobody sets", []string{"tun0 virtual flags=0x1003 operstate=unknown"},
			NIC{Node: -1, Up: true, Virtual: true}},
		{"veth0", "its speed is a lie", []string{veth}, NIC{Node: -1, Up: true, Virtual: true}},
		{"lo", "loopback", []string{"lo virtual flags=0x9"}, NIC{Node: -1, Up: true, Virtual: true}},
		{"bond0", "of one node", []string{ens2, ens3, "bond0 virtual flags=0x1403 speed=200000 lower_ens2 lower_ens3"},
			NIC{Node: 1, Up: true, Virtual: true, SpeedMbps: 200000}},
		{"bond0", "of two nodes", []string{ens1, ens3, "bond0 virtual flags=0x1403 speed=300000 lower_ens1 lower_ens3"},
			NIC{Node: -1, Up: true, Virtual: true, SpeedMbps: 300000}},
		{"bond0.5", "a VLAN on a bond on NICs", []string{ens2, ens3,
			"bond0 virtual flags=0x1403 speed=200000 lower_ens2 lower_ens3",
			"bond0.5 virtual flags=0x1003 speed=200000 lower_bond0"},
			NIC{Node: 1, Up: true, Virtual: true, SpeedMbps: 200000}},
		{"br0", "a bridge with a veth",
			[]string{ens2, veth, "br0 virtual flags=0x1003 speed=10000 lower_ens2 lower_veth0"},
			NIC{Node: -1, Up: true, Virtual: true}},
		{"br0", "in a loop", []string{"br0 virtual flags=0x1003 speed=10000 lower_br0"},
			NIC{Node: -1, Up: true, Virtual: true}},
		{"br0", "over one that is hidden", []string{"br0 virtual flags=0x1003 speed=10000 lower_gone"},
			NIC{Node: -1, Up: true, Virtual: true}},
	} {
		t.Run(c.name+" "+c.about, func(t *testing.T) {
			got, there := Read(machine(c.lines...), c.name)
			require.True(t, there)
			require.Equal(t, c.want, got)
		})
	}
}

func TestWhatIsNoInterface(t *testing.T) {
	root := fstest.MapFS{Folder + "/bonding_masters": {Data: []byte("bond0\n")},
		Folder + "/bare/flags": {Data: []byte("0x1003\n")}}
	for _, name := range []string{"eth0", "bonding_masters"} {
		got, there := Read(root, name)
		require.False(t, there, name)
		require.Equal(t, NIC{Node: -1}, got)
	}
	got, there := Read(root, "bare")
	require.True(t, there)
	require.Equal(t, NIC{Node: -1, Up: true, Virtual: true}, got, "without links nobody knows its device")
}

func TestNodesOfTheBus(t *testing.T) {
	root := fstest.MapFS{functions + "0000:01:00.0/numa_node": {Data: []byte("1\n")},
		functions + "0000:02:00.0/numa_node": {Data: []byte("-1\n")}}
	require.Equal(t, 1, BusNode(root, "0000:01:00.0"))
	for _, unknown := range []string{"0000:02:00.0", "0000:03:00.0", "", "../devices/0000:01:00.0", "a\x00b"} {
		require.Equal(t, -1, BusNode(root, unknown), unknown)
	}
}
