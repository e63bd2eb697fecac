package tcp

import (
	"io/fs"
	"net"
	"net/netip"
	"os"
	"sync"

	"github.com/tent-engine/tent/gocore/nic"
)

// place is where one of our ends is.
type place struct {
	device    string  // the interface's name; "" if none has the address
	node      int     // NUMA node, -1 if it is not known
	bandwidth float64 // bytes/s as negotiated by its devices, 0 if it is not known
}

// places finds out where our ends are and remembers it until the kernel has news of interfaces or addresses
// (watch.go). It does not know where the peer's ends are.
type places struct {
	root        fs.FS                     // has sys
	interfaceOf func(a netip.Addr) string // name of the interface that has an address

	mu    sync.Mutex
	known map[netip.Addr]place
}

func newPlaces(f Factory) *places {
	p := &places{root: f.Root, interfaceOf: f.Interface, known: map[netip.Addr]place{}}
	if p.root == nil {
		p.root = os.DirFS("/")
	}
	if p.interfaceOf == nil {
		p.interfaceOf = interfaceOf
	}
	return p
}

// placeOf returns where an address is. It asks the kernel at the first time.
func (p *places) placeOf(a netip.Addr) place {
	p.mu.Lock()
	defer p.mu.Unlock()
	found, known := p.known[a]
	if !known {
		found = p.askKernel(a)
		p.known[a] = found
	}
	return found
}

func (p *places) askKernel(a netip.Addr) place {
	name := p.interfaceOf(a)
	if name == "" {
		return place{node: -1}
	}
	n, _ := nic.Read(p.root, name)
	return place{device: name, node: n.Node, bandwidth: float64(n.SpeedMbps) * (1e6 / 8)}
}

// forgetPlaces makes the next calls look everything up anew.
func (p *places) forgetPlaces() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.known)
}

// interfaceOf asks the kernel. All of 127.0.0.0/8 is on the loopback interface, which lists only one address of it.
func interfaceOf(a netip.Addr) string {
	if a.Zone() != "" { // link-local: the zone is the interface
		return a.Zone()
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		return ""
	}
	for _, i := range interfaces {
		if a.IsLoopback() && i.Flags&net.FlagLoopback != 0 {
			return i.Name
		}
		addresses, err := i.Addrs()
		if err != nil {
			continue // it has just gone
		}
		for _, other := range addresses {
			if n, is := other.(*net.IPNet); is && n.IP.Equal(a.AsSlice()) {
				return i.Name
			}
		}
	}
	return ""
}
