package devicetest

import (
	"fmt"

	"github.com/tent-engine/tent/gocore/device"
)

// stream is a queue of work: how many pieces were enqueued, and how many are done. Latches lie between them.
type stream struct {
	enqueued, done uint64
	latches        []*latch
	failed         error
}

// reached returns the pieces and the latches that the stream comes to before it waits for a latch.
func (s *stream) reached() (work uint64, latches int) {
	for i, l := range s.latches {
		if l.value == 0 {
			return l.behind, i
		}
	}
	return s.enqueued, len(s.latches)
}

func (p *Platform) stream(handle uintptr) *stream {
	if p.streams == nil {
		p.streams = map[uintptr]*stream{}
	}
	if p.streams[handle] == nil {
		p.streams[handle] = &stream{}
	}
	return p.streams[handle]
}

// Enqueue puts a piece of work into a stream, and Finish carries out the oldest, unless a latch holds it.
func (p *Platform) Enqueue(handle uintptr) {
	p.mu.Lock()
	p.stream(handle).enqueued++
	p.mu.Unlock()
}

// Finish ends the oldest piece of work of a stream.
func (p *Platform) Finish(handle uintptr) {
	p.mu.Lock()
	s := p.stream(handle)
	work, _ := s.reached()
	s.done = min(s.done+1, work)
	p.mu.Unlock()
}

// Gate implements device.Streams.
func (p *Platform) Gate(handle uintptr) (device.Gate, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stream(handle)
	p.gates++
	return &gate{p, s, s.enqueued, len(s.latches)}, nil
}

// Fail breaks a stream: its gates end by the error.
func (p *Platform) Fail(handle uintptr, err error) {
	p.mu.Lock()
	p.stream(handle).failed = err
	p.mu.Unlock()
}

// Hold implements device.Streams: Passed says how far the stream goes on.
func (p *Platform) Hold(handle uintptr) (device.Latch, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stream(handle)
	l := &latch{platform: p, behind: s.enqueued}
	s.latches = append(s.latches, l)
	return l, nil
}

// Passed returns the values by which the latches of a stream were released, in order, up to the first that was not.
func (p *Platform) Passed(handle uintptr) (values []uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stream(handle)
	_, latches := s.reached()
	for _, l := range s.latches[:latches] {
		values = append(values, l.value)
	}
	return values
}

// latch holds a stream up until its value is not 0.
type latch struct {
	platform *Platform
	behind   uint64 // pieces of work
	value    uint32
	closed   bool
}

// Word returns no address: no device reads it.
func (l *latch) Word() uint64 { return 0 }

// Release implements device.Latch. A second one is a mistake of the caller.
func (l *latch) Release(value uint32) {
	l.platform.mu.Lock()
	defer l.platform.mu.Unlock()
	if value == 0 || l.value != 0 || l.closed {
		panic(fmt.Sprintf("a latch with %d, closed: %v, is released by %d", l.value, l.closed, value))
	}
	l.value = value
}

// Close implements device.Latch.
func (l *latch) Close() {
	l.platform.mu.Lock()
	defer l.platform.mu.Unlock()
	if l.value == 0 || l.closed {
		panic("a latch is given back twice, or before its release")
	}
	l.closed = true
}

// LatchesLeft counts the latches of all streams that were not given back.
func (p *Platform) LatchesLeft() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.streams {
		for _, l := range s.latches {
			if !l.closed {
				n++
			}
		}
	}
	return n
}

type gate struct {
	platform *Platform
	stream   *stream
	work     uint64 // pieces that it waits for
	latches  int    // and latches
}

func (g *gate) Open() (bool, error) {
	g.platform.mu.Lock()
	defer g.platform.mu.Unlock()
	_, latches := g.stream.reached()
	return g.stream.done >= g.work && latches >= g.latches, g.stream.failed
}

func (g *gate) Close() {
	g.platform.mu.Lock()
	g.platform.gates--
	g.platform.mu.Unlock()
}

// GatesLeft counts the gates that were not given back.
func (p *Platform) GatesLeft() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gates
}
