// Package all lists the transports of this build, in the order in which the engine prefers them. A new transport is one
// folder beside this one and one line here.
package all

import (
	"net"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/file"
	"github.com/tent-engine/tent/transports/shm"
	"github.com/tent-engine/tent/transports/tcp"
)

// Entry is a transport and the way its settings come out of the tree.
type Entry struct {
	Factory  transport.Factory
	Settings func(*config.Config) any
}

// Entries returns every transport of this build.
func Entries() []Entry {
	return []Entry{
		{shm.Factory{}, shmSettings},
		{tcp.Factory{}, tcpSettings},
		{file.UringFactory{}, uringSettings},
		{file.BufferedFactory{}, bufferedSettings},
	}
}

// Names are those of Entries.
func Names() []string {
	var names []string
	for _, e := range Entries() {
		names = append(names, e.Factory.Name())
	}
	return names
}

// shmSettings translates the branch transports/shm.
func shmSettings(c *config.Config) any {
	return shm.Settings{Trust: c.SHM.Trust, CXLMountPath: c.SHM.CXLMountPath, AnyTracer: c.SHM.AllowAnyTracer,
		Workers: c.SHM.CopyWorkers, InlineBytes: uint64(c.SHM.AsyncMemcpyThreshold) << 10}
}

// tcpSettings translates the branch transports/tcp. Who says under which address peers reach the engine means the bytes
// too, unless the addresses of the rails are given.
func tcpSettings(c *config.Config) any {
	s := tcp.Settings{Addresses: c.TCP.Addresses, RailPairs: c.TCP.RailPairs, Port: c.TCP.Port, Lanes: c.TCP.Lanes,
		Congestion: c.TCP.Congestion, UserTimeout: c.TCP.UserTimeout, DialTimeout: c.TCP.DialTimeout, Lease: c.TCP.Lease,
		SliceBytes: c.TCP.SliceBytes, WindowBytes: c.TCP.WindowBytes, CreditBytes: c.TCP.CreditBytes,
		CreditRequests: c.TCP.CreditRequests}
	if host := c.Engine.RPCServerHostname; len(s.Addresses) == 0 && host != "" {
		if addresses, err := net.LookupHost(host); err == nil && len(addresses) > 0 {
			s.Addresses = addresses[:1]
		}
	}
	return s
}

func uringSettings(c *config.Config) any {
	f := c.File
	return file.Settings{Roots: f.Roots, Descriptors: f.Descriptors, Direct: f.Direct, Depth: f.Depth,
		SliceBytes: f.UringSliceBytes, WindowBytes: f.UringWindowBytes}
}

func bufferedSettings(c *config.Config) any {
	f := c.File
	return file.Settings{Roots: f.Roots, Descriptors: f.Descriptors, Workers: f.Workers,
		SliceBytes: f.BufferedSliceBytes, WindowBytes: f.BufferedWindowBytes}
}
