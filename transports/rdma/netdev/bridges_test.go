package netdev

import (
	"encoding/binary"
	"io/fs"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// link is a symbolic link, as the kernel makes them: from the folder that it is really in.
func link(target string) *fstest.MapFile {
	return &fstest.MapFile{Mode: fs.ModeSymlink, Data: []byte(target)}
}

// space is a configuration space with a list of two extended capabilities, the second of them ACS.
func space(control uint16) []byte {
	b := make([]byte, 4096)
	binary.LittleEndian.PutUint32(b[0x100:], 0x148<<20|0x0001)
	binary.LittleEndian.PutUint32(b[0x148:], acs)
	binary.LittleEndian.PutUint16(b[0x148+acsControl:], control)
	return b
}

func TestBridgesThatRedirectAreFound(t *testing.T) {
	const top, below = "sys/devices/pci0000:00/0000:00:01.0", "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0"
	const own = "devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0"
	endless := make([]byte, 4096)
	binary.LittleEndian.PutUint32(endless[0x100:], 0x100<<20|0x0001)
	for _, test := range []struct {
		name       string
		top, below []byte
		want       []bool
		known      bool
	}{
		{"none does", space(0x11), space(0), []bool{false, false}, true},
		{"requests", space(0), space(1 << 2), []bool{false, true}, true},
		{"completions", space(1 << 3), space(0), []bool{true, false}, true},
		{"the kernel hides one", space(0), space(1 << 2)[:64], []bool{false, false}, false},
		{"a bridge without the capability", make([]byte, 4096), space(0), []bool{false, false}, true},
		{"a list without an end", endless, space(0), []bool{false, false}, true},
		{"a capability at the very end", binary.LittleEndian.AppendUint32(make([]byte, 0x100), acs), space(0),
			[]bool{false, false}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := fstest.MapFS{
				class + "/mlx5_0":                          link("../../" + own + "/infiniband/mlx5_0"),
				"sys/" + own + "/infiniband/mlx5_0/device": link("../../../0000:02:00.0"),
				"sys/bus/pci/devices/0000:02:00.0":         link("../../../" + own),
				top + "/config":                            {Data: test.top}, below + "/config": {Data: test.below},
				below + "/0000:02:00.0/config": {Data: space(1 << 2)}, // the device's own, which is no bridge
			}
			list, known := Bridges(root, "mlx5_0")
			require.Equal(t, test.known, known)
			require.Equal(t, []Bridge{{"0000:00:01.0", test.want[0]}, {"0000:01:00.0", test.want[1]}}, list)
		})
	}
	list, known := Bridges(fstest.MapFS{}, "rxe0")
	require.Empty(t, list, "Soft-RoCE is on no bus")
	require.False(t, known)
}
