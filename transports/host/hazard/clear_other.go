//go:build !amd64 || race

package hazard

import "sync/atomic"

// clear64 stores 0 with release semantics. The race detector must see it, or it takes the owner's accesses after its
// wait for a race with the copy.
func clear64(word *atomic.Uint64) { word.Store(0) }
