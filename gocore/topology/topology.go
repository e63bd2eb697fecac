// Package topology describes the machine: NUMA nodes with their processors and memory, and network interfaces with
// the node they hang on. It is read once, as an immutable value; after a change one reads again.
//
// Reading is pure parsing of /sys and /proc behind an fs.FS, so a machine with eight sockets is a text file in
// testdata. Parts that cannot be read are left out: half a topology is better than none, and a container often hides
// parts of /sys. RDMA devices are not here: they belong to the transport that opens them.
//
// The JSON form is upstream's, with its names and numbers ("nics", "mems", NIC type 1 for TCP, memory type 0 for the
// host, "device_list" of ranks), and more keys where upstream has nothing (addresses, speed, processors, distances).
package topology

import (
	"encoding/json"
	"net/netip"

	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/nic"
)

// NICType has upstream's numbers.
type NICType int

// Types of network interfaces.
const (
	RDMA       NICType = 0
	TCP        NICType = 1
	UnknownNIC NICType = 2
)

// MemoryType has upstream's numbers.
type MemoryType int

// Types of memory.
const (
	HostMemory MemoryType = 0
	CudaMemory MemoryType = 1
	ROCmMemory MemoryType = 2
	NPUMemory  MemoryType = 3

	OtherMemory MemoryType = 4
)

// Ranks is the number of classes of distance between a memory and a NIC: 0 is nearest.
const Ranks = 3

// Topology is immutable once read.
type Topology struct {
	NICs     []NIC
	Memories []Memory // of the nodes, then of the devices
}

// NIC is one network interface.
type NIC struct {
	Name string
	Type NICType
	nic.NIC
	Addresses []netip.Prefix
}

// Memory is the memory of one NUMA node, or of one device.
type Memory struct {
	Location mem.Location // "cpu:N", "cuda:N"
	Type     MemoryType
	Node     int
	Device   *Device // nil: memory of the host
	Bytes    uint64  // 0: not known
	CPUs     []int
	Distance map[int]int  // to other nodes, of the firmware; 10 is itself
	Ranked   [Ranks][]int // indexes of NICs by distance, as the rules of rank say
}

// rank says how near a NIC is to a memory, as upstream does. For memory of the host the same node is 0, and all others
// are as far as another socket. For a device the NICs that are nearest on the bus are 0, and others on its node are 1.
func rank(m Memory, n NIC, nearest bool) int {
	switch same := n.Node >= 0 && n.Node == m.Node; {
	case nearest || same && m.Device == nil:
		return 0
	case same:
		return 1
	}
	return Ranks - 1
}

// arrange fills the ranks of all memories.
func (t *Topology) arrange() {
	for i := range t.Memories {
		m := &t.Memories[i]
		m.Ranked = [Ranks][]int{}
		for j, n := range t.NICs {
			r := rank(*m, n, m.Device.nearest(j))
			m.Ranked[r] = append(m.Ranked[r], j)
		}
	}
}

// nicJSON and memoryJSON are the forms on paper: upstream's keys first.
type nicJSON struct {
	Name      string         `json:"name"`
	PCIBusID  string         `json:"pci_bus_id"`
	Type      NICType        `json:"type"`
	Node      int            `json:"numa_node"`
	Up        bool           `json:"up"`
	Virtual   bool           `json:"virtual"`
	SpeedMbps *uint64        `json:"speed_mbps"` // null: unknown
	MTU       int            `json:"mtu"`
	Addresses []netip.Prefix `json:"addresses"`
}

type memoryJSON struct {
	Name       mem.Location `json:"name"`
	PCIBusID   string       `json:"pci_bus_id"`
	Type       MemoryType   `json:"type"`
	Node       int          `json:"numa_node"`
	DeviceList deviceList   `json:"device_list"`
	Bytes      uint64       `json:"bytes"`
	CPUs       []int        `json:"cpus"`
	Distances  map[int]int  `json:"distances"`
	Device     *Device      `json:"device,omitempty"`
}

type deviceList struct {
	Rank0 []int `json:"rank0"`
	Rank1 []int `json:"rank1"`
	Rank2 []int `json:"rank2"`
}

// MarshalJSON gives upstream's form. Lists are never null.
func (t *Topology) MarshalJSON() ([]byte, error) {
	out := struct {
		NICs     []nicJSON    `json:"nics"`
		Memories []memoryJSON `json:"mems"`
	}{[]nicJSON{}, []memoryJSON{}}
	for _, n := range t.NICs {
		var speed *uint64
		if n.SpeedMbps > 0 {
			speed = &n.SpeedMbps
		}
		out.NICs = append(out.NICs, nicJSON{n.Name, n.PCIBusID, n.Type, n.Node, n.Up, n.Virtual, speed, n.MTU,
			some(n.Addresses)})
	}
	for _, m := range t.Memories {
		ranks := deviceList{some(m.Ranked[0]), some(m.Ranked[1]), some(m.Ranked[2])}
		pci := ""
		if m.Device != nil {
			pci = m.Device.PCI
		}
		out.Memories = append(out.Memories, memoryJSON{Name: m.Location, PCIBusID: pci, Type: m.Type, Node: m.Node,
			DeviceList: ranks, Bytes: m.Bytes, CPUs: some(m.CPUs), Distances: m.Distance, Device: m.Device})
	}
	return json.Marshal(out)
}

// some returns an empty list for nil, so that JSON has [] and not null.
func some[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
