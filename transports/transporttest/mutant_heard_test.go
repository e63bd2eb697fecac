package transporttest_test

import (
	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/transport"
)

// speaker is a mutant that says what it heard of a rail, about slices to peers that are stopped.
type speaker struct{ *mutant }

// Heard takes every packet for a word of the peer's process. The sound one has heard nothing.
func (m speaker) Heard(transport.Rail) (signs transport.Signs) {
	if m.name == "speaks for a stopped peer" {
		signs.Spoke = clock.Now()
	}
	return signs
}
