package rdma

import (
	"encoding/json"
	"os"
	"slices"
	"strings"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/nic"
	"github.com/tent-engine/tent/gocore/transport"
)

// A user may list the devices of a machine, in the forms of upstream's files: those near to memory of a location
// (matrix), and the pairs with a peer's that become rails (railPairs).

// matrix lists names of devices by location: those that are preferred, and those that may be used as well.
type matrix map[mem.Location][2][]string

// anywhere is the line of a matrix for locations without a line of their own.
const anywhere = mem.Location("*")

// railPair is a rail by the names of its devices.
type railPair struct {
	Local  string `json:"local"`
	Remote string `json:"remote"`
}

// nearness reads the matrix of the settings: priority_matrix, else the file. Without both it is nil.
func (s *Settings) nearness() (m matrix, err error) {
	if len(s.Matrix) > 0 {
		text, err := json.Marshal(s.Matrix)
		if err != nil {
			return nil, err
		}
		return m, json.Unmarshal(text, &m)
	}
	return m, readTopology(s.MatrixPath, "topology/custom_json_path", &m)
}

// railPairs reads the file of rails. Without one it is nil.
func (s *Settings) railPairs() ([]railPair, error) {
	var file struct{ All, Direct []railPair }
	err := readTopology(s.RailPath, "transports/rdma/workers/rail_topo_path", &file)
	return append(file.All, file.Direct...), err
}

// topologyMost bounds the size of a file: a path that names a device by mistake must not fill memory.
const topologyMost = 1 << 20

func readTopology(path, key string, into any) error {
	if path == "" {
		return nil
	}
	info, err := os.Stat(path)
	if err == nil && (!info.Mode().IsRegular() || info.Size() > topologyMost) {
		err = errs.New(errs.InvalidArgument, "rdma.settings", "it is no file of at most %d bytes", topologyMost)
	}
	var text []byte
	if err == nil {
		text, err = os.ReadFile(path)
	}
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		return errs.New(errs.InvalidArgument, "rdma.settings", "%s: %v", path, err).
			WithHint("correct the file, or clear %s", key)
	}
	return nil
}

// lists reports whether the matrix has a line for memory of a location.
func (m matrix) lists(location mem.Location) bool {
	_, own := m[location]
	_, all := m[anywhere]
	return own || all
}

// ranks says how near devices of ours are to a region: by its line of the matrix, else by the bus. nil leaves it to the
// core, which knows the nodes: for memory of the host, and where the ways are not known.
func (t *Transport) ranks(own *region, devices []*device) (near []uint8) {
	if !t.matrix.lists(own.Location) {
		return t.ofBus(own, devices)
	}
	for _, d := range devices {
		rank, _ := t.matrix.rank(own.Location, d.name)
		near = append(near, rank)
	}
	return near
}

// ofBus ranks devices by their way on PCI to the accelerator that has a region, as the topology does. The shortest way
// that one of them has is near, others on the node are far, and those between sockets farthest.
func (t *Transport) ofBus(own *region, devices []*device) (near []uint8) {
	if own.Device.PCI == "" {
		return nil
	}
	root, address := t.settings.root(), strings.ToLower(own.Device.PCI)
	bus := nic.BusPath(root, address)
	if bus == "" {
		return nil
	}
	node, shortest := nic.BusNode(root, address), len(nic.Ways)
	ways := make([]int, len(devices))
	for i, d := range devices {
		if ways[i] = slices.Index(nic.Ways[:], nic.Way(bus, d.bus, node, d.node)); ways[i] >= 0 {
			shortest = min(shortest, ways[i])
		}
	}
	if shortest == len(nic.Ways) {
		return nil
	}
	for _, way := range ways {
		switch {
		case way == shortest:
			near = append(near, transport.Nearest)
		case way < 0 || nic.Ways[way] == "SYS":
			near = append(near, transport.Farthest)
		default:
			near = append(near, transport.Far)
		}
	}
	return near
}

// rank says how near a device is to memory. It is false where the matrix leaves the device out.
func (m matrix) rank(location mem.Location, device string) (rank uint8, used bool) {
	lists, has := m[location]
	if !has {
		lists, has = m[anywhere]
	}
	switch {
	case !has, slices.Contains(lists[0], device):
		return transport.Nearest, true
	case slices.Contains(lists[1], device):
		return transport.Far, true
	}
	return transport.Farthest, false
}

// named lists the rails of a file between devices here and there; a pair without its device is left out.
func named(pairs []railPair, here []*device, there []string) (list []pairing) {
	for _, p := range pairs {
		i := slices.IndexFunc(here, func(d *device) bool { return d.name == p.Local })
		k := slices.Index(there, p.Remote)
		if next := (pairing{i, k, false}); i >= 0 && k >= 0 && !slices.Contains(list, next) {
			list = append(list, next)
		}
	}
	return list[:min(len(list), railsMax)]
}
