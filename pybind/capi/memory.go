package main

/*
#include "include/tent/transfer_engine.h"
#include "last_error.h"
*/
import "C"

import (
	"fmt"
	"sync"
	"unsafe"

	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/pybind"
)

// span is a range of memory of one engine.
type span struct {
	engine        int64
	address, size uint64
}

// owned is a range that C has registered or allocated. Memory of tent_allocate_memory is registered from the beginning,
// and may be unregistered and registered again like the program's.
type owned struct {
	region uint64 // 0: peers do not reach the range
	memory uint64 // the region of its allocation, 0: the program's own memory
	rights rights // of region
}

// is reports whether the range is allocated, or else whether it is registered.
func (o owned) is(allocated bool) bool {
	return allocated && o.memory != 0 || !allocated && o.region != 0
}

// rights are the terms of a registration that a second one of the same range must not widen or narrow unseen.
type rights struct {
	permission int64
	growable   bool
	peers      string // as pybind.Register takes them
}

// regions are known to C by their addresses. One thread at a time begins or ends a range; others wait for it, without a
// lock that other ranges need. So a range that two threads register has one region, and one record.
var regions = struct {
	sync.Mutex
	bySpan map[span]owned
	taken  map[span]chan struct{} // closed when the thread that begins or ends the range is done
}{bySpan: map[span]owned{}, taken: map[span]chan struct{}{}}

// alone calls use while no other thread begins or ends the range.
func (s span) alone(use func() error) error {
	mine := make(chan struct{})
	for {
		regions.Lock()
		theirs, taken := regions.taken[s]
		if !taken {
			break
		}
		regions.Unlock()
		<-theirs
	}
	regions.taken[s] = mine
	regions.Unlock()
	defer func() {
		regions.Lock()
		delete(regions.taken, s)
		regions.Unlock()
		close(mine)
	}()
	return use()
}

func remember(s span, o owned) {
	regions.Lock()
	regions.bySpan[s] = o
	regions.Unlock()
}

// forget drops the records of a destroyed engine, but for its memory, which tent_free_memory takes.
func forget(engine int64) {
	regions.Lock()
	for s, o := range regions.bySpan {
		switch {
		case s.engine != engine:
		case o.memory == 0:
			delete(regions.bySpan, s)
		default:
			regions.bySpan[s] = owned{memory: o.memory}
		}
	}
	regions.Unlock()
	rooms.Lock()
	for b := range rooms.of {
		if b.engine == engine {
			delete(rooms.of, b)
		}
	}
	rooms.Unlock()
}

// lookUp returns a range and its regions; size 0 goes by the address alone, where one range begins. Of registered ones
// the program's own come first: an allocation and a part of it that is registered besides may begin together.
func lookUp(engine int64, at, size uint64, allocated bool) (span, owned, error) {
	return lookUpBut(nil, engine, at, size, allocated)
}

// lookUpBut leaves out ranges that were found before.
func lookUpBut(found map[span]bool, engine int64, at, size uint64, allocated bool) (span, owned, error) {
	regions.Lock()
	defer regions.Unlock()
	var fits, allocations []span
	for s, o := range regions.bySpan {
		switch {
		case s.engine != engine || s.address != at || size != 0 && s.size != size || !o.is(allocated) || found[s]:
		case o.memory != 0:
			allocations = append(allocations, s)
		default:
			fits = append(fits, s)
		}
	}
	if len(fits) == 0 {
		fits = allocations
	}
	switch len(fits) {
	case 0:
		return span{}, owned{}, notRegistered(at, allocated)
	case 1:
		return fits[0], regions.bySpan[fits[0]], nil
	}
	return span{}, owned{}, fmt.Errorf("INVALID_ARGUMENT: %d registered ranges begin at %#x: name the size", len(fits),
		at)
}

func notRegistered(at uint64, allocated bool) error {
	how := "tent_register_memory"
	if allocated {
		how = "tent_allocate_memory"
	}
	return fmt.Errorf("ADDRESS_NOT_REGISTERED: %#x is not an address of %s", at, how)
}

// end calls use with the record of a range. If that was no error, memory of an allocation is still allocated where it
// was registered, and other records go.
func end(engine int64, at, size uint64, allocated bool, use func(owned) error) error {
	s, _, err := lookUp(engine, at, size, allocated)
	if err != nil {
		return err
	}
	return s.alone(func() error {
		_, o, err := lookUp(engine, s.address, s.size, allocated) // another thread may have ended it meanwhile
		if err != nil {
			return err
		}
		if err := use(o); err != nil {
			return err
		}
		regions.Lock()
		if o.memory != 0 && !allocated {
			regions.bySpan[s] = owned{memory: o.memory}
		} else {
			delete(regions.bySpan, s)
		}
		regions.Unlock()
		return nil
	})
}

