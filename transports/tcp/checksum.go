package tcp

import (
	"hash/crc32"

	"github.com/tent-engine/tent/gocore/errs"
)

// flagChecked marks a WRITE or DATA frame with the CRC-32C (Castagnoli, RFC 3720) of each slice's bytes in its record.
// In a READ frame it asks for them. TCP's own sum of 16 bits misses errors on the path between memory and
// network that nobody wants in the weights of a model. Only slices that ask for it pay for more.
const flagChecked = 1

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// seal puts the checksums of a frame's payload into its records. It reads all of the bytes, so it is called without mu;
// writeMu keeps the memory from being given back, as while it is sent.
func (c *conn) seal() {
	x := &c.tx
	for k := range x.slices {
		v, b := &x.iov[payload+k], x.head[headerBytes+k*recordBytes:]
		sum, fault := checksum(v.base, v.size)
		if fault != nil {
			c.quieten(k)
			sum, _ = checksum(v.base, v.size)
		}
		r := getRecord(b)
		r.classOrSum = sum
		r.put(b)
	}
}

func (x *receiver) checked() bool { return x.head.flag&flagChecked != 0 }

// verify compares the i-th record's bytes, which are all in their place, with its checksum. It returns OK, Corrupted,
// or AddressNotRegistered when the place is gone. Holds copyMu, so that the bytes are still ours to read.
func (x *receiver) verify(i int) errs.Code {
	r := &x.table[i]
	switch sum, fault := checksum(x.place[i]-uintptr(r.length), uint64(r.length)); {
	case fault != nil:
		return errs.AddressNotRegistered
	case sum != r.classOrSum:
		return errs.Corrupted
	}
	return errs.OK
}

func (l *initiatorLane) corrupted() *errs.Error {
	return l.attribute(errs.New(errs.Corrupted, "tcp.checksum",
		"bytes that arrived are not those that were sent: their CRC-32C differs").
		WithScope(errs.ScopeSlice, errs.SidePath))
}
