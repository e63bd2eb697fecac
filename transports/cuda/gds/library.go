package gds

import (
	"sync"
	"time"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/cuda/cufile"
	"github.com/tent-engine/tent/transports/cuda/driver"
	"github.com/tent-engine/tent/transports/file"
)

// library is cuFile as package file uses it.
type library struct {
	facts   *cufile.Facts
	depth   int
	batches *cufile.Batches // nil where depth is 0
	events  []cufile.Ended
}

var _ file.Library = (*library)(nil)

func newLibrary(facts *cufile.Facts, depth int) *library {
	l := &library{facts: facts}
	if facts.Batches {
		l.depth = places.take(depth)
	}
	if l.depth > 0 {
		l.batches, l.events = cufile.NewBatches(l.depth), make([]cufile.Ended, l.depth)
	}
	return l
}

// placesMost bounds the runs in batches of a process. The library has 64 buffers for runs of up to 1 MiB, and a Submit
// without one waits until another batch is asked for its events: two threads would wait for each other.
const placesMost = 48

// places are those of the process. A transport that gets none uses threads.
var places = budget{left: placesMost}

type budget struct {
	mu   sync.Mutex
	left int
}

// take takes up to n, as many as there are.
func (b *budget) take(n int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n = min(n, b.left)
	b.left -= n
	return n
}

func (b *budget) giveBack(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left += n
}

// Kind implements file.Library.
func (l *library) Kind() mem.Kind { return mem.Cuda }

// Depth implements file.Library.
func (l *library) Depth() int { return l.depth }

// RunMost implements file.Library.
func (l *library) RunMost() uint64 { return l.facts.RunMost }

// Bounces implements file.Library.
func (l *library) Bounces() bool { return !l.facts.Native }

// Describe implements file.Library.
func (l *library) Describe() string { return l.facts.String() }

// Adopt implements file.Library.
func (l *library) Adopt(fd int) (uintptr, error) { return cufile.Adopt(fd) }

// Drop implements file.Library.
func (l *library) Drop(handle uintptr) { cufile.Drop(handle) }

// Keep implements file.Library.
func (l *library) Keep(m *mem.Region) error {
	ordinal := ordinalOf(m)
	if ordinal < 0 {
		return errs.New(errs.NotHere, Name, "the location %q names no device", m.Location)
	}
	return cufile.Keep(ordinal, m.Addr, m.Size)
}

// Unkeep implements file.Library. After the loss of its device there is nothing to end.
func (l *library) Unkeep(m *mem.Region) { _ = cufile.Unkeep(ordinalOf(m), m.Addr, m.Size) }

// Renew implements file.Library.
func (l *library) Renew(m *mem.Region) (refused, err error) {
	return cufile.Renew(ordinalOf(m), m.Addr, m.Size)
}

func ordinalOf(m *mem.Region) int {
	_, ordinal, _ := m.Location.Parse()
	return ordinal
}

// run is a run in terms of cuFile, which finds pinned memory by its base.
func run(r *file.Run) cufile.Run {
	return cufile.Run{Write: r.Op == transport.Write, File: r.Handle, Ordinal: ordinalOf(r.Region), Base: r.Region.Addr,
		Into: uint64(r.Addr - r.Region.Addr), Offset: r.Offset, Bytes: r.Bytes}
}

// Carry implements file.Library.
func (l *library) Carry(r *file.Run) (uint64, error) {
	one := run(r)
	return cufile.Move(&one)
}

// Post implements file.Library.
func (l *library) Post(r *file.Run, tag int) error {
	one := run(r)
	return l.batches.Post(&one, tag)
}

// Collect implements file.Library.
func (l *library) Collect(into []file.Ended, limit time.Duration) int {
	n := l.batches.Collect(l.events[:min(len(into), len(l.events))], limit)
	for i, e := range l.events[:n] {
		into[i] = file.Ended{Tag: e.Tag, Moved: e.Bytes, Err: e.Err}
	}
	return n
}

// Fetch implements file.Library.
func (l *library) Fetch(into []byte, r *file.Run) error {
	return driver.Fetch(ordinalOf(r.Region), into, r.Addr)
}

// Close implements file.Library.
func (l *library) Close() {
	if l.batches != nil {
		l.batches.Close()
	}
	places.giveBack(l.depth)
}
