// Package segment describes the offer of a peer: its regions with their names, addresses and descriptors. They are
// found by name or by address, and travel as bytes.
//
// A Description is made by the owner of the memory, carries an epoch that grows with each change, and is a value
// afterwards: Seal it once, then any number of goroutines may read it. The same encoding serves the control plane
// (with descriptors) and the blobs of engine.export (without; they are fetched at first use).
package segment

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// Bounds of a description; a decoder refuses larger ones.
const (
	RegionsMax    = 1 << 18
	NameMax       = 255 // bytes of a name, an address, a location or a machine id
	AddressesMax  = 16  // other addresses
	TransportsMax = 32  // descriptors of one region, and transports of one engine
	DescriptorMax = transport.DescriptorMax
	addressMax    = 1<<64 - 1
)

// Region is one registered range of the owner.
type Region struct {
	ID          mem.RegionID
	Name        string       // "" if unnamed; unique within the description otherwise
	Addr        uint64       // in the owner's process: never touched here, only compared. A range of a lease has none
	Lease       mem.RegionID // that it is a range of, named by its first one; 0: it is a region
	Start       uint64       // of a range of a lease: the bytes of the ranges before it
	Size        uint64       // bytes, never 0
	Location    mem.Location
	Kind        mem.Kind
	Permission  mem.Permission // of peers
	ReadOnly    bool           // the buffer itself must not be written
	Descriptors map[string]transport.Descriptor

	// Registered is the latest moment at which it can have been registered, on the reader's clock; 0 if that is not
	// known. The control plane says it: encodings do not.
	Registered clock.Time
}

// Description is the offer of one incarnation of an engine. Fill it, call Seal, then treat it as read-only.
type Description struct {
	Address   string   // "host:port" of its control plane
	Others    []string // further addresses of the same control plane
	Name      string
	MachineID string
	Network   string // see transport.Peer
	ID        transport.ID
	Version   string          // of the engine that made it
	Epoch     uint64          // grows with each change of Regions
	Fences    transport.Epoch // of the fences of its regions
	Regions   []Region

	// Transports are those that are open, by name; nil if that is not known. The control plane says it: blobs do not.
	Transports map[string]transport.Versions

	// Made by Seal.
	byName map[string]int32
	outer  []int32 // of region i: the last one before it in Regions that ends behind it, or -1; leases have none
}

// Seal checks the description, sorts Regions and builds both indexes. Regions come first, by their addresses, and then
// the ranges of leases. It must be called once, before the lookups and before the description is shared. The error is
// InvalidArgument.
func (d *Description) Seal() error {
	if len(d.Regions) > RegionsMax {
		return invalid("%d regions, more than %d", len(d.Regions), RegionsMax)
	}
	if len(d.Others) > AddressesMax {
		return invalid("%d addresses, more than %d", len(d.Others), AddressesMax)
	}
	for i := range d.Regions {
		if err := d.Regions[i].check(); err != nil {
			return err
		}
	}
	// Where two regions begin at one address the smaller comes last: Containing walks backwards and meets it first.
	slices.SortFunc(d.Regions, func(a, b Region) int {
		return cmp.Or(cmp.Compare(a.Lease, b.Lease), cmp.Compare(a.Start, b.Start), cmp.Compare(a.Addr, b.Addr),
			cmp.Compare(b.Size, a.Size), cmp.Compare(a.ID, b.ID))
	})
	return d.index()
}

