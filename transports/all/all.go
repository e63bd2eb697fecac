// Package all is the registry of transports: the table of their names and numbers, in Go, Python and C, and the
// factories of this build. A new transport is one folder beside this one and one line here; so is a platform of
// devices.
package all

import (
	"slices"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/device"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/cuda"
	"github.com/tent-engine/tent/transports/cuda/driver"
	"github.com/tent-engine/tent/transports/file"
	"github.com/tent-engine/tent/transports/rdma"
	"github.com/tent-engine/tent/transports/shm"
	"github.com/tent-engine/tent/transports/tcp"
)

// entry is a transport that upstream or this build knows.
type entry struct {
	name      string // as Factory.Name gives it
	number    uint8  // upstream's TransportType, which its tests freeze; from 64 on tent's own
	members   string // of Python's TransportType, upstream's spelling first; "" for numbers of our own
	branch    string // of its keys, where it is not the name
	spellings []string
	factory   transport.Factory // nil: it is not part of this build
}

// table lists all transports. Those of this build come first, in the order in which the engine prefers them.
var table = []entry{
	{"shm", 3, "SHM", "", nil, shm.Factory{}},
	{cuda.Name, 4, "NVLINK", "", nil, cuda.Factory{}},
	{"rdma", 1, "RDMA", "", nil, rdma.Factory{}},
	{"tcp", 7, "TCP", "", nil, tcp.Factory{}},
	{file.UringName, 6, "IOURING IO_URING", file.UringBranch, []string{"iouring"}, file.UringFactory{}},
	{file.BufferedName, 64, "", "", []string{"buf_io", "bufio"}, file.BufferedFactory{}},

	{"mnnvl", 2, "MNNVL", "", nil, nil},
	{"gds", 5, "GDS", "", nil, nil},
	{"ascend_direct", 8, "AscendDirect ASCEND_DIRECT", "", []string{"ascend", "ascenddirect"}, nil},
	{"sunrise_link", 9, "SUNRISE_LINK", "", nil, nil},
	{"tpu", 10, "TPU", "", nil, nil},
	{"ub", 11, "UB", "", nil, nil},
	{"mpcomm", 12, "MPCOMM", "", nil, nil},
}

// Transports returns the table for config.Options: every name, with the settings of the transports of this build.
func Transports() []config.Transport {
	list := make([]config.Transport, len(table))
	for i := range table {
		e := &table[i]
		list[i] = config.Transport{Name: e.name, Number: e.number, Branch: e.branch, Spellings: e.spellings}
		if e.factory != nil {
			list[i].Settings = struct{}{}
		}
		if c, is := e.factory.(transport.Configured); is {
			list[i].Settings = c.Settings()
		}
	}
	return list
}

// Factories returns those of this build, in the order in which the engine prefers them.
func Factories() []transport.Factory {
	var list []transport.Factory
	for i := range table {
		if table[i].factory != nil {
			list = append(list, table[i].factory)
		}
	}
	return list
}

// platforms lists those of this build, one a kind of memory. An engine asks them about memory that it is given.
var platforms = []device.Platform{driver.Platform{}}

// Platforms returns those of this build.
func Platforms() []device.Platform { return slices.Clone(platforms) }
