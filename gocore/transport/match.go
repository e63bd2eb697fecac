package transport

// Matcher is an optional interface of a Transport. Its keys do not work on every rail of a link, or it knows how near
// its rails are to memory: a NIC did not take a region, or hangs below another PCI switch than the GPU. The core cuts
// slices for the rails that Match names, and for no others.
//
// A slice on a rail on which its keys do not work fails with errs.NotHere of ScopeRail, and the rail lives on. The core
// then keeps the task away from this rail; the rail's health does not suffer.
type Matcher interface {
	// Match says on which rails of a link a pair of keys works, and how. It is asked when a plan is made, so not for
	// each transfer, and does not block. Plans are made again when a rail comes up, and when a descriptor is replaced;
	// then it is asked for running transfers, too.
	// errs.NotHere means that the pair works on none, with the reason for people.
	Match(link Link, local LocalKey, remote RemoteKey) (Match, error)
}

// Match says on which rails a pair of keys works. The zero value says on all, each as near as its NUMA node.
type Match struct {
	Rails uint64  // a bit each by index, 0: all. The last bit is the rail of index 63 and all beyond it
	Near  []uint8 // by index: how far the rail is from the local memory; others are as the last. nil: unknown
	There []uint8 // the same of its far end and the peer's memory
	Why   string  // for people: why rails are left out

	SliceMax uint64 // bytes in one slice between these two, below Info.SliceMax; 0: that
	SliceLow uint64 // and in one of LOW while something more urgent may come, and would wait for it; 0: the same
}

// Ranks of Match.Near and There, as the setting numa_penalties counts them.
const (
	Nearest  uint8 = iota // below the same PCI switch or host bridge, or on the memory's NUMA node
	Far                   // on another one
	Farthest              // beyond several
)
