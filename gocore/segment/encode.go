package segment

import (
	"encoding/binary"
	"hash/crc32"
	"maps"
	"slices"
)

// The encoding, in order; u is an unsigned varint, s is u and then u bytes of UTF-8:
//
//	"TENT", format (1 byte), flags (1 byte: 1 with descriptors)
//	s address, s name, s machine id, s network, s version, id of the engine (16 bytes), u epoch, u fences
//	u n, n times s            other addresses
//	u n, n times s            locations, named below by their place in this table
//	u n, n times s            transports, likewise; 0 without descriptors
//	u n, n times a region:
//	    u id, u address minus the address of the region before (of a range of a lease: its start), u size
//	    kind (4 bits) + permission (2 bits) + read-only (1 bit) + range of a lease (1 bit), u location
//	    of a range of a lease: u lease
//	    u bytes shared with the name before, s the rest of the name
//	    with descriptors: u n, n times u transport, u length, bytes
//	CRC-32C of all that (4 bytes, little-endian)
//
// Layers of a model have names and addresses that differ little from the one before, so that a region takes 20 to
// 40 bytes of an exported blob; at most 64 while the name adds no more than 29 bytes to the one before it.
const (
	magic           = "TENT"
	format          = 2
	withDescriptors = 1
	headSize        = len(magic) + 2
	sumSize         = 4
	readOnlyBit     = 1 << 6
	leaseBit        = 1 << 7
	regionSizeMin   = 7 // bytes of the shortest region; bounds the memory that a decoder allocates for a count
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Encode returns the bytes of a sealed description. Without descriptors they are the blob of engine.export: under
// 1 KiB and 64 B a region, no secrets.
func Encode(d *Description, descriptors bool) []byte {
	out := make([]byte, 0, 512+64*len(d.Regions))
	out = append(out, magic...)
	out = append(out, format, flags(descriptors))
	for _, text := range []string{d.Address, d.Name, d.MachineID, d.Network, d.Version} {
		out = appendText(out, text)
	}
	out = append(out, d.ID[:]...)
	out = binary.AppendUvarint(out, d.Epoch)
	out = binary.AppendUvarint(out, uint64(d.Fences))
	out = appendTexts(out, d.Others)

	locations, transports := d.tables(descriptors)
	out = appendTexts(out, locations.names)
	out = appendTexts(out, transports.names)
	out = binary.AppendUvarint(out, uint64(len(d.Regions)))
	var addr uint64
	var name string
	for i := range d.Regions {
		r := &d.Regions[i]
		out = appendRegion(out, r, addr, name, locations.place[string(r.Location)])
		addr, name = max(addr, r.Addr), r.Name
		if descriptors {
			out = appendDescriptors(out, r, transports)
		}
	}
	return binary.LittleEndian.AppendUint32(out, crc32.Checksum(out, castagnoli))
}

func flags(descriptors bool) byte {
	if descriptors {
		return withDescriptors
	}
	return 0
}

func appendRegion(out []byte, r *Region, addrBefore uint64, nameBefore string, location int) []byte {
	out = binary.AppendUvarint(out, uint64(r.ID))
	bits, at := byte(r.Kind)|byte(r.Permission)<<4, r.Addr-addrBefore
	if r.ReadOnly {
		bits |= readOnlyBit
	}
	if r.Lease != 0 {
		bits, at = bits|leaseBit, r.Start
	}
	out = binary.AppendUvarint(out, at)
	out = binary.AppendUvarint(out, r.Size)
	out = append(out, bits)
	out = binary.AppendUvarint(out, uint64(location))
	if r.Lease != 0 {
		out = binary.AppendUvarint(out, uint64(r.Lease))
	}
	shared := sharedPrefix(r.Name, nameBefore)
	out = binary.AppendUvarint(out, uint64(shared))
	return appendText(out, r.Name[shared:])
}

func appendDescriptors(out []byte, r *Region, transports table) []byte {
	out = binary.AppendUvarint(out, uint64(len(r.Descriptors)))
	for place, name := range transports.names { // in the table's order: equal descriptions have equal bytes
		descriptor, ok := r.Descriptors[name]
		if !ok {
			continue
		}
		out = binary.AppendUvarint(out, uint64(place))
		out = binary.AppendUvarint(out, uint64(len(descriptor)))
		out = append(out, descriptor...)
	}
	return out
}

func appendText(out []byte, text string) []byte {
	return append(binary.AppendUvarint(out, uint64(len(text))), text...)
}

func appendTexts(out []byte, texts []string) []byte {
	out = binary.AppendUvarint(out, uint64(len(texts)))
	for _, text := range texts {
		out = appendText(out, text)
	}
	return out
}

func sharedPrefix(a, b string) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// table is a sorted list of distinct names and the place of each.
type table struct {
	names []string
	place map[string]int
}

func newTable(set map[string]int) table {
	t := table{names: slices.Sorted(maps.Keys(set)), place: set}
	for i, name := range t.names {
		set[name] = i
	}
	return t
}

func (d *Description) tables(descriptors bool) (locations, transports table) {
	locationSet, transportSet := map[string]int{}, map[string]int{}
	for i := range d.Regions {
		locationSet[string(d.Regions[i].Location)] = 0
		if !descriptors {
			continue
		}
		for name := range d.Regions[i].Descriptors {
			transportSet[name] = 0
		}
	}
	return newTable(locationSet), newTable(transportSet)
}
