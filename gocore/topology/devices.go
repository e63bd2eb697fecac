package topology

import (
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/nic"
)

// Device is an accelerator, as its platform and the bus describe it. Ways are in the words of `nvidia-smi topo`: "NV12"
// for twelve NVLinks, "PIX" behind one bridge, "PXB" behind several, "PHB" at one host bridge, "NODE" on one NUMA node,
// "SYS" between sockets; "" where it is not known.
type Device struct {
	Name    string            `json:"name"`
	PCI     string            `json:"pci_bus_id"`
	UUID    string            `json:"uuid"`
	NICs    map[string]string `json:"nics"`    // the way to each NIC that is on the bus
	Devices map[string]string `json:"devices"` // the way to each other device, by location
	Fabric  *Fabric           `json:"fabric"`  // its domain of multi-node NVLink; null: none
	Apart   string            `json:"apart"`   // why other hosts cannot map its memory by that; "" where they can
	Unknown string            `json:"unknown"` // why ways to other devices are not known

	near []int // indexes of the NICs that are nearest
}

// Fabric is a domain of NVLink over several hosts: memory moves between devices whose cluster and clique are equal.
type Fabric struct {
	Cluster string `json:"cluster"`
	Clique  uint32 `json:"clique"`
}

// Group is the devices of one platform, and the ways between them that the platform knows.
type Group struct {
	Type    MemoryType
	Devices []Found
	Ways    [][]string // "" where one is not known
	Unknown string     // why none is known
}

// Found is a device as its platform describes it.
type Found struct {
	Location mem.Location
	Name     string
	PCI      string
	UUID     [16]byte
	Node     int // -1: not known
	Fabric   *Fabric
	Apart    string
}

func (d *Device) nearest(index int) bool { return d != nil && slices.Contains(d.near, index) }

// LocalWith reads the topology of this machine, as far as its /sys and /proc show it to this process, with devices.
func LocalWith(groups []Group) *Topology {
	root := os.DirFS("/")
	t := Read(root, localAddresses)
	t.add(root, groups)
	return t
}

// add puts devices behind the nodes.
func (t *Topology) add(root fs.FS, groups []Group) {
	paths := make([]string, len(t.NICs))
	for j := range t.NICs {
		paths[j] = nic.BusPath(root, t.NICs[j].PCIBusID)
	}
	for _, g := range groups {
		buses := make([]string, len(g.Devices))
		for i := range g.Devices {
			buses[i] = nic.BusPath(root, g.Devices[i].PCI)
		}
		for i, f := range g.Devices {
			d := &Device{Name: f.Name, PCI: f.PCI, UUID: uuid(f.UUID), NICs: map[string]string{},
				Devices: map[string]string{}, Fabric: f.Fabric, Apart: f.Apart,
				Unknown: g.Unknown}
			for k, other := range g.Devices {
				if k != i {
					d.Devices[string(other.Location)] = g.between(i, k, buses)
				}
			}
			t.reach(d, buses[i], paths, f.Node)
			t.Memories = append(t.Memories, Memory{Location: f.Location, Type: g.Type, Node: f.Node, Device: d})
		}
	}
	t.arrange()
}

// between is the way between two devices: the platform's word on it, else that of the bus.
func (g *Group) between(i, k int, buses []string) string {
	if i < len(g.Ways) && k < len(g.Ways[i]) && g.Ways[i][k] != "" {
		return g.Ways[i][k]
	}
	return nic.Way(buses[i], buses[k], g.Devices[i].Node, g.Devices[k].Node)
}

// reach finds the ways from a device to the NICs, and the nearest of them.
func (t *Topology) reach(d *Device, bus string, paths []string, node int) {
	best := len(nic.Ways)
	for j, n := range t.NICs {
		text := nic.Way(bus, paths[j], node, n.Node)
		if text == "" {
			continue
		}
		d.NICs[n.Name] = text
		switch far := slices.Index(nic.Ways[:], text); {
		case far < best:
			best, d.near = far, []int{j}
		case far == best:
			d.near = append(d.near, j)
		}
	}
}

// uuid is written as nvidia-smi does.
func uuid(id [16]byte) string {
	if id == [16]byte{} {
		return ""
	}
	return "GPU-" + Dashed(id)
}

// Dashed writes 16 bytes as a UUID.
func Dashed(id [16]byte) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}
