// Package netdev finds the network interface of an RDMA device: both are one NIC, and TCP and RDMA share its wire.
//
// RoCE devices name their interfaces beside their addresses (ports/*/gid_attrs/ndevs in /sys/class/infiniband). Devices
// of InfiniBand have none there: their IPoIB interface has the node's number in its hardware address, which rdmamap
// compares. Such a look goes over all interfaces and devices, and takes up to seconds on large hosts. So it is made
// where the first way finds nothing, and only over interfaces of IPoIB.
package netdev

import (
	"cmp"
	"io/fs"
	"net"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/Mellanox/rdmamap"

	"github.com/tent-engine/tent/gocore/nic"
)

const class = "sys/class/infiniband"

// Place is where a device is.
type Place struct {
	Interface string  // "" if none is known
	Node      int     // NUMA node, -1 if unknown
	Bus       string  // where it hangs on PCI, as nic.BusPath says it; "" if unknown, or on no bus
	Rate      float64 // bytes/s of the port, 0 if unknown
}

// Devices lists the devices that a root file system shows, without the library: none where a container hides them.
func Devices(root fs.FS) (names []string) {
	entries, _ := fs.ReadDir(root, class)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// Addresses are those of an interface of this machine; none of one that is not there.
func Addresses(name string) (list []netip.Addr) {
	device, err := net.InterfaceByName(name)
	if err != nil {
		return nil
	}
	found, _ := device.Addrs() // it has just gone
	for _, each := range found {
		if prefix, err := netip.ParsePrefix(each.String()); err == nil {
			list = append(list, prefix.Addr())
		}
	}
	return list
}

// Of returns the place of a device's port, as a root file system with sys below it has it.
func Of(root fs.FS, device string, port int) Place {
	p := Place{ofRoCE(root, device, port), -1, nic.BusPath(root, function(root, device)), rate(root, device, port)}
	if p.Interface == "" {
		p.Interface = ofInfiniBand(root, device)
	}
	if n, is := nic.Read(root, p.Interface); is && p.Interface != "" {
		p.Node = n.Node
	}
	if p.Node < 0 {
		p.Node = node(root, device)
	}
	return p
}

// rate reads a line such as "800 Gb/sec (4X XDR)".
func rate(root fs.FS, device string, port int) float64 {
	text := nic.Text(root, path.Join(class, device, "ports", strconv.Itoa(port), "rate"))
	number, _, _ := strings.Cut(text, " Gb/sec")
	gbps, err := strconv.ParseFloat(number, 64)
	if err != nil || gbps < 0 {
		return 0
	}
	return gbps * 1e9 / 8
}

// ofRoCE is the interface of the first address that names one. The files of a table's empty places cannot be read.
func ofRoCE(root fs.FS, device string, port int) string {
	folder := path.Join(class, device, "ports", strconv.Itoa(port), "gid_attrs", "ndevs")
	entries, _ := fs.ReadDir(root, folder) // none: the device hides them
	slices.SortFunc(entries, func(a, b fs.DirEntry) int {
		return cmp.Or(cmp.Compare(len(a.Name()), len(b.Name())), cmp.Compare(a.Name(), b.Name()))
	})
	for _, e := range entries {
		if name := nic.Text(root, path.Join(folder, e.Name())); name != "" {
			return name
		}
	}
	return ""
}

// arphrdInfiniBand is the type of IPoIB interfaces in /sys/class/net.
const arphrdInfiniBand = "32"

// deviceOf is rdmamap's answer, which a test replaces. An interface with a malformed address would end the process.
var deviceOf = func(netdev string) (device string, err error) {
	defer func() { _ = recover() }()
	return rdmamap.GetRdmaDeviceForNetdevice(netdev)
}

func ofInfiniBand(root fs.FS, device string) string {
	entries, _ := fs.ReadDir(root, nic.Folder) // none: a container hides them
	for _, e := range entries {
		if nic.Text(root, path.Join(nic.Folder, e.Name(), "type")) != arphrdInfiniBand {
			continue
		}
		if found, err := deviceOf(e.Name()); err == nil && found == device {
			return e.Name()
		}
	}
	return ""
}

// function is the PCI function of a device, "" without one, as Soft-RoCE's. The link leads from the device's own
// folder, which is elsewhere than the class's: its last step is all that can be read from here.
func function(root fs.FS, device string) string {
	target, err := fs.ReadLink(root, path.Join(class, device, "device"))
	if err != nil || !nic.IsPCI(path.Base(target)) {
		return ""
	}
	return path.Base(target)
}

func node(root fs.FS, device string) int {
	n, err := strconv.Atoi(nic.Text(root, path.Join(class, device, "device", "numa_node")))
	if err != nil {
		return -1
	}
	return n
}
