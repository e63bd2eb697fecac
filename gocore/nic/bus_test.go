package nic

import (
	"io/fs"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// The words are those of nvidia-smi topo.
func TestTheWayBetweenTwoFunctions(t *testing.T) {
	const bridge = "pci0000:00/0000:00:01.0"
	for _, c := range []struct {
		a, b         string
		nodeA, nodeB int
		want         string
	}{
		{bridge + "/0000:01:00.0", bridge + "/0000:01:00.1", 0, 0, "PIX"},
		{bridge + "/0000:01:00.0", bridge + "/0000:02:00.0/0000:03:00.0", 0, 0, "PIX"}, // one bridge lies between
		{bridge + "/0000:01:00.0", bridge + "/0000:02:00.0/0000:03:00.0/0000:04:00.0", 0, 0, "PXB"},
		{bridge + "/0000:01:00.0", "pci0000:00/0000:00:02.0/0000:04:00.0", 0, 0, "PHB"},
		{bridge + "/0000:01:00.0", "pci0000:40/0000:40:01.0/0000:41:00.0", 0, 0, "NODE"},
		{bridge + "/0000:01:00.0", "pci0000:80/0000:80:01.0/0000:81:00.0", 0, 1, "SYS"},
		{bridge + "/0000:01:00.0", "pci0000:80/0000:80:01.0/0000:81:00.0", -1, -1, "SYS"},
		{bridge + "/0000:01:00.0", bridge + "/0000:01:00.0", 0, 0, "PIX"},
		{"", bridge + "/0000:01:00.0", 0, 0, ""},
	} {
		require.Equal(t, c.want, Way(c.a, c.b, c.nodeA, c.nodeB), "%s and %s", c.a, c.b)
		require.Equal(t, c.want, Way(c.b, c.a, c.nodeB, c.nodeA), "%s and %s", c.b, c.a)
	}
}

func TestAFunctionIsFoundOnItsBus(t *testing.T) {
	const address = "0000:01:00.0"
	link := "../../../devices/pci0000:00/0000:00:01.0/" + address
	root := fstest.MapFS{
		functions + address: {Data: []byte(link), Mode: fs.ModeSymlink | 0o777},
		"sys/devices/pci0000:00/0000:00:01.0/" + address + "/numa_node": {Data: []byte("1\n")},
	}
	require.True(t, IsPCI(address))
	require.False(t, IsPCI("eth0"))
	require.Equal(t, "pci0000:00/0000:00:01.0/"+address, BusPath(root, address))
	require.Equal(t, 1, BusNode(root, address))
	require.Empty(t, BusPath(root, "0000:09:00.0"))
	require.Empty(t, BusPath(root, ""))
	require.Equal(t, -1, BusNode(root, "0000:09:00.0"))
}
