package engine

import (
	"sync"

	"github.com/tent-engine/tent/gocore/control"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/segment"
	"github.com/tent-engine/tent/gocore/transport"
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
		n := e.rules.arrivals()
		made := e.offer(e.rules.rightsOf(names), known, update)
		if e.rules.arrivals() == n {
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

// description lists the open regions of which listed returns true.
func (e *Engine) description(listed func(*region) bool) *segment.Description {
	d := e.describeSelf(e.describedEpoch()) // read before the regions: a change meanwhile is of the next one
	for _, r := range e.regions.offered() {
		if listed(r) {
			d.Regions = append(d.Regions, describe(r))
		}
	}
	e.seal(d)
	return d
}

// describeSelf describes the engine without regions.
func (e *Engine) describeSelf(epoch uint64) *segment.Description {
	self := e.Self()
	d := &segment.Description{Address: self.Address, Name: self.Name, MachineID: self.MachineID, Network: self.Network,
		ID: self.ID, Version: Version, Epoch: epoch, Fences: transport.Epoch(e.fences.Load()), Others: e.others}
	d.Transports = make(map[string]transport.Versions, len(e.ports))
	for _, p := range e.ports {
		if p.transport != nil {
			d.Transports[p.name] = p.info.Versions
		}
	}
	return d
}

func (e *Engine) seal(d *segment.Description) {
	if err := d.Seal(); err != nil {
		e.log.Error("describe", "err", err)
	}
}

func describe(r *region) segment.Region {
	s := segment.Region{ID: r.ID, Name: r.Name, Addr: uint64(r.Addr), Size: r.Size, Location: r.Location, Kind: r.Kind,
		Permission: r.Permission, ReadOnly: r.ReadOnly, Registered: r.registered,
		Descriptors: r.descriptors()}
	switch {
	case r.lease == nil:
	case r.isFirst():
		s.Addr, s.Lease = 0, r.ID
	default:
		s.Addr, s.Lease, s.Start = 0, r.lease.of.ID, r.lease.start
	}
	return s
}

// Export makes a blob by which another engine can open this one. Nil names mean all regions with a name that are given
// to all peers, and no leases. A blob gives no rights.
func (e *Engine) Export(names []string) ([]byte, error) {
	d := e.description(func(r *region) bool {
		return r.Permission != mem.LocalReadWrite && (names != nil || r.rule == nil && r.lease == nil)
	})
	wanted := map[string]bool{}
	for _, n := range names {
		wanted[n] = true
		if d.Find(n) == nil {
			return nil, errs.New(errs.InvalidArgument, "export", "no region that peers may use is named %q", n)
		}
	}
	regions := d.Regions
	d.Regions = nil
	lease := mem.RegionID(0) // that was taken last: its further ranges, which have no name, come behind it
	for i := range regions {
		r := &regions[i]
		if r.Name != "" && (names == nil || wanted[r.Name]) {
			lease = r.Lease
		} else if r.Lease == 0 || r.Lease != lease {
			continue
		}
		d.Regions = append(d.Regions, *r)
	}
	if err := d.Seal(); err != nil {
		return nil, err
	}
	return segment.Encode(d, false), nil
}
