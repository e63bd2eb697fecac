package engine

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/device"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
)

// A request with the term stream begins when the work that is in a stream of a device has been carried out. The wait is
// the core's (dispatch.NewGate): a transport that waited could not give its slices back. So it is the same for all
// transports, and cancel, deadline and fence end it.
//
//	Commit: a gate for each stream of the call --open already--> as without a stream
//	          |                                                    opened
//	          +--enqueue: the core's gate, and the list of watched --poll--> noticeGate --> dispatch.OpenGate
//
// Those that wait for a batch poll the gates, and so does a goroutine of the engine: less often the longer a gate has
// been shut, so that a wait becomes longer by a sixteenth at most.

const (
	gatesMost = 1024                  // of an engine that are shut
	gateSoon  = 20 * time.Microsecond // the shortest pause between two looks of the engine's goroutine
	gateLate  = time.Millisecond      // and the longest
)

// gates are the streams that requests of the engine wait for.
type gates struct {
	streams device.Streams // nil: no platform here has streams
	watched atomic.Int32   // bound by gatesMost; readable without a lock

	polling sync.Mutex // the one that holds it looks at the gates
	shut    []shutGate

	mu       sync.Mutex // behind polling and the engine's
	fresh    []shutGate // for shut
	deserted []dispatch.GateID
	wake     chan struct{} // of the goroutine
}

// shutGate is a gate of a platform, and the one of the core that it stands for.
type shutGate struct {
	id   dispatch.GateID
	gate device.Gate
}

// callGate is a stream of a call; gate is nil if it was open at once.
type callGate struct {
	stream uint64
	shutGate
}

// gate asks for a gate behind the present work of each stream of the call. A task's Gate is the place in c.gates plus
// one until the core has named it.
func (c *Call) gate() *errs.Error {
	for i := range c.specs {
		s := &c.specs[i]
		if s.Stream == 0 {
			continue
		}
		at := slices.IndexFunc(c.gates, func(g callGate) bool { return g.stream == s.Stream })
		if at < 0 {
			found, err := c.engine.gateOf(s.Stream, len(c.gates))
			if err != nil {
				return err
			}
			at = len(c.gates)
			c.gates = append(c.gates, callGate{stream: s.Stream, shutGate: shutGate{gate: found}})
			c.waits = c.waits || found != nil
		}
		if c.gates[at].gate != nil {
			s.Gate = dispatch.GateID(at + 1)
		}
	}
	return nil
}

// gateOf returns a gate behind the present work of a stream, nil if there is none left. The call has others already.
func (e *Engine) gateOf(stream uint64, others int) (device.Gate, *errs.Error) {
	if e.gates.streams == nil {
		return nil, e.noStreams()
	}
	if int(e.gates.watched.Load())+others >= gatesMost {
		return nil, errs.New(errs.TooManyRequests, "submit", "transfers wait for %d streams", gatesMost).
			WithHint("wait for some to end, or submit those of one stream together")
	}
	g, err := e.gates.streams.Gate(uintptr(stream))
	if err != nil {
		return nil, errs.From("submit", err)
	}
	open, err := g.Open()
	if open || err != nil {
		g.Close()
		g = nil
	}
	if err != nil {
		return nil, errs.From("submit", err)
	}
	return g, nil
}

// noStreams is the error of a stream where no platform has any.
func (e *Engine) noStreams() *errs.Error {
	why := "no platform of this build has streams"
	for kind, reason := range e.platforms.absent {
		why = fmt.Sprintf("%v: %v", kind, reason)
	}
	return errs.New(errs.InvalidArgument, "submit", "stream is given, and there is no device: %s", why).
		WithHint("leave stream= out where memory is the host's; `tent doctor` lists devices")
}

// closeGates gives back the gates that the core has not taken.
func (c *Call) closeGates() {
	for i := range c.gates {
		if g := c.gates[i].gate; g != nil {
			g.Close()
		}
	}
	clear(c.gates)
	c.gates = c.gates[:0]
}

// nameGates makes the core's gates for those of a call. The caller holds e.mu.
func (e *Engine) nameGates(c *Call) {
	for i := range c.gates {
		if c.gates[i].gate != nil {
			c.gates[i].id = e.core.NewGate()
		}
	}
	for i := range c.specs {
		if s := &c.specs[i]; s.Gate != 0 {
			s.Gate = c.gates[s.Gate-1].id
		}
	}
}

// unnameGates takes back the core's gates of a call that was refused. The caller holds e.mu.
func (e *Engine) unnameGates(c *Call, now clock.Time) {
	for i := range c.gates {
		if c.gates[i].gate != nil {
			e.core.OpenGate(c.gates[i].id, nil, now)
		}
	}
}

// watchGates begins to look at the gates of a call that the core has taken. The caller holds e.mu.
func (e *Engine) watchGates(c *Call) {
	g := &e.gates
	g.mu.Lock()
	for i := range c.gates {
		if c.gates[i].gate != nil {
			g.fresh = append(g.fresh, c.gates[i].shutGate)
			g.watched.Add(1)
		}
	}
	g.mu.Unlock()
	clear(c.gates)
	c.gates = c.gates[:0]
	wake(g.wake)
}

// desert gives up gates for which nobody waits any more. The caller holds e.mu.
func (g *gates) desert(list []dispatch.GateID) {
	g.mu.Lock()
	g.deserted = append(g.deserted, list...)
	g.mu.Unlock()
	wake(g.wake)
}

// poll looks at all gates once, and returns how many have opened or failed. One goroutine looks at a time: others find
// nothing.
func (g *gates) poll(inbox *inbox) (found int) {
	if g.watched.Load() == 0 || !g.polling.TryLock() {
		return 0
	}
	defer g.polling.Unlock()
	g.mu.Lock()
	g.shut = append(g.shut, g.fresh...)
	clear(g.fresh)
	g.fresh = g.fresh[:0]
	left := g.deserted
	g.deserted = nil
	g.mu.Unlock()
	keep := g.shut[:0]
	for _, s := range g.shut {
		open, err := false, error(nil)
		gone := slices.Contains(left, s.id)
		if !gone {
			open, err = s.gate.Open()
		}
		if !gone && !open && err == nil {
			keep = append(keep, s)
			continue
		}
		s.gate.Close()
		g.watched.Add(-1)
		if !gone {
			found++
			inbox.notice(notice{kind: noticeGate, gate: s.id, cause: errs.From("stream", err)})
		}
	}
	clear(g.shut[len(keep):])
	g.shut = keep
	return found
}

// keepGates looks at the gates until the engine closes.
func (e *Engine) keepGates(ctx context.Context) {
	g := &e.gates
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	defer g.close()
	since := clock.Now()
	for {
		if g.poll(&e.inbox) > 0 {
			e.runSteps()
		}
		pause := time.Hour
		if g.watched.Load() > 0 {
			pause = min(max(clock.Now().Sub(since)/16, gateSoon), gateLate)
		}
		timer.Reset(pause)
		select {
		case <-ctx.Done():
			return
		case <-g.wake:
			since = clock.Now()
		case <-timer.C:
		}
	}
}

// close gives all gates back. Nobody submits any more.
func (g *gates) close() {
	g.polling.Lock()
	defer g.polling.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range append(g.shut, g.fresh...) {
		s.gate.Close()
		g.watched.Add(-1)
	}
	g.shut, g.fresh = nil, nil
}
