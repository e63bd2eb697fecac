//go:build amd64 && !race

package hazard

import "sync/atomic"

// clear64 stores 0 with release semantics: on amd64 a plain store, which is never ordered before earlier accesses. Go's
// atomic store is a locked exchange and costs as much as taking the slot.
//
//go:noescape
func clear64(word *atomic.Uint64)
