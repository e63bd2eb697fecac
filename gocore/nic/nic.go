// Package nic reads a network interface from /sys: its device, the NUMA node of that, its speed. But for RouteSource it
// is pure parsing behind an fs.FS, so a machine with eight sockets is a few lines of a test. Parts that cannot be read
// are left out: a container often hides them.
package nic

import (
	"io/fs"
	"path"
	"regexp"
	"strconv"
	"strings"
)

// NIC is one network interface as it was when it was read.
type NIC struct {
	PCIBusID  string // "0000:00:03.0"; "" if no device on PCI is behind it
	Node      int    // NUMA node, -1 if the machine does not tell, or if devices of several nodes are behind it
	Up        bool   // switched on, and not known to be without carrier
	Virtual   bool   // it has no device of its own: loopback, bridge, bond, VLAN, veth
	SpeedMbps uint64 // Mbit/s as negotiated, 0 if unknown
	MTU       int    // 0 if unknown
}

// Folder is where the interfaces are, below the root of the file system.
const Folder = "sys/class/net"

// lowerMost bounds how many interfaces may lie below one another: a VLAN on a bond on NICs is three.
const lowerMost = 8

// interfaceUp is IFF_UP.
const interfaceUp = 1

// Read reads an interface by its name from a root file system with sys below it. It returns false when there is none.
//
// A device that does not tell a node asks those above it, as a virtio device does its PCI function. A virtual interface
// is where the interfaces are that carry its bytes (lower_* in /sys), if these agree; the other end of a veth is none
// of them. Nobody negotiated the speed of a virtual interface: a veth always says 10000. So it is that of its devices
// or unknown.
func Read(root fs.FS, name string) (NIC, bool) { return look(root, name, 1) }

func look(root fs.FS, name string, depth int) (NIC, bool) {
	folder := path.Join(Folder, name)
	flags, err := strconv.ParseUint(Text(root, folder+"/flags"), 0, 32)
	if err != nil {
		return NIC{Node: -1}, false // also a file like bonding_masters
	}
	n := NIC{Node: -1, Virtual: true, Up: flags&interfaceUp != 0 && carries(Text(root, folder+"/operstate"))}
	n.MTU, _ = strconv.Atoi(Text(root, folder+"/mtu")) // 0: unknown
	device := deviceOf(root, folder)
	if device == "" {
		return n, true
	}
	speed := parseSpeed(Text(root, folder+"/speed"))
	if n.Virtual = strings.HasPrefix(device, "sys/devices/virtual/"); !n.Virtual {
		n.PCIBusID, n.Node = locate(root, device)
		n.SpeedMbps = speed
	} else if real := n.settle(root, device, depth); real {
		n.SpeedMbps = speed
	}
	return n, true
}

// carries reports whether an interface moves packets by its operational state. One that does not know it is up for all
// that the kernel says (Documentation/networking/operstates.rst), as loopback is; none stands in an old /sys.
func carries(state string) bool { return state == "up" || state == "unknown" || state == "" }

// deviceOf is the folder of the interface among the devices, "" where links are hidden.
func deviceOf(root fs.FS, folder string) string {
	target, err := fs.ReadLink(root, folder)
	if err != nil {
		return "" // a container without links
	}
	return path.Join(path.Dir(folder), target)
}

// settle takes the node of the interfaces below a virtual one, if they agree, and reports whether all end in devices.
func (n *NIC) settle(root fs.FS, device string, depth int) (real bool) {
	entries, _ := fs.ReadDir(root, device) // none: nothing is known
	found := 0
	for _, e := range entries {
		below, is := strings.CutPrefix(e.Name(), "lower_")
		if !is || depth == lowerMost {
			continue
		}
		lower, there := look(root, below, depth+1)
		if !there {
			continue
		}
		if found++; found == 1 {
			n.Node, real = lower.Node, true
		}
		if lower.Node != n.Node {
			n.Node = -1
		}
		real = real && (!lower.Virtual || lower.SpeedMbps > 0)
	}
	return real
}

var pciAddress = regexp.MustCompile(`^[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// locate climbs from a device to the first one with a NUMA node.
func locate(root fs.FS, device string) (pci string, node int) {
	node = -1
	for told := false; strings.HasPrefix(device, "sys/devices/"); device = path.Dir(device) {
		if pci == "" && pciAddress.MatchString(path.Base(device)) {
			pci = path.Base(device)
		}
		if content := Text(root, device+"/numa_node"); content != "" && !told {
			told = true
			if n, err := strconv.Atoi(content); err == nil {
				node = n
			}
		}
	}
	return pci, node
}

// parseSpeed takes Mbit/s; drivers that do not know say -1, or 2^32-1.
func parseSpeed(content string) uint64 {
	n, err := strconv.ParseInt(content, 10, 64)
	if err != nil || n < 0 || n >= 1<<32-1 {
		return 0
	}
	return uint64(n)
}

// Text returns a small file of /sys or /proc without the space around it, "" if it cannot be read.
func Text(root fs.FS, name string) string {
	data, err := fs.ReadFile(root, name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}
