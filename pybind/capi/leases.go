package main

/*
#include "tent/transfer_engine.h"
#include "last_error.h"
*/
import "C"

import (
	"encoding/json"
	"fmt"
	"unsafe"

	"github.com/tent-engine/tent/pybind"
)

// holding returns the smallest registered range of an engine that holds another one, and its region.
func holding(engine int64, at, size uint64) (span, uint64, error) {
	regions.Lock()
	defer regions.Unlock()
	var best span
	var region uint64
	for s, o := range regions.bySpan {
		if s.engine == engine && at >= s.address && at-s.address <= s.size && size <= s.size-(at-s.address) &&
			(region == 0 || s.size < best.size) {
			best, region = s, o.region
		}
	}
	if region == 0 {
		return best, 0, fmt.Errorf("ADDRESS_NOT_REGISTERED: no registered range holds %d bytes at %#x", size, at)
	}
	return best, region, nil
}

//export tent_share_memory
func tent_share_memory(engine C.tent_engine_t, addr unsafe.Pointer, size C.size_t, permission C.int, peers *C.char,
	expiresMs C.int64_t, lease *C.tent_lease_t) C.int {
	if lease == nil {
		return wrong("lease is NULL")
	}
	s, region, err := holding(number(engine), address(addr), uint64(size))
	if err != nil {
		return failed(err)
	}
	id, err := pybind.ShareRegion(s.engine, region, address(addr)-s.address, uint64(size), "", int64(permission),
		patterns(peers), int64(expiresMs))
	if err != nil {
		return failed(err)
	}
	*lease = C.tent_lease_t(id)
	return 0
}

//export tent_lease_token
func tent_lease_token(engine C.tent_engine_t, lease C.tent_lease_t, buf *C.char, length C.size_t) C.int {
	token, err := pybind.LeaseToken(number(engine), uint64(lease))
	if err != nil {
		return failed(err)
	}
	return put(token, buf, length)
}

//export tent_renew_lease
func tent_renew_lease(engine C.tent_engine_t, lease C.tent_lease_t, expiresMs C.int64_t) C.int {
	_, err := pybind.RenewLease(number(engine), uint64(lease), int64(expiresMs))
	return done(err)
}

//export tent_close_lease
func tent_close_lease(engine C.tent_engine_t, lease C.tent_lease_t) C.int {
	_, err := pybind.CloseRegion(number(engine), uint64(lease), closeMs)
	return done(err)
}

//export tent_find_lease
func tent_find_lease(engine C.tent_engine_t, handle C.tent_segment_id_t, token *C.char,
	found *C.struct_tent_buffer_info) C.int {
	if found == nil {
		return wrong("found is NULL")
	}
	text, err := pybind.FindLease(number(engine), int64(handle), read(token), openMs)
	if err != nil {
		return failed(err)
	}
	var r struct {
		Address  uint64 `json:"address"`
		Size     uint64 `json:"size"`
		Location string `json:"location"`
	}
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return failed(err)
	}
	found.base, found.length = C.uint64_t(r.Address), C.uint64_t(r.Size)
	fill(found.location[:], []byte(r.Location))
	return 0
}
