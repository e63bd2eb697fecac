package transporttest_test

import (
	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/transport"
)

// Heard takes every packet for a word of the peer's process.
func (m *mutant) Heard(transport.Rail) (signs transport.Signs) {
	if m.name == "speaks for a stopped peer" {
		signs.Spoke = clock.Now()
	}
	return signs
}
