package engine

import (
	"sync"

	"github.com/tent-engine/tent/gocore/control"
	"github.com/tent-engine/tent/gocore/segment"
)

// rights name a set of peers that see the same regions.
type rights string

// allRights is the only set there is: every peer that is admitted.
const allRights rights = "all"

// offers holds the answers to peers that ask for our regions, each encoded once. Many peers ask at once, and again and
// again, and an answer of thousands of regions takes milliseconds to make.
type offers struct {
	mu     sync.Mutex
	epoch  uint64
	fences uint64
	made   map[rights]*control.Offer // of that epoch, with that number of fences
}

// offer returns the offer to peers of some rights, nil when they know it, by the epoch of theirs.
func (e *Engine) offer(to rights, known uint64) *control.Offer {
	if known != 0 && known == e.describedEpoch() {
		return nil
	}
	o := &e.offers
	o.mu.Lock()
	defer o.mu.Unlock()
	if made := o.made[to]; made != nil && o.epoch == e.describedEpoch() && o.fences == e.fences.Load() {
		return made
	}
	d := e.description(false)
	if fences := uint64(d.Fences); d.Epoch != o.epoch || fences != o.fences || o.made == nil {
		o.epoch, o.fences, o.made = d.Epoch, fences, map[rights]*control.Offer{}
	}
	made := &control.Offer{Encoded: segment.Encode(d, true), Transports: d.Transports}
	o.made[to] = made
	return made
}

// describedEpoch is the epoch of a description that is made now; 0 is none's.
func (e *Engine) describedEpoch() uint64 { return e.regions.epoch.Load() + 1 }
