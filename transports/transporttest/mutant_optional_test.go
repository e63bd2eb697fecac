package transporttest_test

import (
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// Probe is the inner transport's.
func (m *mutant) Probe(rail transport.Rail, done func(clock.Time, *errs.Error)) {
	m.Transport.(transport.Prober).Probe(rail, func(rtt clock.Time, err *errs.Error) {
		done(rtt, err)
		if m.name == "answers a probe twice" {
			done(rtt, err)
		}
	})
}

// Explain is the inner transport's.
func (m *mutant) Explain(l transport.Link) string {
	if m.name == "explains nothing" {
		return ""
	}
	return m.Transport.(transport.Explainer).Explain(l)
}

// speaker is a mutant that claims words of a rail, about slices to peers that are stopped.
type speaker struct{ *mutant }

// Heard takes every packet for a word of the peer's process. The sound one has heard nothing.
func (m speaker) Heard(transport.Rail) (signs transport.Signs) {
	if m.name == "speaks for a stopped peer" {
		signs.Spoke = clock.Now()
	}
	return signs
}

// hearer is a mutant that has always heard of a peer right now, where the rail is up.
type hearer struct{ *mutant }

func (m hearer) Heard(rail transport.Rail) (signs transport.Signs) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.up[rail] && m.name != "has heard of nobody" {
		now := clock.Now()
		signs = transport.Signs{Heard: now, Moved: now, Spoke: now}
	}
	return signs
}

// allocator is a mutant that brings memory.
type allocator struct{ *mutant }

func (m allocator) Allocate(a transport.Allocation) (mem.Region, error) {
	b, err := unix.Mmap(-1, 0, int(a.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return mem.Region{}, err
	}
	if m.name == "allocates what others have left" {
		b[len(b)/2] = 1
	}
	return mem.Region{Addr: mem.AddressOf(b), Size: a.Size, Kind: mem.Host, Location: a.Location, Fd: -1}, nil
}

func (m allocator) Free(r mem.Region) error {
	return unix.MunmapPtr(mem.Pointer(r.Addr), uintptr(r.Size))
}
