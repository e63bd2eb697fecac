package segment

import (
	"encoding/binary"
	"hash/crc32"
	"slices"
	"unicode/utf8"

	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// Decode reads the bytes of Encode and seals the description. It takes any bytes: those that are cut off, damaged, of
// another format or simply something else are InvalidArgument, and memory stays within a small multiple of the input,
// shared names aside. Descriptors are copies; nothing refers to data afterwards.
func Decode(data []byte) (*Description, error) {
	if len(data) < headSize+sumSize || string(data[:len(magic)]) != magic {
		return nil, invalid("these %d bytes are not an exported description: they do not begin with %q", len(data),
			magic)
	}
	if version := data[len(magic)]; version != format {
		return nil, invalid("the description has format %d, this version of tent reads %d", version, format)
	}
	body, sum := data[:len(data)-sumSize], data[len(data)-sumSize:]
	if crc32.Checksum(body, castagnoli) != binary.LittleEndian.Uint32(sum) {
		return nil, invalid("the description is cut off or damaged: its checksum is wrong")
	}
	bits := data[headSize-1]
	if bits&^withDescriptors != 0 {
		return nil, invalid("the description has unknown flags %#x", bits)
	}
	r := reader{rest: body[headSize:]}
	d := r.description(bits&withDescriptors != 0)
	if r.problem == "" && len(r.rest) != 0 {
		r.fail("bytes are left behind its end")
	}
	if r.problem != "" {
		return nil, invalid("the description is malformed: %s", r.problem)
	}
	if id := d.twice(); id != 0 {
		return nil, invalid("two regions have the id %#x", uint64(id))
	}
	return d, d.Seal()
}

// twice returns an id that two regions have, 0 if there is none. A range that is found in the one would be used in the
// other. Owners make none: each number is given out once.
func (d *Description) twice() mem.RegionID {
	seen := make(map[mem.RegionID]struct{}, len(d.Regions))
	for i := range d.Regions {
		id := d.Regions[i].ID
		if _, is := seen[id]; is {
			return id
		}
		seen[id] = struct{}{}
	}
	return 0
}

// reader consumes rest. After the first problem everything reads as zero, so that only loops must look.
type reader struct {
	rest    []byte
	problem string
}

func (r *reader) fail(problem string) {
	if r.problem == "" {
		r.problem = problem
	}
	r.rest = nil
}

func (r *reader) number() uint64 {
	value, n := binary.Uvarint(r.rest)
	if n <= 0 {
		r.fail("a number is cut off or too large")
		return 0
	}
	r.rest = r.rest[n:]
	return value
}

// count reads a number of things that take at least size bytes each.
func (r *reader) count(limit, size int) int {
	n := r.number()
	if n > uint64(limit) || n*uint64(size) > uint64(len(r.rest)) {
		r.fail("a count is larger than what follows")
		return 0
	}
	return int(n)
}

func (r *reader) bytes(n uint64) []byte {
	if n > uint64(len(r.rest)) {
		r.fail("a field is cut off")
		return nil
	}
	out := r.rest[:n]
	r.rest = r.rest[n:]
	return out
}

func (r *reader) text() string {
	raw := r.bytes(r.number())
	if len(raw) > NameMax {
		r.fail("a name is too long")
		return ""
	}
	if !utf8.Valid(raw) {
		r.fail("a name is not UTF-8")
		return ""
	}
	return string(raw)
}

func (r *reader) texts(limit int) []string {
	out := make([]string, 0, r.count(limit, 1))
	for range cap(out) {
		out = append(out, r.text())
	}
	return out
}

func (r *reader) description(descriptors bool) *Description {
	d := &Description{Address: r.text(), Name: r.text(), MachineID: r.text(), Network: r.text(),
		Version: r.text()}
	if raw := r.bytes(uint64(len(d.ID))); raw != nil {
		d.ID = transport.ID(raw)
	}
	d.Epoch, d.Fences = r.number(), transport.Epoch(r.number())
	d.Others = r.texts(AddressesMax)
	locations := r.texts(RegionsMax)
	transports := r.texts(TransportsMax)
	n := r.count(RegionsMax, regionSizeMin)
	d.Regions = make([]Region, 0, n)
	var addr uint64
	var name string
	for range n {
		region := r.region(addr, name, locations)
		if descriptors {
			region.Descriptors = r.descriptors(transports)
		}
		if r.problem != "" {
			break
		}
		addr, name = max(addr, region.Addr), region.Name
		d.Regions = append(d.Regions, region)
	}
	return d
}

func (r *reader) region(addrBefore uint64, nameBefore string, locations []string) Region {
	id, at, size := r.number(), r.number(), r.number()
	var bits byte
	if raw := r.bytes(1); raw != nil {
		bits = raw[0]
	}
	out := Region{ID: mem.RegionID(id), Size: size, Kind: mem.Kind(bits & 15),
		Permission: mem.Permission(bits >> 4 & 3), ReadOnly: bits&readOnlyBit != 0}
	if place := r.number(); place < uint64(len(locations)) {
		out.Location = mem.Location(locations[place])
	} else {
		r.fail("a location is not in the table")
	}
	r.place(&out, bits&leaseBit != 0, addrBefore, at)
	shared := r.number()
	if shared > uint64(len(nameBefore)) {
		r.fail("a name shares more than there is")
		return out
	}
	out.Name = nameBefore[:shared] + string(r.bytes(r.number()))
	if len(out.Name) > NameMax || !utf8.ValidString(out.Name) {
		r.fail("a region's name is too long or not UTF-8")
	}
	return out
}

// place reads where a region is: at an address, or in a lease.
func (r *reader) place(out *Region, leased bool, addrBefore, at uint64) {
	switch {
	case leased:
		if out.Lease, out.Start = mem.RegionID(r.number()), at; out.Lease == 0 {
			r.fail("a range is of no lease")
		}
	case addrBefore+at < addrBefore:
		r.fail("addresses overflow")
	default:
		out.Addr = addrBefore + at
	}
}

func (r *reader) descriptors(transports []string) map[string]transport.Descriptor {
	n := r.count(TransportsMax, 2)
	if n == 0 {
		return nil
	}
	out := make(map[string]transport.Descriptor, n)
	for range n {
		place := r.number()
		raw := r.bytes(r.number())
		if place >= uint64(len(transports)) || len(raw) > DescriptorMax {
			r.fail("a descriptor is of no transport in the table, or too long")
			return nil
		}
		out[transports[place]] = slices.Clone(raw)
	}
	return out
}
