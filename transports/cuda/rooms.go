package cuda

import (
	"sync"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/cuda/driver"
	"github.com/tent-engine/tent/transports/host/hazard"
	"github.com/tent-engine/tent/transports/kit"
)

// rooms are the workplaces of slices: one for each that is under way, kept until the transport closes. Carriers have
// bursts of the driver beside them.
type rooms struct {
	mu     sync.Mutex
	large  []*room
	small  []*room // of short slices, which are many
	bursts []*driver.Burst

	outgrown []pinned // memory that was too short for a slice
}

// pinned is memory of the host that devices reach.
type pinned struct {
	at uintptr
	on int // device by which it was pinned
}

// room has the copies of a slice that is under way, and its pinned memory. One carrier uses it at a time.
type room struct {
	copies driver.Copies
	bytes  uint64  // of the pinned memory
	pinned uintptr // 0 until a slice needs it
	on     int     // device by which it was pinned

	of    *rooms
	free  *[]*room
	link  *link
	slot  hazard.Slot // held while bytes move
	slice *transport.Slice
	way   way
}

func (p *rooms) take(s *transport.Slice) *room {
	free, bytes := &p.large, uint64(sliceThrough)
	if s.Length <= kit.ShortBytes {
		free, bytes = &p.small, kit.ShortBytes
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(*free); n > 0 {
		r := (*free)[n-1]
		*free = (*free)[:n-1]
		return r
	}
	return &room{of: p, free: free, bytes: bytes}
}

func (p *rooms) giveBack(r *room) {
	p.mu.Lock()
	defer p.mu.Unlock()
	*r.free = append(*r.free, r)
}

func (p *rooms) takeBurst() *driver.Burst {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.bursts)
	if n == 0 {
		return &driver.Burst{}
	}
	b := p.bursts[n-1]
	p.bursts = p.bursts[:n-1]
	return b
}

func (p *rooms) giveBurstBack(b *driver.Burst) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bursts = append(p.bursts, b)
}

// keepOutgrown keeps memory until close. The driver frees it behind the work of all streams, and one of the program's
// may wait for the slice that needs more.
func (p *rooms) keepOutgrown(old pinned) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.outgrown = append(p.outgrown, old)
}

// close gives the pinned memory back. No slice is carried any more.
func (p *rooms) close() (first error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.outgrown
	for _, r := range append(p.large, p.small...) {
		if r.pinned != 0 {
			all = append(all, pinned{r.pinned, r.on})
		}
	}
	for _, m := range all {
		if err := driver.Unpin(m.on, m.at); err != nil && first == nil && driver.Lost(m.on) == nil {
			first = err
		}
	}
	p.large, p.small, p.bursts, p.outgrown = nil, nil, nil, nil
	return first
}
