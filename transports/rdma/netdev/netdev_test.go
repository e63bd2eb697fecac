package netdev

import (
	"io/fs"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// machine has two RoCE devices, one of them with its interface at the tenth address, and one of InfiniBand.
func machine() fs.FS {
	root := fstest.MapFS{}
	for name, content := range map[string]string{
		class + "/mlx5_0/ports/1/gid_attrs/ndevs/0":  "eth0\n",
		class + "/mlx5_0/ports/1/gid_attrs/ndevs/1":  "eth0.7\n",
		class + "/mlx5_0/ports/2/gid_attrs/ndevs/0":  "eth9\n",
		class + "/mlx5_1/ports/1/gid_attrs/ndevs/2":  "",
		class + "/mlx5_1/ports/1/gid_attrs/ndevs/10": "eth1\n",
		class + "/mlx5_1/device/numa_node":           "1\n",
		class + "/mlx5_2/device/numa_node":           "3\n",
		class + "/mlx5_3/ports/1/state":              "4: ACTIVE\n",
		class + "/mlx5_0/ports/1/rate":               "800 Gb/sec (4X XDR)\n",
		class + "/mlx5_0/ports/2/rate":               "2.5 Gb/sec (1X SDR)\n",
		class + "/mlx5_1/ports/1/rate":               "unknown\n",
		class + "/mlx5_2/ports/1/rate":               "-1 Gb/sec\n",
		"sys/class/net/ib0/type":                     "32\n",
		"sys/class/net/eth0/type":                    "1\n",
	} {
		root[name] = &fstest.MapFile{Data: []byte(content)}
	}
	return root
}

func TestTheInterfaceOfADeviceIsFound(t *testing.T) {
	var asked []string
	before := deviceOf
	defer func() { deviceOf = before }()
	deviceOf = func(netdev string) (string, error) {
		asked = append(asked, netdev)
		return "mlx5_2", nil
	}
	for _, row := range []struct {
		device string
		port   int
		want   Place
	}{
		{"mlx5_0", 1, Place{"eth0", -1, "", 100e9}}, {"mlx5_0", 2, Place{"eth9", -1, "", 312.5e6}},
		{"mlx5_1", 1, Place{"eth1", 1, "", 0}}, {"mlx5_2", 1, Place{"ib0", 3, "", 0}},
		{"mlx5_3", 1, Place{"", -1, "", 0}}, {"gone", 1, Place{"", -1, "", 0}},
	} {
		require.Equal(t, row.want, Of(machine(), row.device, row.port), row.device)
	}
	require.Equal(t, []string{"ib0", "ib0", "ib0"}, asked, "interfaces of IPoIB alone, for want of another way")
}

// TestAnInterfaceThatIsNoneEndsNothing: the real look finds no device of an interface that is not there.
func TestAnInterfaceThatIsNoneEndsNothing(t *testing.T) {
	device, err := deviceOf("no-such-netdev")
	require.Empty(t, device)
	require.Error(t, err)
}
