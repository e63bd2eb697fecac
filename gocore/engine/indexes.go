package engine

import (
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
)

// Indexes is a strided array of integers in foreign memory, as Python's buffers are: read in place, never kept.
type Indexes struct {
	Addr     uintptr
	Width    uint8 // bytes of an item: 1, 2, 4 or 8
	Unsigned bool
	Stride   int64 // bytes from item to item, may be negative

	owner []int64 // keeps a Go slice alive; nil for foreign memory
}

func (x *Indexes) check(what string, n int) *errs.Error {
	switch x.Width {
	case 1, 2, 4, 8:
	default:
		return errs.New(errs.InvalidArgument, what, "items of %d bytes are not integers of 1, 2, 4 or 8 bytes", x.Width)
	}
	if n > 0 && x.Addr == 0 {
		return errs.New(errs.InvalidArgument, what, "the address of the indexes is 0")
	}
	return nil
}

// at returns item i; ok is false when it is negative.
func (x *Indexes) at(i int) (value uint64, ok bool) {
	p := mem.Pointer(uintptr(int64(x.Addr) + int64(i)*x.Stride))
	switch x.Width {
	case 1:
		if x.Unsigned {
			return uint64(*(*uint8)(p)), true
		}
		return signed(int64(*(*int8)(p)))
	case 2:
		if x.Unsigned {
			return uint64(*(*uint16)(p)), true
		}
		return signed(int64(*(*int16)(p)))
	case 4:
		if x.Unsigned {
			return uint64(*(*uint32)(p)), true
		}
		return signed(int64(*(*int32)(p)))
	}
	if x.Unsigned {
		return *(*uint64)(p), true
	}
	return signed(*(*int64)(p))
}

// word returns item i as 64 bits; one that is negative is above every bound.
func (x *Indexes) word(i int) uint64 {
	value, _ := x.at(i)
	return value
}

// read copies the first items as words, each once: their memory is the caller's, and may change meanwhile.
func (x *Indexes) read(into []uint64) {
	if plain := x.plain(len(into)); plain != nil {
		copy(into, plain)
		return
	}
	for i := range into {
		into[i] = x.word(i)
	}
}

// plain returns n items as words where each has 64 bits and the next one is adjacent, else nil.
func (x *Indexes) plain(n int) []uint64 {
	if x.Width != 8 || x.Stride != 8 {
		return nil
	}
	return mem.Words(x.Addr, n)
}

func signed(v int64) (uint64, bool) { return uint64(v), v >= 0 }

// IndexesOf views a Go slice and keeps it alive.
func IndexesOf(values []int64) Indexes {
	if len(values) == 0 {
		return Indexes{Width: 8, Stride: 8}
	}
	return Indexes{Addr: mem.AddressOf(values), Width: 8, Stride: 8, owner: values}
}
