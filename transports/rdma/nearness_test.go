package rdma

import (
	"io/fs"
	"slices"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// board is a machine with three NICs. fake0 is on the other socket, fake1 behind the switch of the GPU 0000:03:00.0,
// and fake2 at another root of its node. The GPU 0000:93:00.0 is on the socket of fake0, behind the same host bridge.
func board() fs.FS {
	root := fstest.MapFS{}
	link := func(at, target string) { root[at] = &fstest.MapFile{Mode: fs.ModeSymlink, Data: []byte(target)} }
	for address, place := range map[string][2]string{
		"0000:03:00.0": {"pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0", "0"},
		"0000:05:00.0": {"pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:02.0/0000:05:00.0", "0"},
		"0000:41:00.0": {"pci0000:40/0000:40:01.0/0000:41:00.0", "0"},
		"0000:81:00.0": {"pci0000:80/0000:80:01.0/0000:81:00.0", "1"},
		"0000:93:00.0": {"pci0000:80/0000:80:02.0/0000:93:00.0", "1"},
	} {
		link("sys/bus/pci/devices/"+address, "../../../devices/"+place[0])
		root["sys/devices/"+place[0]+"/numa_node"] = &fstest.MapFile{Data: []byte(place[1] + "\n")}
		if device := map[string]string{"0000:81:00.0": "fake0", "0000:05:00.0": "fake1",
			"0000:41:00.0": "fake2"}[address]; device != "" {
			link("sys/class/infiniband/"+device, "../../devices/"+place[0]+"/infiniband/"+device)
			link("sys/devices/"+place[0]+"/infiniband/"+device+"/device", "../../../"+address)
		}
	}
	return root
}

// TestNICsNearAGPUComeFirst: memory of a GPU ranks the rails by the bus. Memory of the host, and that of a GPU without
// a place, leave the ranks to the core. A line of the matrix comes before the bus.
func TestNICsNearAGPUComeFirst(t *testing.T) {
	for _, test := range []struct {
		name, address string
		matrix        map[string]any
		want          []uint8
	}{
		{"behind a switch", "0000:03:00.0", nil, []uint8{transport.Farthest, transport.Nearest, transport.Far}},
		{"a matrix without its line", "0000:03:00.0", map[string]any{"cpu:0": []any{[]any{"fake0"}, []any{}}},
			[]uint8{transport.Farthest, transport.Nearest, transport.Far}},
		{"the other socket", "0000:93:00.0", nil, []uint8{transport.Nearest, transport.Farthest, transport.Farthest}},
		{"an unknown place", "0000:77:00.0", nil, nil},
		{"of the host", "", nil, nil},
		{"a line of the matrix", "0000:03:00.0",
			map[string]any{"cuda:0": []any{[]any{"fake0"}, []any{"fake1", "fake2"}}},
			[]uint8{transport.Nearest, transport.Far, transport.Far}},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRigOver(t, 3, func(s *Settings) { s.Root, s.Matrix = board(), test.matrix })
			b := newBuffer(t)
			region := b.region()
			region.Device = mem.Device{PCI: test.address}
			local, _, err := r.a.Transport.Register(t.Context(), region)
			require.NoError(t, err)
			match, err := r.a.Transport.(*Transport).Match(r.c.Link, local, r.remote.Key)
			require.NoError(t, err)
			require.Equal(t, test.want == nil, match.Near == nil)
			for i, near := range match.Near { // of each rail: several have one device of ours
				rail := r.a.Transport.(*Transport).links.Lookup(r.c.Link).rail(uint16(i))
				require.Equal(t, test.want[rail.device.index], near, "rail %d of %s", i, rail.device.name)
			}
			require.Zero(t, match.Rails, "all of them may carry its bytes")
			require.NoError(t, r.a.Transport.Deregister(t.Context(), local))
		})
	}
}

