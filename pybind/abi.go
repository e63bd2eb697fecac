// Code generated from gocore/request/schema by go generate; DO NOT EDIT.

package pybind

import (
	"unsafe"

	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/request"
)

// recordsAt views n packed requests at an address of the caller's memory.
func recordsAt(address uint64, n int) []request.Record {
	return unsafe.Slice((*request.Record)(mem.Pointer(uintptr(address))), n)
}

// packedAt views packed terms.
func packedAt(address uint64) *request.Packed {
	return (*request.Packed)(mem.Pointer(uintptr(address)))
}

// packedNoteAt views a notification.
func packedNoteAt(address uint64) *request.PackedNote {
	return (*request.PackedNote)(mem.Pointer(uintptr(address)))
}

// stridedWords are a sequence of integers in Python's memory. Code is the size of an item, plus 16 if the items
// are unsigned.
type stridedWords struct {
	Address uint64
	Code    uint64
	Stride  uint64
}

// stridedAt views n sequences at an address of Python's memory.
func stridedAt(address uint64, n int) []stridedWords {
	return unsafe.Slice((*stridedWords)(mem.Pointer(uintptr(address))), n)
}

// pagesBlock is the argument block of Pages.
type pagesBlock struct {
	request.Packed
	Builder    uint64
	LocalGrid  uint64
	RemoteGrid uint64
	N          uint64
	Src        stridedWords
	Dst        stridedWords
	Note       uint64
}

// pagesBlockAt views the block at an address of Python's memory.
func pagesBlockAt(address uint64) *pagesBlock {
	return (*pagesBlock)(mem.Pointer(uintptr(address)))
}

// rangesBlock is the argument block of Ranges.
type rangesBlock struct {
	request.Packed
	Builder       uint64
	Local         uint64
	LocalBytes    uint64
	TargetID      uint64
	TargetRegion  uint64
	TargetOffset  uint64
	RemoteBytes   uint64
	N             uint64
	LocalOffsets  stridedWords
	RemoteOffsets stridedWords
	Lengths       stridedWords
	Note          uint64
}

// rangesBlockAt views the block at an address of Python's memory.
func rangesBlockAt(address uint64) *rangesBlock {
	return (*rangesBlock)(mem.Pointer(uintptr(address)))
}