func (s span) known() owned {
	regions.Lock()
	defer regions.Unlock()
	return regions.bySpan[s]
}

// options reads C's options, or returns the defaults for NULL.
func options(o *C.tent_memory_options_t) (location string, permission int64) {
	if o == nil {
		return "*", int64(C.PERM_GLOBAL_READ_WRITE)
	}
	location = C.GoStringN(&o.location[0], C.int(textLength(o.location[:])))
	if location == "" {
		location = "*"
	}
	return location, int64(o.permission)
}

// textLength is where a text of C ends, at the latest where its array does.
func textLength(text []C.char) int {
	for i, c := range text {
		if c == 0 {
			return i
		}
	}
	return len(text)
}

func allocate(engine C.tent_engine_t, addr *unsafe.Pointer, size C.size_t, location string, permission int64) C.int {
	if addr == nil {
		return wrong("addr is NULL")
	}
	made, err := parsed[struct{ ID, Address, Size uint64 }](pybind.Allocate(number(engine), uint64(size), "", location,
		permission, false, false, ""))
	if err != nil {
		return failed(err)
	}
	remember(span{number(engine), made.Address, made.Size},
		owned{region: made.ID, memory: made.ID, rights: rights{permission: permission}})
	*addr = C.tent_handle(C.uintptr_t(made.Address))
	return 0
}

//export go_allocate_memory
func go_allocate_memory(engine C.tent_engine_t, addr *unsafe.Pointer, size C.size_t, location *C.char) C.int {
	where := read(location)
	if where == "" {
		where = "*"
	}
	return allocate(engine, addr, size, where, int64(C.PERM_GLOBAL_READ_WRITE))
}

//export go_allocate_memory_ex
func go_allocate_memory_ex(engine C.tent_engine_t, addr *unsafe.Pointer, size C.size_t,
	opts *C.tent_memory_options_t) C.int {
	location, permission := options(opts)
	return allocate(engine, addr, size, location, permission)
}

//export go_free_memory
func go_free_memory(engine C.tent_engine_t, addr unsafe.Pointer) C.int {
	id := number(engine)
	return done(end(id, address(addr), 0, true, func(o owned) error {
		if o.region != 0 && o.region != o.memory { // it was registered anew
			if err := closeRegion(id, address(addr), o.region); err != nil {
				return err
			}
		}
		_, err := pybind.EndMemory(id, o.memory, closeMs) // an error: a peer is still inside, and the memory stays
		return err
	}))
}

// register registers a range; fresh says whether it is new. One that is known stays as it is, with these rights.
func (s span) register(location string, r rights) (fresh bool, _ error) {
	err := s.alone(func() error {
		before := s.known()
		if before.region != 0 {
			if before.rights != r {
				return fmt.Errorf("INVALID_ARGUMENT: %d bytes at %#x are registered already, with another permission "+
					"or for other peers, or growable and not: unregister them first", s.size, s.address)
			}
			return nil
		}
		region, err := pybind.Register(s.engine, s.address, s.size, false, r.growable, "", location, r.permission,
			r.peers)
		if err == nil {
			remember(s, owned{region: region, memory: before.memory, rights: r})
			fresh = true
		}
		return err
	})
	return fresh, err
}

func register(engine C.tent_engine_t, addr unsafe.Pointer, size C.size_t, location string, r rights) C.int {
	_, err := span{number(engine), address(addr), uint64(size)}.register(location, r)
	return done(err)
}

func unregister(engine int64, at, size uint64) error {
	return end(engine, at, size, false, func(o owned) error { return closeRegion(engine, at, o.region) })
}

func closeRegion(engine int64, at, region uint64) error {
	lingers, err := pybind.CloseRegion(engine, region, closeMs)
	if err == nil && lingers != 0 {
		err = fmt.Errorf("TIMEOUT: a driver or the kernel may still use the memory at %#x, for a transfer that "+
			"ended dirty: leave it as it is, and call again later", at)
	}
	return err
}

// unregisterAll ends several ranges. None is ended where one is unknown, or given once too often; one that is late
// keeps no other one registered.
func unregisterAll(leaving []span) error {
	found := make(map[span]bool, len(leaving))
	for i, s := range leaving {
		known, _, err := lookUpBut(found, s.engine, s.address, s.size, false)
		if err != nil {
			return err
		}
		leaving[i], found[known] = known, true
	}
	var first error
	for _, s := range leaving {
		if err := unregister(s.engine, s.address, s.size); err != nil && first == nil {
			first = err
		}
	}
	return first
}

