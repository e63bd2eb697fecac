package sim

import (
	"context"
	"time"

	"github.com/tent-engine/tent/gocore/device"
	"github.com/tent-engine/tent/gocore/mem"
)

// Settings of one engine's transport. Zero values mean the default in brackets.
type Settings struct {
	Network   *Network // required
	Name      string   // of the transport; only equal names reach each other ["sim"]
	Rails     int      // of each link [1]
	Pairs     [mem.KindCount][mem.KindCount]bool
	SameHost  bool
	SliceMax  uint64 // [1 MiB]
	SliceBest uint64 // [SliceMax]
	SlicesMax int    // outstanding on one rail [256]
	Alignment uint64 // [1]
	// Platform copies where one end is memory of a device, which Pairs must allow; nil: all memory is touched directly.
	Platform device.Platform
	Nodes    []int // NUMA node of each rail's local end, by index; not known (-1) beyond
	// WithdrawOnRail sends a withdrawal over the slice's own rail alone, so a silent rail keeps its slices until it is
	// healed. Otherwise any rail of the link carries it.
	WithdrawOnRail bool
	// Executor makes slices requests to the peer. Slice.Local is an address in the *peer's* memory, Slice.LocalKey the
	// RemoteKey under which its region was imported, and the peer copies between its own two regions. That is the
	// remote hop of a plan, for example from a stage buffer into the memory of a GPU.
	Executor bool
	// Pins makes registration slow (Info.Pins), and Registering is called at its begin, without a lock: an error of it
	// is Register's.
	Pins        bool
	Registering func(context.Context, mem.Region) error
	// Holds makes it hold the pages that are behind shared memory when it is registered, as a NIC that has pinned them
	// does. Peers reach these, and others only after Remap.
	Holds bool
	// Posts makes the peer acknowledge WRITEs when they arrive, and place them up to so much later, in any order. NICs
	// do so, and their writes wait on the way to memory. A flush of the rail places them all.
	Posts time.Duration
	// Unflushed completes such WRITEs without a flush. It breaks rule m, for tests of tests.
	Unflushed bool
	// Reaches says on which rails, by index, a region can be used, as NICs that did not take it would; nil: on all.
	// Match names them, unless Untold: then the rails refuse.
	Reaches func(m *mem.Region, rail int) bool
	Untold  bool
	// Vectors makes the transport understand Slice.Pieces.
	Vectors bool
	// Inline makes it a transport.Inliner, where the network drives itself (NewInline) and nothing is wrong with it.
	Inline bool
	// Files makes it a transport.Filer between memory and the network's Disk; its peers are files.
	Files bool
}

// node is the NUMA node of a rail's local end.
func (s *Settings) node(rail int) int {
	if rail < len(s.Nodes) {
		return s.Nodes[rail]
	}
	return -1
}

func (s Settings) withDefaults() Settings {
	if s.Name == "" {
		s.Name = "sim"
	}
	if s.Pairs == ([mem.KindCount][mem.KindCount]bool{}) {
		s.Pairs[mem.Host][mem.Host] = !s.Files
		s.Pairs[mem.Host][mem.File] = s.Files
	}
	s.SameHost = s.SameHost || s.Files
	s.Rails = max(s.Rails, 1)
	if s.SliceMax == 0 {
		s.SliceMax = 1 << 20
	}
	if s.SliceBest == 0 {
		s.SliceBest = s.SliceMax
	}
	if s.SlicesMax == 0 {
		s.SlicesMax = 256
	}
	s.Alignment = max(s.Alignment, 1)
	return s
}
