package kit

import (
	"hash/crc32"
	"runtime/debug"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// Closed is the error of every call on a transport that is closed.
func Closed(op string) *errs.Error {
	return errs.New(errs.EngineClosed, op, "transport is closed").WithScope(errs.ScopeTransport, errs.SideLocal)
}

// NoRegion is the error for a key of our own that names no region.
func NoRegion(op string, key transport.LocalKey) *errs.Error {
	return errs.New(errs.AddressNotRegistered, op, "no region with key %#x", uint64(key))
}

// NoMemory is the error for a region that is no range of memory, see mem.Region.IsRange.
func NoMemory(op string, m *mem.Region) *errs.Error {
	return errs.New(errs.InvalidArgument, op, "no memory at %#x with %d bytes", m.Addr, m.Size)
}

// StaleLink is the error for a link that has ended.
func StaleLink(op string, link transport.Link) *errs.Error {
	return errs.New(errs.Stale, op, "link %v has ended", link)
}

// CheckRegister returns why a transport that moves memory of the host cannot register a region, nil if it can.
func CheckRegister(op string, life *Lifecycle, m *mem.Region) *errs.Error {
	switch {
	case life.Closed():
		return Closed(op)
	case m.Kind != mem.Host:
		return errs.New(errs.NotHere, op,
			"%v memory cannot be moved by this transport, only memory of the host", m.Kind)
	case !m.IsRange():
		return NoMemory(op, m)
	}
	return nil
}

// CheckLocal checks a slice's own end against the region that its LocalKey names. fixed says that not even we may write
// the region. The core has checked the pieces of a slice that has many.
func CheckLocal(s *transport.Slice, addr uintptr, size uint64, fixed bool) errs.Code {
	switch {
	case s.Local < addr:
		return errs.AddressNotRegistered
	case s.Pieces == nil && !mem.Contains(size, uint64(s.Local-addr), s.Length):
		return errs.AddressNotRegistered
	case s.Op == transport.Read && fixed:
		return errs.PermissionDenied
	}
	return errs.OK
}

// InsideRemote reports whether the remote range of a slice, or each of its pieces, is inside a region of size bytes.
func InsideRemote(s *transport.Slice, size uint64) bool {
	p := s.Pieces
	if p == nil {
		return mem.Contains(size, s.Remote, s.Length)
	}
	for i := range s.Length / p.Bytes {
		if at := s.Remote + p.RemoteAt[uint64(s.First)+i]; at < s.Remote || !mem.Contains(size, at, p.Bytes) {
			return false
		}
	}
	return true
}

// Copy copies the parts of a slice between its local end and a remote region that begins at an address of this process.
// It returns OK; AddressNotRegistered and the side that lost its memory; or Corrupted when the slice is Checked and the
// CRC-32C sums of the two ends differ.
func Copy(s *transport.Slice, remote uintptr) (code errs.Code, side errs.Side) {
	EachPart(s, func(local uintptr, offset, n uint64) {
		if code != errs.OK {
			return
		}
		to, from := mem.Bytes(local, int(n)), mem.Bytes(remote+uintptr(offset), int(n))
		if s.Op == transport.Write {
			to, from = from, to
		}
		differs, fault := copyPart(to, from, s.Checked)
		switch {
		case fault != nil && fault.Addr-local < uintptr(n):
			code, side = errs.AddressNotRegistered, errs.SideLocal
		case fault != nil:
			code, side = errs.AddressNotRegistered, errs.SideRemote
		case differs:
			code, side = errs.Corrupted, errs.SidePath
		}
	})
	return code, side
}

func copyPart(to, from []byte, checked bool) (differs bool, fault *mem.Fault) {
	defer mem.Guard(&fault, debug.SetPanicOnFault(true))
	copy(to, from)
	return checked && crc32.Checksum(to, castagnoli) != crc32.Checksum(from, castagnoli), nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// EachPart calls f with the ranges of a slice, its pieces or the one that it has: local address, remote offset, bytes.
func EachPart(s *transport.Slice, f func(local uintptr, remote, bytes uint64)) {
	p := s.Pieces
	if p == nil {
		f(s.Local, s.Remote, s.Length)
		return
	}
	for i := uint64(s.First); i < uint64(s.First)+s.Length/p.Bytes; i++ {
		f(s.Local+uintptr(p.LocalAt[i]), s.Remote+p.RemoteAt[i], p.Bytes)
	}
}
