package topology

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/mem"
)

// server has two sockets. mlx0 hangs behind the switch of the first two GPUs, mlx1 behind another bridge of the same
// root, mlx2 at another root of that node, mlx3 on the other socket.
func server(t *testing.T, ways [][]string, fabric *Fabric, unknown string) *Topology {
	found := func(location mem.Location, pci string, node int) Found {
		return Found{Location: location, Name: "H100", PCI: pci, UUID: [16]byte{0xab, 15: 0x01}, Node: node}
	}
	g := Group{Type: CudaMemory, Ways: ways, Unknown: unknown, Devices: []Found{found("cuda:0", "0000:03:00.0", 0),
		found("cuda:1", "0000:04:00.0", 0), found("cuda:2", "0000:93:00.0", 1)}}
	g.Devices[0].Fabric = fabric
	root := tree(t, "gpus")
	top := Read(root, nil)
	top.add(root, []Group{g})
	return top
}

func TestWaysToNICsAreThoseOfTheBus(t *testing.T) {
	top := server(t, nil, nil, "no library")
	require.Len(t, top.Memories, 2+3)
	first, last := top.Memories[2], top.Memories[4]
	require.Equal(t, mem.Location("cuda:0"), first.Location)
	require.Equal(t, CudaMemory, first.Type)
	require.Equal(t, "GPU-ab000000-0000-0000-0000-000000000001", first.Device.UUID)
	require.Equal(t, map[string]string{"mlx0": "PIX", "mlx1": "PXB", "mlx2": "NODE", "mlx3": "SYS"}, first.Device.NICs)
	require.Equal(t, map[string]string{"mlx0": "SYS", "mlx1": "SYS", "mlx2": "SYS", "mlx3": "PHB"}, last.Device.NICs)
	name := func(ranked []int) (names []string) {
		for _, i := range ranked {
			names = append(names, top.NICs[i].Name)
		}
		return names
	}
	require.Equal(t, []string{"mlx0"}, name(first.Ranked[0]), "the nearest on the bus")
	require.Equal(t, []string{"mlx1", "mlx2"}, name(first.Ranked[1]), "on the same node")
	require.Equal(t, []string{"lo", "mlx3"}, name(first.Ranked[2]))
	require.Equal(t, []string{"mlx3"}, name(last.Ranked[0]))
	require.Equal(t, map[string]string{"cuda:1": "PIX", "cuda:2": "SYS"}, first.Device.Devices, "by the bus")
	require.Contains(t, first.Device.Unknown, "no library")
	require.Equal(t, []string{"mlx0", "mlx1", "mlx2"}, name(top.Memories[0].Ranked[0]), "those of the host are by node")
}

func TestTheVendorsWordOnDevicesComesFirst(t *testing.T) {
	fabric := &Fabric{Dashed([16]byte{1}), 3}
	top := server(t, [][]string{{"", "NV12", ""}, {"NV12", "", ""}, {"", "", ""}}, fabric, "")
	first := top.Memories[2].Device
	require.Equal(t, map[string]string{"cuda:1": "NV12", "cuda:2": "SYS"}, first.Devices)
	require.Equal(t, &Fabric{"01000000-0000-0000-0000-000000000000", 3}, first.Fabric)
	require.Nil(t, top.Memories[3].Device.Fabric)
	text, err := top.MarshalJSON()
	require.NoError(t, err)
	require.Contains(t, string(text), `"devices":{"cuda:1":"NV12","cuda:2":"SYS"}`)
}
