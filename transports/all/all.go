// Package all is the registry of transports: the table of their names and numbers, in Go, Python and C, and the
// factories of this build. A new transport is one folder beside this one and one line here; so is a platform of
// devices.
package all

import (
	"slices"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/device"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/ascend"
	"github.com/tent-engine/tent/transports/ascend/acl"
	"github.com/tent-engine/tent/transports/cuda"
	"github.com/tent-engine/tent/transports/cuda/driver"
	"github.com/tent-engine/tent/transports/cuda/gds"
	"github.com/tent-engine/tent/transports/delegate"
	"github.com/tent-engine/tent/transports/file"
	"github.com/tent-engine/tent/transports/loop"
	"github.com/tent-engine/tent/transports/plugin"
	"github.com/tent-engine/tent/transports/rdma"
	"github.com/tent-engine/tent/transports/shm"
	"github.com/tent-engine/tent/transports/tcp"
)

// entry is a transport that upstream or this build knows.
type entry struct {
	name      string // as Factory.Name gives it
	number    uint8  // upstream's TransportType, which its tests freeze; from 64 on tent's own, see numbers.go
	members   string // of Python's TransportType, upstream's spelling first; "" for numbers of our own
	branch    string // of its keys, where it is not the name
	spellings []string
	factory   transport.Factory // nil: it is not part of this build
	off       bool              // it is not used unless a setting enables it
}

// table lists all transports. Those of this build come first, in the order in which the engine prefers them.
var table = []entry{
	{"shm", 3, "SHM", "", nil, shm.Factory{}, false},
	{cuda.FabricName, 2, "MNNVL", "", nil, cuda.FabricFactory{}, false},
	{cuda.Name, 4, "NVLINK", "", nil, cuda.Factory{}, false},
	{acl.Platform{}.Name(), 79, "", "", nil, insideNPUs, false},
	{"rdma", 1, "RDMA", "", nil, rdma.Factory{}, false},
	{ascend.Name, 8, "AscendDirect ASCEND_DIRECT", "", []string{"ascend", "ascenddirect"}, ascend.Factory{}, false},
	{"tcp", 7, "TCP", "", nil, tcp.Factory{}, false},
	{gds.Name, 5, "GDS", "", nil, gds.Factory{}, true},
	{file.UringName, 6, "IOURING IO_URING", file.UringBranch, []string{"iouring"}, file.UringFactory{}, false},
	{file.BufferedName, 64, "", "", []string{"buf_io", "bufio"}, file.BufferedFactory{}, false},
	{delegate.Name, 78, "", "", nil, delegate.Factory{}, false},

	{"sunrise_link", 9, "SUNRISE_LINK", "", nil, nil, false},
	{"tpu", 10, "TPU", "", nil, nil, false},
	{"ub", 11, "UB", "", nil, nil, false},
	{"mpcomm", 12, "MPCOMM", "", nil, nil, false},
	{"hp_tcp", 13, "HP_TCP", "", nil, nil, false},
}

// instead has transports of this build that do the same as some that it lacks.
var instead = map[string]string{"hp_tcp": "tcp"}

// insideNPUs copies memory of NPUs inside of a process. Staging takes it on from there, by every other transport.
var insideNPUs = loop.OnPlatform{Platform: acl.Platform{},
	Needs: "a CANN runtime of 8.1 or newer (`libascendcl.so`), and one process; emulated only, never run on an NPU"}

// PlugIns opens the shared libraries of the setting "plugins". One that cannot be used is there too, with the reason in
// its Check. Devices of a plug-in are copied by loop.
func PlugIns(paths []string) []transport.Factory {
	var taken []string
	for i := range table {
		if e := &table[i]; e.factory != nil {
			taken = append(append(taken, e.name, e.branch), e.spellings...)
		}
	}
	var list []transport.Factory
	for _, factory := range plugin.Load(paths, taken) {
		list, taken = append(list, factory), append(taken, factory.Name())
	}
	for _, p := range Platforms(paths...) {
		if !slices.Contains(platforms, p) && !slices.Contains(taken, p.Name()) {
			list, taken = append(list, loop.OnPlatform{Platform: p}), append(taken, p.Name())
		}
	}
	return list
}

// Transports returns the table for config.Options: every name, with the settings of the transports of this build and of
// plug-ins. A plug-in may bring a transport that upstream knows and this build has not.
func Transports(plugIns ...transport.Factory) []config.Transport {
	list := make([]config.Transport, 0, len(table)+len(plugIns))
	for i := range table {
		e := &table[i]
		line := config.Transport{Name: e.name, Number: e.number, Branch: e.branch, Spellings: e.spellings,
			Off: e.off, Instead: instead[e.name]}
		if e.factory != nil {
			line.Settings = settingsOf(e.factory)
		}
		list = append(list, line)
	}
	for _, factory := range plugIns {
		settings := settingsOf(factory)
		i := slices.IndexFunc(list, func(line config.Transport) bool { return line.Name == factory.Name() })
		if i < 0 {
			list = append(list, config.Transport{Name: factory.Name(), Number: numberOf(factory.Name()),
				Settings: settings})
		} else {
			list[i].Settings = settings
		}
	}
	return list
}

func settingsOf(factory transport.Factory) any {
	if c, is := factory.(transport.Configured); is {
		return c.Settings()
	}
	return struct{}{}
}

// Factories returns plug-ins, since somebody asked for each of them, and then those of this build, in the order in
// which the engine prefers them.
func Factories(plugIns ...transport.Factory) []transport.Factory {
	list := slices.Clone(plugIns)
	for i := range table {
		if table[i].factory != nil {
			list = append(list, table[i].factory)
		}
	}
	return list
}

// platforms lists those of this build, one a kind of memory. An engine asks them about memory that it is given.
var platforms = []device.Platform{driver.Platform{}, acl.Platform{}}

// Platforms returns those of this build and of the plug-ins that the setting "plugins" names, one a kind. A plug-in
// takes the place of one of the build that does not work here, and of no other.
func Platforms(paths ...string) []device.Platform {
	list := slices.Clone(platforms)
	for _, p := range plugin.Platforms(paths) {
		i := slices.IndexFunc(list, func(known device.Platform) bool { return known.Kind() == p.Kind() })
		switch {
		case i < 0:
			list = append(list, p)
		case list[i].Check() != nil:
			list[i] = p
		}
	}
	return list
}
