package main

/*
#include "include/tent/transfer_engine.h"
#include "last_error.h"
*/
import "C"

import "github.com/tent-engine/tent/pybind"

//export go_wait_on
func go_wait_on(engine C.tent_engine_t, batch C.tent_batch_id_t, stream C.uint64_t, word *C.uint64_t) C.int {
	if stream == 0 {
		return wrong("stream 0 is none: the driver's default stream is CU_STREAM_LEGACY, 1")
	}
	at, err := pybind.HoldStream(number(engine), uint64(batch), uint64(stream))
	if err != nil {
		return failed(err)
	}
	if word != nil {
		*word = C.uint64_t(at)
	}
	return 0
}
