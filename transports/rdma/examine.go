package rdma

import (
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"

	"github.com/tent-engine/tent/gocore/nic"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/rdma/netdev"
	"github.com/tent-engine/tent/transports/rdma/verbs"
)

// Examine looks at each device for causes of slow RDMA, and of peers out of reach.
func (Factory) Examine() (list []transport.Part) {
	library, err := verbs.Load("")
	if err != nil {
		return nil
	}
	names, err := library.Devices()
	if err != nil {
		return nil
	}
	for _, name := range names {
		list = append(list, examine(os.DirFS("/"), library, name)...)
	}
	return list
}

// examine looks at a device and its first port, on a machine with the root file system.
func examine(root fs.FS, library *verbs.Library, name string) []transport.Part {
	d, err := library.Open(name)
	if err != nil {
		return nil // the survey says so
	}
	defer func() { _ = d.Close() }()
	port, err := d.Port(1)
	if err != nil {
		return nil
	}
	gids, _ := d.GIDs(1)
	place := netdev.Of(root, name, 1)
	return []transport.Part{ofAddresses(name, port, gids), ofPackets(root, name, place.Interface, port),
		ofOrder(name, library), ofBridges(root, name)}
}

// ofAddresses names the address that rails try first.
func ofAddresses(name string, port verbs.Port, gids []verbs.GID) transport.Part {
	p := transport.Part{Name: "addresses of " + name,
		Matters: "peers are reached by the best address; give the interface one of IPv4 that is routed"}
	gids = slices.DeleteFunc(gids, func(g verbs.GID) bool { return rankOf(&g) == 0 })
	sortGIDs(gids)
	switch {
	case !port.Active:
		p.Reason = "port 1 is down"
		p.Matters = "no rail comes up on it: look at the cable, the switch and the interface"
	case len(gids) == 0:
		p.Reason = "port 1 has none"
	case gids[0].InfiniBnd && port.LID == 0 && !port.Ethernet:
		p.Reason = "port 1 has no LID"
		p.Matters = "a subnet manager gives it: is opensm running?"
	case rankOf(&gids[0]) < rankRouted:
		p.Reason = "the best is " + spoken(&gids[0])
	default:
		p.Found = []string{fmt.Sprintf("%s, of %d", spoken(&gids[0]), len(gids))}
	}
	return p
}

// spoken is an address as people write it.
func spoken(g *verbs.GID) string {
	kind := "RoCE v1"
	switch {
	case g.InfiniBnd:
		kind = "InfiniBand"
	case g.RoCEv2:
		kind = "RoCE v2"
	}
	scope := ""
	if linkLocal(g) && !g.InfiniBnd {
		scope = ", which no router passes on"
	}
	return fmt.Sprintf("%s %v at index %d%s", kind, netip.AddrFrom16(g.GID).Unmap(), g.Index, scope)
}

// mtuMost is the code of the largest packets, of 4096 bytes.
const mtuMost = 5

// ofPackets looks at the size of packets. An interface with an MTU of 1500 leaves packets of 1024 bytes.
func ofPackets(root fs.FS, name, of string, port verbs.Port) transport.Part {
	p := transport.Part{Name: "packets of " + name, Found: []string{fmt.Sprintf("%d bytes", 128<<port.MTU)},
		Matters: "each costs the same, however small: give interface, peers and switches an MTU of 4200 or more"}
	if port.MTU >= mtuMost || !port.Active {
		return p
	}
	p.Reason = fmt.Sprintf("%d bytes, of 4096 at most", 128<<port.MTU)
	if n, is := nic.Read(root, of); is && n.MTU > 0 {
		p.Reason += fmt.Sprintf("; the MTU of %s is %d", of, n.MTU)
	}
	return p
}

// ofOrder looks at relaxed ordering on the PCI bus, which pci_relaxed_ordering asks for.
func ofOrder(name string, library *verbs.Library) transport.Part {
	p := transport.Part{Name: "PCI order of " + name,
		Matters: "hosts with several root complexes lose rate; rdma-core 28 or newer has the call"}
	if library.Relaxes() {
		p.Found = []string{"relaxed ordering is asked for; a device that cannot do it leaves it out"}
	} else {
		p.Reason = "this libibverbs has no ibv_reg_mr_iova2, so there is no relaxed ordering"
	}
	return p
}

// ofBridges looks for bridges above the device that send the requests for a GPU beside it by the root.
func ofBridges(root fs.FS, name string) transport.Part {
	p := transport.Part{Name: "PCI bridges of " + name,
		Matters: "GPUDirect goes by the root complex; switch ACS off in the firmware, or by setpci"}
	bridges, read := netdev.Bridges(root, name)
	for _, b := range bridges {
		if b.Redirects {
			p.Reason = "ACS of " + b.Address + " redirects requests between devices"
			return p
		}
	}
	switch {
	case len(bridges) == 0:
		p.Found = []string{"none"}
	case read:
		p.Found = []string{fmt.Sprintf("%d, none of which redirects requests between devices", len(bridges))}
	default:
		p.Found = []string{fmt.Sprintf("%d; root alone can read whether they redirect requests (ACS)", len(bridges))}
	}
	return p
}
