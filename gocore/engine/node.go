package engine

import (
	"math/bits"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/topology"
)

// This file finds the NUMA node of memory, for the choice of rails (plan.Plan.Node).
//
// A location of the user ("cpu:1") decides. For "*" the kernel is asked for the nodes of some pages of the region.
// Asking does not make untouched pages; they count for the node that the policy of their mapping names, if it names
// one. A region with at least three quarters of its pages on one node belongs to that node; one that is spread is named
// after the node with most of it, and is near to no rail. Where the kernel does not answer (the filter of a container
// without CAP_SYS_NICE returns EPERM) the region is called "cpu:0", and its node is unknown. Memory that was untouched
// at registration is looked at again when its plans are made. On a machine with one node the kernel is not asked: every
// rail is as near as any other.

// pagesAsked is the number of pages of a region that are looked at, evenly spread.
const pagesAsked = 64

// Values of region.node, the NUMA node as far as it is known.
const (
	nodeUnasked = -1 // may be known later
	nodeUnknown = 0
	// above: the number of the node plus one
)

// numa describes the memory nodes of the machine.
type numa struct {
	nodes []int                                                     // that are online
	ask   func(addr uintptr, size uint64) (node int, share float64) // nodeOf
}

func readNUMA() numa { return numa{topology.Nodes(os.DirFS("/")), nodeOf} }

// place finds the node of a region of host memory and gives its location a number.
func (n *numa) place(r *region) {
	_, index, _ := r.Location.Parse() // was checked
	switch {
	case r.Kind != mem.Host:
	case index >= 0:
		r.node.Store(n.matter(index))
	default:
		r.Location = mem.Location("cpu:" + strconv.Itoa(n.look(r)))
	}
}

// look asks the kernel about a region and returns the node that it is called after.
func (n *numa) look(r *region) int {
	if len(n.nodes) < 2 {
		if len(n.nodes) == 1 {
			return n.nodes[0]
		}
		return 0
	}
	node, share := n.ask(r.Addr, r.Size)
	switch {
	case node < 0 && share == 0:
		r.node.Store(nodeUnasked)
		return n.nodes[0]
	case node < 0:
		return n.nodes[0]
	case share >= 0.75:
		r.node.Store(n.matter(node))
	}
	return node
}

// matter returns the number of a node as plans have it. The only node of a machine does not matter: a NIC without a
// number would count as far otherwise.
func (n *numa) matter(node int) int32 {
	if len(n.nodes) == 1 && n.nodes[0] == node {
		return nodeUnknown
	}
	return int32(node) + 1
}

// nodeOfPlan returns a region's node as plans have it: its number plus one, or 0.
func (n *numa) nodeOfPlan(r *region) int {
	if r.node.Load() == nodeUnasked {
		if node, share := n.ask(r.Addr, r.Size); node >= 0 && share >= 0.75 {
			r.node.Store(n.matter(node))
		}
	}
	return int(max(r.node.Load(), nodeUnknown))
}

// shareUnknown is the share of nodeOf when the kernel does not tell.
const shareUnknown = -1

// nodeOf returns the NUMA node that has most of a range of this process's memory, and its share of the pages with
// a known node. The node is -1 with a share of 0 if the range was never touched, and with shareUnknown if the
// kernel does not answer.
func nodeOf(addr uintptr, size uint64) (node int, share float64) {
	page := uintptr(os.Getpagesize())
	first, last := addr&^(page-1), (addr+uintptr(size)-1)&^(page-1)
	count := min((last-first)/page+1, pagesAsked)
	pages, status := make([]uintptr, count), make([]int32, count)
	for i := range pages {
		pages[i] = first + (last-first)/page*uintptr(i)/max(count-1, 1)*page
	}
	// Without nodes to move to, it only answers. Unlike get_mempolicy(MPOL_F_NODE|MPOL_F_ADDR), it makes no page.
	if _, _, errno := unix.Syscall6(unix.SYS_MOVE_PAGES, 0, count, uintptr(unsafe.Pointer(&pages[0])), 0,
		uintptr(unsafe.Pointer(&status[0])), 0); errno != 0 {
		return -1, shareUnknown
	}
	counts := map[int]int{}
	found := 0
	for i := range status {
		n := int(status[i])
		if n < 0 { // -ENOENT, or -EFAULT for the page of zeros
			n = policyOf(pages[i])
		}
		if n < 0 {
			continue
		}
		found++
		counts[n]++
	}
	node = -1
	for n, c := range counts {
		if best := counts[node]; node < 0 || c > best || (c == best && n < node) {
			node = n
		}
	}
	if found == 0 {
		return -1, 0
	}
	return node, float64(counts[node]) / float64(found)
}

// Memory policies of set_mempolicy(2), and the flag that asks for that of an address.
const (
	policyPreferred = 1
	policyBind      = 2
	policyOfAddress = 2
	policyMode      = 0xff
	nodesMax        = 1024
)

// policyOf returns the only node that the policy of an address allows or prefers, -1 if there is none.
func policyOf(addr uintptr) int {
	var mode int32
	var mask [nodesMax / 64]uint64
	if _, _, errno := unix.Syscall6(unix.SYS_GET_MEMPOLICY, uintptr(unsafe.Pointer(&mode)),
		uintptr(unsafe.Pointer(&mask[0])), nodesMax,
		addr, policyOfAddress, 0); errno != 0 {
		return -1
	}
	if mode &= policyMode; mode != policyPreferred && mode != policyBind {
		return -1
	}
	node := -1
	for i, word := range mask {
		if word == 0 {
			continue
		}
		if node >= 0 || bits.OnesCount64(word) > 1 {
			return -1
		}
		node = i*64 + bits.TrailingZeros64(word)
	}
	return node
}

// prefer asks for pages of a node for untouched memory. It is a wish: where the node is absent or full, pages of
// another one come.
func prefer(addr uintptr, size uint64, node int) {
	if node < 0 || node >= 64 {
		return
	}
	mask := uint64(1) << node
	_, _, _ = unix.Syscall6(unix.SYS_MBIND, addr, uintptr(size), policyPreferred, uintptr(unsafe.Pointer(&mask)), 65, 0)
}
