package main

/*
#include "include/tent/transfer_engine.h"
#include "last_error.h"
*/
import "C"

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"unsafe"

	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/pybind"
)

// rangesMost bounds the ranges of one call, before those that follow one another become one.
const rangesMost = 1 << 20

// around returns the smallest registered memory of an engine that has a range in it, and the start of that memory. Of
// two that are equally small it is the one that begins first.
func around(engine int64, at, size uint64) (region, start uint64, err error) {
	regions.Lock()
	defer regions.Unlock()
	var best span
	for s, o := range regions.bySpan {
		if s.engine == engine && o.region != 0 && at >= s.address && mem.Contains(s.size, at-s.address, size) &&
			(region == 0 || cmp.Or(cmp.Compare(s.size, best.size), cmp.Compare(s.address, best.address)) < 0) {
			region, best = o.region, s
		}
	}
	if region == 0 {
		return 0, 0, fmt.Errorf("ADDRESS_NOT_REGISTERED: %d bytes at %#x are not inside memory of "+
			"tent_register_memory or tent_allocate_memory", size, at)
	}
	return region, best.address, nil
}

// aroundAll returns the same for all of several ranges.
func aroundAll(engine int64, ranges []C.tent_range_t) (region, start uint64, err error) {
	first, last := uint64(math.MaxUint64), uint64(0)
	for _, r := range ranges {
		at, size := address(r.addr), uint64(r.size)
		first, last = min(first, at), max(last, at+min(size, math.MaxUint64-at))
	}
	region, start, err = around(engine, first, last-first)
	if err == nil {
		return region, start, nil
	}
	for _, r := range ranges {
		if _, _, err := around(engine, address(r.addr), uint64(r.size)); err != nil {
			return 0, 0, err
		}
	}
	return 0, 0, errors.New("INVALID_ARGUMENT: the ranges are not in one piece of memory, as those of a lease are")
}

// isMemory reports whether a number is that of registered memory, which is no lease.
func isMemory(engine int64, region uint64) bool {
	regions.Lock()
	defer regions.Unlock()
	for s, o := range regions.bySpan {
		if s.engine == engine && (o.region == region || o.memory == region) {
			return true
		}
	}
	return false
}

//export go_share_memory
func go_share_memory(engine C.tent_engine_t, addr unsafe.Pointer, size C.size_t, opts *C.tent_lease_options_t,
	lease *C.tent_lease_t) C.int {
	return go_share_ranges(engine, &C.tent_range_t{addr: addr, size: size}, 1, opts, lease)
}

//export go_share_ranges
func go_share_ranges(engine C.tent_engine_t, ranges *C.tent_range_t, count C.size_t, opts *C.tent_lease_options_t,
	lease *C.tent_lease_t) C.int {
	if lease == nil {
		return wrong("lease is NULL")
	}
	if opts == nil {
		opts = &C.tent_lease_options_t{}
	}
	if ranges == nil || count == 0 || count > rangesMost {
		return wrong("a lease has 1 to %d ranges, not %d", rangesMost, count)
	}
	given := unsafe.Slice(ranges, count)
	region, start, err := aroundAll(number(engine), given)
	if err != nil {
		return failed(err)
	}
	pairs := make([][2]uint64, count)
	for i, r := range given {
		pairs[i] = [2]uint64{address(r.addr) - start, uint64(r.size)}
	}
	list, err := json.Marshal(pairs)
	if err != nil {
		return failed(err)
	}
	made, err := parsed[struct{ Lease uint64 }](pybind.ShareRegion(number(engine), region, string(list),
		read(opts.name), int64(opts.permission), patterns(opts.peers), int64(opts.expires_ms)))
	if err != nil {
		return failed(err)
	}
	*lease = C.tent_lease_t(made.Lease)
	return 0
}

//export go_lease_token
func go_lease_token(engine C.tent_engine_t, lease C.tent_lease_t, buf *C.char, length C.size_t) C.int {
	token, err := pybind.LeaseToken(number(engine), uint64(lease))
	if err != nil {
		return failed(err)
	}
	return put(token, buf, length)
}

//export go_renew_lease
func go_renew_lease(engine C.tent_engine_t, lease C.tent_lease_t, expiresMs C.int64_t) C.int {
	_, err := pybind.RenewLease(number(engine), uint64(lease), int64(expiresMs))
	return done(err)
}

//export go_close_lease
func go_close_lease(engine C.tent_engine_t, lease C.tent_lease_t) C.int {
	if isMemory(number(engine), uint64(lease)) {
		return wrong("%d is the number of memory and of no lease", uint64(lease))
	}
	_, err := pybind.CloseRegion(number(engine), uint64(lease), closeMs)
	return done(err)
}

//export go_open_lease
func go_open_lease(engine C.tent_engine_t, handle *C.tent_segment_id_t, peer C.tent_segment_id_t, token *C.char,
	size *C.uint64_t) C.int {
	if handle == nil {
		return wrong("handle is NULL")
	}
	opened, err := parsed[struct {
		Segment int64
		Size    uint64
	}](pybind.OpenLease(number(engine), int64(peer), read(token), openMs))
	if err != nil {
		return failed(err)
	}
	*handle = C.tent_segment_id_t(opened.Segment)
	if size != nil {
		*size = C.uint64_t(opened.Size)
	}
	return 0
}