// TestThePeerRanksItsOwnNICs: a descriptor says how near the NICs are to the memory of a GPU. Match has that of each
// rail's far end. Version 3, of an older engine or of memory of the host, has no ranks.
func TestThePeerRanksItsOwnNICs(t *testing.T) {
	r := newRigOver(t, 3, func(s *Settings) { s.Root = board() })
	near, far := r.a.Transport.(*Transport), r.b.Transport.(*Transport)
	region := newBuffer(t).region()
	region.Device, region.Permission = mem.Device{PCI: "0000:03:00.0"}, mem.GlobalReadWrite
	key, ranked, err := far.Register(t.Context(), region)
	require.NoError(t, err)
	require.EqualValues(t, descriptorRanked, ranked[0])
	require.EqualValues(t, descriptorVersion, r.remote.Descriptor[0], "no NIC is nearer to memory of the host")
	older := slices.Clone(ranked[:len(ranked)-3])
	older[0] = descriptorVersion
	want := []uint8{transport.Farthest, transport.Nearest, transport.Far}
	for _, d := range []transport.Descriptor{ranked, older} {
		remote, err := near.Import(r.c.Link, d)
		require.NoError(t, err)
		match, err := near.Match(r.c.Link, r.local.Key, remote)
		require.NoError(t, err)
		require.Nil(t, match.Near)
		rails := near.links.Lookup(r.c.Link).list()
		require.Len(t, match.There, len(rails)*int(d[0]-descriptorVersion))
		for i, rank := range match.There {
			require.Equal(t, want[rails[i].far], rank, "rail %d to %s", i, rails[i].remoteName)
		}
	}
	require.NoError(t, far.Deregister(t.Context(), key))

	for name, change := range map[string]func(transport.Descriptor) transport.Descriptor{
		"a rank too many": func(d transport.Descriptor) transport.Descriptor { return append(d, 0) },
		"one too few":     func(d transport.Descriptor) transport.Descriptor { return d[:len(d)-1] },
		"an unknown rank": func(d transport.Descriptor) transport.Descriptor {
			d[len(d)-1] = transport.Farthest + 1
			return d
		},
		"a later version": func(d transport.Descriptor) transport.Descriptor { d[0] = descriptorRanked + 1; return d },
		"ranks in version 3": func(d transport.Descriptor) transport.Descriptor {
			d[0] = descriptorVersion
			return d
		},
	} {
		_, bad := decode(change(slices.Clone(ranked)), far.self.ID)
		require.NotNil(t, bad, name)
	}
}

// TestAMatrixRanksForPeersToo: the owner's own list comes before the bus. A device that came after the descriptor is
// far.
func TestAMatrixRanksForPeersToo(t *testing.T) {
	r := newRigOver(t, 2, func(s *Settings) {
		s.Matrix = map[string]any{"cpu:0": []any{[]any{"fake1"}, []any{"fake0"}}}
	})
	m, bad := decode(r.remote.Descriptor, r.b.Transport.(*Transport).self.ID)
	require.Nil(t, bad)
	require.Equal(t, []uint8{transport.Far, transport.Nearest}, m.near)
	require.Equal(t, transport.Nearest, m.nearOf(1))
	require.Equal(t, transport.Far, m.nearOf(2))
}

// TestTheRateOfAPortIsThatOfTheKernelsFiles: the library has too few bits for a port of 800 Gbit/s.
func TestTheRateOfAPortIsThatOfTheKernelsFiles(t *testing.T) {
	shown := newRig(t, nil).first().device.rate
	require.NotZero(t, shown)
	root := fstest.MapFS{"sys/class/infiniband/fake0/ports/1/rate": {Data: []byte("800 Gb/sec (4X XDR)\n")}}
	r := newRigOver(t, 2, func(s *Settings) { s.Root = root })
	rates := map[string]float64{}
	for _, d := range r.a.Transport.(*Transport).nics() {
		rates[d.name] = d.rate
	}
	require.Equal(t, map[string]float64{"fake0": 100e9, "fake1": shown}, rates)
}
