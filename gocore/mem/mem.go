// Package mem is the vocabulary of memory: regions, their places and the rights to them.
//
// Addresses of memory that Go does not own stay uintptr everywhere: stored as unsafe.Pointer, a freed and re-used
// address would become a bad pointer for the garbage collector. Bytes converts at the point of use.
package mem

import (
	"fmt"
	"strconv"
	"strings"
	"unsafe"
)

// Kind is a kind of memory: a processor or a transport can touch it or cannot.
type Kind uint8

// Kinds of memory.
const (
	Host Kind = iota
	Cuda
	Rocm
	Npu
	Tpu
	File
	kindCount
)

// KindCount is the number of kinds, for tables indexed by Kind.
const KindCount = int(kindCount)

var kindNames = [...]string{"cpu", "cuda", "rocm", "npu", "tpu", "file"}

func (k Kind) String() string { return kindNames[k] }

// Location is "cpu:0", "cuda:1", "npu:0", "file", or "*" for "find out".
type Location string

// Wildcard asks tent to find the location of a buffer itself.
const Wildcard Location = "*"

// Parse checks a location and returns its kind and index. The wildcard is host memory of an unknown node, index -1.
func (l Location) Parse() (Kind, int, error) {
	if l == Wildcard || l == "" {
		return Host, -1, nil
	}
	name, number, indexed := strings.Cut(string(l), ":")
	for k, s := range kindNames {
		if s != name {
			continue
		}
		if !indexed {
			return Kind(k), -1, nil
		}
		if n, err := strconv.Atoi(number); err == nil && n >= 0 && n < 1<<16 {
			return Kind(k), n, nil
		}
	}
	return Host, 0, fmt.Errorf(`location %q is not "*", "cpu:N", "cuda:N", "rocm:N", "npu:N", "tpu:N" or "file"`,
		string(l))
}

// Permission is the right of peers to a region, with upstream's numbers.
type Permission uint8

// Permissions.
const (
	LocalReadWrite  Permission = 0 // peers: nothing
	GlobalReadOnly  Permission = 1 // peers: READ
	GlobalReadWrite Permission = 2 // peers: READ and WRITE
)

func (p Permission) String() string {
	return [...]string{"LocalReadWrite", "GlobalReadOnly", "GlobalReadWrite"}[p%3]
}

// Allows reports whether a peer may carry out an operation that writes to the region, or only reads.
func (p Permission) Allows(write bool) bool {
	return p == GlobalReadWrite || (p == GlobalReadOnly && !write)
}

// Peers are the names of peers that may use a region (transport.Peer.Names). It is immutable: a rule is known by its
// address.
type Peers struct{ Admit func(names string) bool }

// RegionID names a registered region of one engine: slot and generation, never 0 and never used twice.
type RegionID uint64

// Region is a registered memory range. It is a value; the code that registered it keeps the memory alive.
type Region struct {
	ID         RegionID
	Name       string // "" if unnamed
	Addr       uintptr
	Size       uint64
	Kind       Kind
	Location   Location
	Permission Permission // of peers
	Peers      *Peers     // to which it is given; nil: to all
	ReadOnly   bool       // the buffer itself must not be written, not even locally
	Growable   bool       // pages may be missing from it, and come with a remap
	Fd         int        // memfd or file behind it, -1 if there is none
	FdOffset   uint64
	Device     Device   // that has the memory; zero for memory of the host
	DMABuf     *DMABuf  // of memory of a device, nil if there is none
	Landing    *Landing // of memory of a device, nil: it sees bytes of a NIC at once
}

// IsRange reports whether the region has bytes, at an address, and ends within the address space.
func (r *Region) IsRange() bool { return r.Addr != 0 && r.Size != 0 && uint64(r.Addr)+r.Size >= r.Size }

// Landing is the way of bytes that a NIC has placed in memory of a device, to the device itself.
type Landing struct {
	// Flush waits until all bytes that are placed are visible to the device. Any goroutine may call it, without locks:
	// it asks the driver, and takes microseconds. It is nil where there is no such call.
	Flush func() error
	Why   error // there is none, so no NIC may write there
}

// Device names a device in words that every process of a machine understands. Ordinals differ between processes:
// cuda:1 of one may be cuda:0 for another that sees fewer devices.
type Device struct {
	UUID [16]byte // zero if it has none
	PCI  string   // "0000:3b:00.0", "" if it has none
	// Allocation names the allocation that a range is part of, 0 if the platform does not. Another one at the same
	// address has another name.
	Allocation uint64
}

// DMABuf is memory of a device as a descriptor that other drivers can import, a NIC's for example.
type DMABuf struct {
	Fd     int
	Offset uint64 // of the range's first byte
}

// Contains reports whether [offset, offset+length) lies inside a region of size bytes, without overflow.
func Contains(size, offset, length uint64) bool { return offset <= size && length <= size-offset }

// Bytes views n bytes at a foreign address. The caller guarantees that they are mapped for as long as the view is used.
func Bytes(addr uintptr, n int) []byte {
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&addr))), n)
}

// Pointer converts a foreign address at the point of use.
func Pointer(addr uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }

// AddressOf returns where the items of a Go slice are. The caller keeps the slice alive for as long as the address is
// used. The items do not move meanwhile: the collector moves nothing, and they are not on a stack, which moves when it
// grows.
func AddressOf[T any](items []T) uintptr {
	at := unsafe.Pointer(unsafe.SliceData(items))
	if onHeap.never {
		onHeap.at = at
	}
	return uintptr(at)
}

// onHeap keeps the compiler from placing the items of AddressOf on a stack: for all that it sees, they are kept here.
var onHeap struct {
	never bool
	at    unsafe.Pointer
}

// Words views n 64-bit words at a foreign address, under the same conditions as Bytes.
func Words(addr uintptr, n int) []uint64 { return unsafe.Slice((*uint64)(Pointer(addr)), n) }