//export go_register_memory
func go_register_memory(engine C.tent_engine_t, addr unsafe.Pointer, size C.size_t) C.int {
	return register(engine, addr, size, "*", rights{permission: int64(C.PERM_GLOBAL_READ_WRITE)})
}

//export go_register_memory_with_perm
func go_register_memory_with_perm(engine C.tent_engine_t, addr unsafe.Pointer, size C.size_t,
	permission C.int) C.int {
	return register(engine, addr, size, "*", rights{permission: int64(permission)})
}

//export go_register_memory_ex
func go_register_memory_ex(engine C.tent_engine_t, addr unsafe.Pointer, size C.size_t,
	opts *C.tent_memory_options_t) C.int {
	location, permission := options(opts)
	return register(engine, addr, size, location, rights{permission: permission})
}

//export go_register_growable_memory
func go_register_growable_memory(engine C.tent_engine_t, addr unsafe.Pointer, size C.size_t,
	opts *C.tent_memory_options_t) C.int {
	location, permission := options(opts)
	return register(engine, addr, size, location, rights{permission: permission, growable: true})
}

//export go_unregister_memory
func go_unregister_memory(engine C.tent_engine_t, addr unsafe.Pointer, size C.size_t) C.int {
	return done(unregister(number(engine), address(addr), uint64(size)))
}

//export go_remap_memory
func go_remap_memory(engine C.tent_engine_t, addr unsafe.Pointer, offset, length C.size_t) C.int {
	id := number(engine)
	ranges := beginning(id, address(addr), uint64(offset), uint64(length))
	if len(ranges) == 0 {
		return failed(notRegistered(address(addr), false))
	}
	for _, region := range ranges {
		if _, err := pybind.RemapRegion(id, region, uint64(offset), uint64(length), closeMs); err != nil {
			return failed(err)
		}
	}
	return 0
}

// beginning returns the regions of all registered ranges that begin at an address and have bytes at an offset. Where
// none has, it returns one for the error.
func beginning(engine int64, at, offset, length uint64) (list []uint64) {
	regions.Lock()
	defer regions.Unlock()
	var short []uint64
	for s, o := range regions.bySpan {
		switch {
		case s.engine != engine || s.address != at || o.memory != 0:
		case mem.Contains(s.size, offset, length):
			list = append(list, o.region)
		default:
			short = []uint64{o.region}
		}
	}
	if len(list) == 0 {
		return short
	}
	return list
}

// registerAll registers several ranges, all or none.
func registerAll(engine int64, addrs *unsafe.Pointer, sizes *C.size_t, count C.size_t, location string,
	permission int64) error {
	if count == 0 || count > requestsMost || addrs == nil || sizes == nil {
		return fmt.Errorf("INVALID_ARGUMENT: %d ranges at %p and %p: from 1 to %d are taken", uint64(count), addrs,
			sizes, requestsMost)
	}
	at, length := unsafe.Slice(addrs, int(count)), unsafe.Slice(sizes, int(count))
	var fresh []span
	for i := range at {
		s := span{engine, address(at[i]), uint64(length[i])}
		made, err := s.register(location, rights{permission: permission})
		if err != nil {
			for _, s := range fresh {
				_ = unregister(engine, s.address, s.size)
			}
			return err
		}
		if made {
			fresh = append(fresh, s)
		}
	}
	return nil
}

//export go_register_memory_batch
func go_register_memory_batch(engine C.tent_engine_t, addrs *unsafe.Pointer, sizes *C.size_t, count C.size_t,
	permission C.int) C.int {
	return done(registerAll(number(engine), addrs, sizes, count, "*", int64(permission)))
}

//export go_register_memory_batch_ex
func go_register_memory_batch_ex(engine C.tent_engine_t, addrs *unsafe.Pointer, sizes *C.size_t, count C.size_t,
	opts *C.tent_memory_options_t) C.int {
	location, permission := options(opts)
	return done(registerAll(number(engine), addrs, sizes, count, location, permission))
}

//export go_unregister_memory_batch
func go_unregister_memory_batch(engine C.tent_engine_t, addrs *unsafe.Pointer, sizes *C.size_t,
	count C.size_t) C.int {
	if count == 0 || count > requestsMost || addrs == nil {
		return wrong("%d ranges at %p: from 1 to %d are taken", uint64(count), addrs, requestsMost)
	}
	leaving := make([]span, int(count))
	for i, addr := range unsafe.Slice(addrs, int(count)) {
		leaving[i] = span{number(engine), address(addr), 0}
		if sizes != nil {
			leaving[i].size = uint64(unsafe.Slice(sizes, int(count))[i])
		}
	}
	return done(unregisterAll(leaving))
}
