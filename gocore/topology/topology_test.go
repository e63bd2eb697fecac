package topology

import (
	"encoding/json"
	"io/fs"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/nic"
)

// tree reads a fixture; testdata/README.md has the format.
func tree(t *testing.T, name string) fs.FS {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name + ".tree")
	require.NoError(t, err)
	out := fstest.MapFS{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if link, target, found := strings.Cut(line, " -> "); found {
			out[link] = &fstest.MapFile{Data: []byte(target), Mode: fs.ModeSymlink | 0o777}
			continue
		}
		file, content, found := strings.Cut(line, " = ")
		require.True(t, found, line)
		out[file] = &fstest.MapFile{Data: []byte(strings.ReplaceAll(content, `\n`, "\n")), Mode: 0o444}
	}
	return out
}

func TestOneNodeOwnsEveryDevice(t *testing.T) {
	eth0 := netip.MustParsePrefix("10.0.0.5/24")
	top := Read(tree(t, "one-node"), func(name string) []netip.Prefix {
		if name == "eth0" {
			return []netip.Prefix{eth0}
		}
		return nil
	})
	require.Equal(t, &Topology{
		NICs: []NIC{
			{Name: "eth0", Type: TCP, NIC: nic.NIC{PCIBusID: "0000:00:03.0", Node: 0, Up: true, MTU: 1400},
				Addresses: []netip.Prefix{eth0}},
			{Name: "lo", Type: TCP, NIC: nic.NIC{Node: -1, Up: true, Virtual: true, MTU: 65536}},
		},
		Memories: []Memory{{Location: "cpu:0", Bytes: 24 << 30, CPUs: []int{0, 1}, Distance: map[int]int{0: 10},
			Ranked: [Ranks][]int{{0}, nil, {1}}}},
	}, top)
}

func TestDevicesHangOnTheNodeOfTheirPCIFunction(t *testing.T) {
	top := Read(tree(t, "two-sockets"), nil)
	require.Equal(t, []NIC{
		{Name: "ens1", Type: TCP, NIC: nic.NIC{PCIBusID: "0000:01:00.0", Node: 0, Up: true, SpeedMbps: 200000,
			MTU: 9000}},
		{Name: "ens2", Type: TCP, NIC: nic.NIC{PCIBusID: "0000:84:00.0", Node: 2, MTU: 1500}},
		{Name: "veth0", Type: TCP, NIC: nic.NIC{Node: -1, Virtual: true}},
	}, top.NICs)
	require.Equal(t, []Memory{
		{Location: "cpu:0", Node: 0, Bytes: 1 << 30, CPUs: []int{0, 1, 2, 3, 8, 9, 10, 11},
			Distance: map[int]int{0: 10, 2: 21}, Ranked: [Ranks][]int{{0}, nil, {1, 2}}},
		{Location: "cpu:2", Node: 2, Bytes: 2 << 30, CPUs: []int{4, 5, 6, 7, 12, 13, 14, 15},
			Distance: map[int]int{0: 21, 2: 10}, Ranked: [Ranks][]int{{1}, nil, {0, 2}}},
	}, top.Memories)
}

func TestWithoutNUMATheMachineIsNodeZero(t *testing.T) {
	top := Read(tree(t, "no-numa"), nil)
	require.Equal(t, []Memory{{Location: "cpu:0", Bytes: 4 << 20, CPUs: []int{0, 1, 2}, Distance: map[int]int{},
		Ranked: [Ranks][]int{nil, nil, {0}}}}, top.Memories)
	require.True(t, top.NICs[0].Virtual, "without links nobody knows its device")
}

func TestNothingToReadIsATopology(t *testing.T) {
	top := Read(fstest.MapFS{}, nil)
	require.Len(t, top.Memories, 1)
	require.Empty(t, top.NICs)
}

func TestJSONHasUpstreamsShape(t *testing.T) {
	text, err := json.Marshal(Read(tree(t, "one-node"), func(string) []netip.Prefix { return nil }))
	require.NoError(t, err)
	require.JSONEq(t, `{
		"nics": [
			{"name": "eth0", "pci_bus_id": "0000:00:03.0", "type": 1, "numa_node": 0, "up": true, "virtual": false,
				"speed_mbps": null, "mtu": 1400, "addresses": []},
			{"name": "lo", "pci_bus_id": "", "type": 1, "numa_node": -1, "up": true, "virtual": true, "speed_mbps": null,
				"mtu": 65536, "addresses": []}],
		"mems": [{"name": "cpu:0", "pci_bus_id": "", "type": 0, "numa_node": 0,
			"device_list": {"rank0": [0], "rank1": [], "rank2": [1]},
			"bytes": 25769803776, "cpus": [0, 1], "distances": {"0": 10}}]}`, string(text))
}

func TestListsOfProcessors(t *testing.T) {
	for text, want := range map[string][]int{
		"": nil, "0": {0}, "0-3": {0, 1, 2, 3}, "8,0-1": {0, 1,
			8}, "1-1,1": {1}, "3-1": nil, "x,2": {2}, "-1": nil, "0-99999999": nil,
	} {
		require.Equal(t, want, parseList(text), "%q", text)
	}
}

// The machine that runs the test is a fixture too: it has memory, processors, and loopback with its address.
func TestLocalMachine(t *testing.T) {
	top := LocalWith(nil)
	require.NotEmpty(t, top.Memories)
	cpus, bytes := 0, uint64(0)
	for _, m := range top.Memories {
		cpus, bytes = cpus+len(m.CPUs), bytes+m.Bytes
	}
	require.GreaterOrEqual(t, cpus, runtime.NumCPU())
	require.Greater(t, bytes, uint64(64<<20))
	i := slices.IndexFunc(top.NICs, func(n NIC) bool {
		return slices.Contains(n.Addresses, netip.MustParsePrefix("127.0.0.1/8"))
	})
	if i < 0 {
		t.Skip("this network namespace has no loopback address")
	}
	require.True(t, top.NICs[i].Virtual)
	require.Equal(t, -1, top.NICs[i].Node)
}

func FuzzLists(f *testing.F) {
	f.Add("0-3,8")
	f.Fuzz(func(t *testing.T, text string) {
		for _, n := range parseList(text) {
			require.Less(t, n, cpusMax)
		}
	})
}
