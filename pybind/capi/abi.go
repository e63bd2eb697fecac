// Code generated from gocore/request/schema by go generate; DO NOT EDIT.

package main

/*
#include "include/tent/transfer_engine.h"
*/
import "C"

import (
	"cmp"

	"github.com/tent-engine/tent/gocore/request"
)

// record packs a request of C; own are its own terms, all those of the whole call.
func record(r *C.tent_request_t, own *C.tent_request_terms_t, all *C.tent_submit_options_t) request.Record {
	return request.Record{
		Source:       address(r.source),
		TargetID:     uint64(r.target_id),
		TargetOffset: uint64(r.target_offset),
		Length:       uint64(r.length),
		Packed: request.Packed{
			Opcode:        uint64(r.opcode),
			Priority:      uint64(r.priority),
			TransportHint: uint64(r.transport_hint),
			PolicyName:    nameID(cmp.Or(own.policy_name, all.policy_name)),
			DeadlineNs:    uint64(cmp.Or(own.deadline_ns, all.deadline_ns)),
			IntentType:    uint64(cmp.Or(own.intent_type, all.intent_type)),
			Integrity:     uint64(cmp.Or(own.integrity, all.integrity)),
			Durability:    uint64(cmp.Or(own.durability, all.durability)),
			Require:       uint64(cmp.Or(own.require, all.require)),
			Stream:        uint64(cmp.Or(own.stream, all.stream)),
		},
	}
}