func (r *Region) check() error {
	switch {
	case r.ID == 0:
		return invalid("region %q has no id", r.Name)
	case r.Size == 0:
		return invalid("region %q is empty", r.Name)
	case r.Addr > addressMax-r.Size || r.Start > addressMax-r.Size:
		return invalid("region %q leaves the address space", r.Name)
	case r.Lease != 0 && r.Addr != 0 || r.Lease == 0 && r.Start != 0:
		return invalid("region %q has an address and is a range of a lease", r.Name)
	case int(r.Kind) >= mem.KindCount:
		return invalid("region %q has the unknown memory kind %d", r.Name, uint8(r.Kind))
	case r.Permission > mem.GlobalReadWrite:
		return invalid("region %q has the unknown permission %d", r.Name, uint8(r.Permission))
	case len(r.Name) > NameMax || len(r.Location) > NameMax:
		return invalid("a region's name or location has more than %d bytes", NameMax)
	case errs.Printable(string(r.Location), NameMax) != string(r.Location): // plans show it, in errors and logs
		return invalid("region %q has the location %q, which cannot be shown", r.Name, string(r.Location))
	case len(r.Descriptors) > TransportsMax:
		return invalid("region %q has %d descriptors, more than %d", r.Name, len(r.Descriptors), TransportsMax)
	}
	for name, descriptor := range r.Descriptors {
		if name == "" || len(name) > NameMax || len(descriptor) > DescriptorMax {
			return invalid("region %q: the descriptor of %q has %d bytes, more than %d", r.Name, name, len(descriptor),
				DescriptorMax)
		}
	}
	return nil
}

func (d *Description) index() error {
	d.byName = make(map[string]int32, len(d.Regions))
	d.outer = make([]int32, 0, len(d.Regions))
	for i := range d.Regions {
		r := &d.Regions[i]
		if r.Name != "" {
			if _, taken := d.byName[r.Name]; taken {
				return invalid("two regions are named %q", r.Name)
			}
			d.byName[r.Name] = int32(i)
		}
		if r.Lease != 0 {
			continue
		}
		// A region that ends before us is hidden behind us: skip along the chain of those that end later and later.
		before := int32(i) - 1
		for before >= 0 && d.Regions[before].end() <= r.end() {
			before = d.outer[before]
		}
		d.outer = append(d.outer, before)
	}
	return nil
}

func (r *Region) end() uint64 { return r.Addr + r.Size }

// Find returns the region of that name, or nil. The empty name is nobody's. The caller must not change the region.
func (d *Description) Find(name string) *Region {
	i, ok := d.byName[name]
	if !ok {
		return nil
	}
	return &d.Regions[i]
}

// Containing returns the smallest region that contains [addr, addr+length), or nil. Leases have no address. It
// allocates nothing and takes some 100 ns for a thousand regions, also inside one that spans them all.
//
// Walking back from the last region that begins at or before addr, one that ends too early is left along outer, which
// skips all that end even earlier, and the walk stops where a region would have to be larger than the best so far.
func (d *Description) Containing(addr, length uint64) *Region {
	if length > addressMax-addr {
		return nil
	}
	end := addr + length
	low, high := 0, len(d.outer) // the first region that begins behind addr
	for low < high {
		middle := int(uint(low+high) >> 1)
		if d.Regions[middle].Addr <= addr {
			low = middle + 1
		} else {
			high = middle
		}
	}
	var best *Region
	for i := int32(low) - 1; i >= 0; {
		r := &d.Regions[i]
		if best != nil && end-r.Addr >= best.Size {
			break
		}
		if r.end() < end {
			i = d.outer[i]
			continue
		}
		if best == nil || r.Size < best.Size {
			best = r
		}
		i--
	}
	return best
}

// Peer returns the owner as transports know it.
func (d *Description) Peer() transport.Peer {
	return transport.Peer{Address: d.Address, Name: d.Name, MachineID: d.MachineID, Network: d.Network, ID: d.ID}
}

func invalid(format string, args ...any) error {
	return errs.New(errs.InvalidArgument, "segment", format, args...).WithScope(errs.ScopeSlice, errs.SideLocal)
}

// ListensOn lists the addresses of the engine's control plane that are IP addresses. The engine listens on those of its
// transports too, so its data comes from there.
func (d *Description) ListensOn() []netip.AddrPort {
	var list []netip.AddrPort
	for _, text := range append([]string{d.Address}, d.Others...) {
		if a, err := netip.ParseAddrPort(text); err == nil && !a.Addr().IsUnspecified() && !slices.Contains(list, a) {
			list = append(list, a)
		}
	}
	return list
}
