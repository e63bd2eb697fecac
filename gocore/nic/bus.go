package nic

import (
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// Ways lead from one function of PCI to another, in the words of `nvidia-smi topo`. The shortest is first: behind one
// bridge, behind several, at one host bridge, on one NUMA node, between sockets.
var Ways = [...]string{"PIX", "PXB", "PHB", "NODE", "SYS"}

const functions = "sys/bus/pci/devices/"

// IsPCI reports whether a text is the address of a function, "0000:3b:00.0".
func IsPCI(address string) bool { return pciAddress.MatchString(address) }

// BusPath returns where a PCI function hangs: "pci0000:00/0000:00:01.0/0000:01:00.0", "" if that is not known.
func BusPath(root fs.FS, address string) string {
	if address == "" {
		return ""
	}
	target, err := fs.ReadLink(root, functions+address)
	if err != nil {
		return ""
	}
	_, below, _ := strings.Cut(path.Clean(target), "devices/")
	return below
}

// BusNode returns the NUMA node of a PCI function, -1 if it is not known.
func BusNode(root fs.FS, address string) int {
	if n, err := strconv.Atoi(Text(root, functions+address+"/numa_node")); err == nil {
		return n
	}
	return -1
}

// Way says how two functions of the bus are connected, by the bridges that their paths share; "" where a path is not
// known. The nodes are those of the functions, -1 if they are not known.
func Way(a, b string, nodeA, nodeB int) string {
	if a == "" || b == "" {
		return ""
	}
	here, there := strings.Split(a, "/"), strings.Split(b, "/")
	shared := 0
	for shared < min(len(here), len(there))-1 && here[shared] == there[shared] {
		shared++
	}
	switch further := max(len(here), len(there)) - 1 - shared; { // bridges below the last one that they share
	case shared == 0 && nodeA >= 0 && nodeA == nodeB:
		return "NODE"
	case shared == 0:
		return "SYS"
	case shared == 1:
		return "PHB"
	case further > 1:
		return "PXB"
	}
	return "PIX"
}
