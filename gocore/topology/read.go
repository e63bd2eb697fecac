package topology

import (
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/nic"
)

// Addresses returns the addresses of an interface with the length of their subnet; nil if it has none. The kernel does
// not show them in /sys.
type Addresses func(name string) []netip.Prefix

// Read reads a topology from a root file system with sys and proc below it. A nil addresses means that there are none.
func Read(root fs.FS, addresses Addresses) *Topology {
	t := &Topology{Memories: readNodes(root), NICs: readNICs(root)}
	for i := range t.NICs {
		n := &t.NICs[i]
		if addresses != nil {
			n.Addresses = addresses(n.Name)
		}
		if n.Node < 0 && !n.Virtual && len(t.Memories) == 1 {
			n.Node = t.Memories[0].Node // firmware of machines with one node often says -1
		}
	}
	t.arrange()
	return t
}

// Nodes lists the NUMA nodes of a machine that are online; nil where the kernel knows none.
func Nodes(root fs.FS) []int { return parseList(nic.Text(root, nodeFolder+"/online")) }

const nodeFolder = "sys/devices/system/node"

// readNodes returns the NUMA nodes, or the whole machine as node 0 where the kernel knows none.
func readNodes(root fs.FS) []Memory {
	var nodes []Memory
	entries, _ := fs.ReadDir(root, nodeFolder) // none: no NUMA
	for _, e := range entries {
		n, ok := strings.CutPrefix(e.Name(), "node")
		number, err := strconv.Atoi(n)
		if !ok || err != nil {
			continue
		}
		folder := path.Join(nodeFolder, e.Name())
		nodes = append(nodes, host(number, parseList(nic.Text(root, folder+"/cpulist")),
			parseMemTotal(nic.Text(root, folder+"/meminfo")), strings.Fields(nic.Text(root, folder+"/distance"))))
	}
	slices.SortFunc(nodes, func(a, b Memory) int { return a.Node - b.Node })
	if len(nodes) == 0 {
		cpus := parseList(nic.Text(root, "sys/devices/system/cpu/online"))
		return []Memory{host(0, cpus, parseMemTotal(nic.Text(root, "proc/meminfo")), nil)}
	}
	for i := range nodes {
		nodes[i].Distance = renumber(nodes[i].Distance, nodes)
	}
	return nodes
}

func host(node int, cpus []int, bytes uint64, distances []string) Memory {
	m := Memory{Location: mem.Location("cpu:" + strconv.Itoa(node)), Type: HostMemory, Node: node, Bytes: bytes,
		CPUs: cpus, Distance: map[int]int{}}
	for i, d := range distances {
		if n, err := strconv.Atoi(d); err == nil {
			m.Distance[i] = n
		}
	}
	return m
}

// renumber changes positions in a line of distances to the numbers of nodes: nodes that are offline have no column.
func renumber(distances map[int]int, nodes []Memory) map[int]int {
	out := map[int]int{}
	for i, n := range nodes {
		if d, there := distances[i]; there {
			out[n.Node] = d
		}
	}
	return out
}

// readNICs returns the interfaces in order of their names.
func readNICs(root fs.FS) []NIC {
	entries, _ := fs.ReadDir(root, nic.Folder) // none: no network
	var nics []NIC
	for _, e := range entries {
		n, there := nic.Read(root, e.Name())
		if !there {
			continue // a file like bonding_masters
		}
		nics = append(nics, NIC{Name: e.Name(), Type: TCP, NIC: n})
	}
	return nics
}

// parseMemTotal takes the total of /proc/meminfo or of a node's meminfo, in bytes.
func parseMemTotal(text string) uint64 {
	for line := range strings.Lines(text) {
		_, after, found := strings.Cut(line, "MemTotal:")
		if !found {
			continue
		}
		var kib uint64
		if _, err := fmt.Sscan(after, &kib); err != nil {
			return 0
		}
		return kib << 10
	}
	return 0
}

// cpusMax bounds a list of processors that a file gives.
const cpusMax = 1 << 16

// parseList takes the kernel's lists of numbers, as in "0-3,8,10-11". Malformed parts are left out.
func parseList(text string) []int {
	var out []int
	for part := range strings.SplitSeq(text, ",") {
		first, last, ranged := strings.Cut(strings.TrimSpace(part), "-")
		if !ranged {
			last = first
		}
		a, err := strconv.Atoi(first)
		b, err2 := strconv.Atoi(last)
		if err != nil || err2 != nil || a < 0 || b >= cpusMax {
			continue
		}
		for n := a; n <= b; n++ {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// localAddresses asks the kernel; an interface that is gone meanwhile has none.
func localAddresses(name string) []netip.Prefix {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return nil
	}
	list, err := i.Addrs()
	if err != nil {
		return nil
	}
	var out []netip.Prefix
	for _, a := range list {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			out = append(out, netip.PrefixFrom(p.Addr().Unmap(), p.Bits()))
		}
	}
	return out
}
