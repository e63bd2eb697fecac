package engine

import (
	"sync"

	"github.com/tent-engine/tent/gocore/control"
	"github.com/tent-engine/tent/gocore/segment"
)

// offersMax bounds the answers that are kept. Most peers know the description before the newest one, or none, and have
// the rights of many others.
const offersMax = 16

// offered says to which question an answer was made.
type offered struct {
	to    rights
	since uint64 // the epoch that the peer knows, 0 for an answer with all regions
}

// offers holds the answers to peers that ask for our regions, each encoded once. Many peers ask at once, and again and
// again, and an answer of thousands of regions takes milliseconds to make.
type offers struct {
	mu     sync.Mutex
	epoch  uint64
	fences uint64
	made   map[offered]*control.Offer // of that epoch, with that number of fences
}

// offerTo returns the offer to a peer. It asks again for the peer's rights where a rule came meanwhile: a region of it
// might be missing in a description although its epoch says that it is there.
func (e *Engine) offerTo(names string, known uint64, update bool) *control.Offer {
	for {
		n := e.rules.count()
		made := e.offer(e.rules.rightsOf(names), known, update)
		if e.rules.count() == n {
			return made
		}
	}
}

// offer returns the offer to peers of some rights, nil when they know it, by the epoch of theirs. With update, it lists
// the changes alone where that is shorter.
func (e *Engine) offer(to rights, known uint64, update bool) *control.Offer {
	epoch := e.describedEpoch()
	if known != 0 && known == epoch {
		return nil
	}
	o := &e.offers
	o.mu.Lock()
	defer o.mu.Unlock()
	if fences := e.fences.Load(); o.made == nil || o.epoch != epoch || o.fences != fences {
		o.epoch, o.fences, o.made = epoch, fences, make(map[offered]*control.Offer)
	}
	if known != 0 && update {
		question := offered{to, known}
		if made := o.made[question]; made != nil {
			return made
		}
		if made := e.update(to, known); made != nil {
			o.keep(question, made, epoch)
			return made
		}
	}
	question := offered{to, 0}
	if made := o.made[question]; made != nil {
		return made
	}
	d := e.description(to.sees)
	made := offerOf(d)
	o.keep(question, made, d.Epoch)
	return made
}

// keep keeps an answer for other peers. One that a change has overtaken is newer than those that are kept.
func (o *offers) keep(question offered, made *control.Offer, epoch uint64) {
	if epoch != o.epoch {
		return
	}
	for other := range o.made {
		if len(o.made) < offersMax {
			break
		}
		if other.since != 0 || question.since == 0 {
			delete(o.made, other)
		}
	}
	if len(o.made) < offersMax {
		o.made[question] = made
	}
}

// update returns the changes since an epoch for peers of some rights, nil where all regions have to be listed.
func (e *Engine) update(to rights, known uint64) *control.Offer {
	open, closed, steps, complete := e.regions.since(known - 1)
	if !complete {
		return nil
	}
	d := e.describeSelf(steps + 1)
	for _, r := range open {
		if to.sees(r) {
			d.Regions = append(d.Regions, describe(r))
		}
	}
	e.seal(d)
	made := offerOf(d)
	made.Since, made.Closed = known, closed
	return made
}

// offerOf returns the offer of all regions of a sealed description.
func offerOf(d *segment.Description) *control.Offer {
	made := &control.Offer{Encoded: segment.Encode(d, true), Transports: d.Transports}
	for i := range d.Regions {
		made.Registered = append(made.Registered, d.Regions[i].Registered)
	}
	return made
}

// describedEpoch is the epoch of a description that is made now; 0 is none's.
func (e *Engine) describedEpoch() uint64 { return e.regions.epoch.Load() + 1 }
