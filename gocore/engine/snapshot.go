package engine

import (
	"runtime"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/metrics"
	"github.com/tent-engine/tent/gocore/security"
	"github.com/tent-engine/tent/gocore/transport"
)

// Metrics returns counters and gauges by name.
func (e *Engine) Metrics() map[string]float64 { return metrics.Flat(e.snapshot()) }

// MetricsText returns them in Prometheus' text format.
func (e *Engine) MetricsText() (string, error) { return metrics.Text(e.snapshot()) }

// snapshot copies the counters; it holds the engine's mutex only for those of the core.
func (e *Engine) snapshot() *metrics.Snapshot {
	s := &metrics.Snapshot{Version: Release, Protocol: Version, GoVersion: runtime.Version(),
		Transports: make([]metrics.Transport, len(e.ports))}
	e.countRegions(s)
	s.Refusals = e.refusals.snapshot()
	s.Insecure = e.credentials.Mode() == security.Insecure
	for i, p := range e.ports {
		s.Transports[i].Sharing = e.shared.view(p.name, i, clock.Now())
		if p.transport == nil {
			continue
		}
		s.Transports[i].StaleCalls = p.transport.Stale()
		if flusher, is := transport.Find[transport.Flusher](p.transport); is {
			s.Transports[i].Flushes = flusher.Flushes()
		}
		if injector, is := transport.Outermost[transport.Injector](p.transport); is {
			t := &s.Transports[i]
			t.Faults, t.Struck, t.Ambient = injector.Injected()
		}
	}
	e.mu.Lock()
	defer e.unlockAndDrain()
	e.copyCore(s)
	return s
}

// countRegions counts regions, segments, peers and notifications.
func (e *Engine) countRegions(s *metrics.Snapshot) {
	for _, r := range e.regions.list() {
		s.Regions++
		s.RegisteredBytes += r.Size
	}
	s.Segments = e.segments.count()
	s.Peers = len(e.segments.where(func(p *peer) bool {
		return p.file == nil && p.ready.Load() && p.gone.Load() == nil
	}))
	e.notes.mu.Lock()
	s.Notifications = metrics.Notifications{Sent: e.notifier.sent.Load(), Received: e.notes.taken,
		Refused: e.notes.refused, Waiting: e.notes.waits()}
	e.notes.mu.Unlock()
	s.ReportsDropped = e.reporter.dropped.Load()
}

// copyCore copies the figures of the core. The caller holds e.mu.
func (e *Engine) copyCore(s *metrics.Snapshot) {
	s.StageSlots, s.StageFree, s.StageWaits = e.core.Slots()
	for _, r := range e.core.Rails() {
		s.Rails = append(s.Rails, metrics.Rail{Transport: e.ports[r.Transport].name, Peer: r.Peer, Local: r.Local,
			Remote: r.Remote, State: r.State, Health: r.Health, Rate: r.Rate, Bytes: r.Carried, Errors: r.Errors,
			InFlight: r.InFlight, Slow: r.Slow})
	}
	s.Rails = metrics.MergeRails(s.Rails)
	s.Batches, s.PendingRequests = e.core.Batches(), e.core.Pending()
	for i, p := range e.ports {
		t := &s.Transports[i]
		t.Name = p.name
		for class := range t.Classes {
			t.Classes[class] = *e.core.Counters(uint8(i), class)
		}
		g := e.core.Gauges(uint8(i))
		t.QueuedBytes = g.QueuedBytes
		t.Queued, t.RailsUp, t.RailsDown, t.RailErrors, t.Condemned, t.InFlight, t.SlowPaths =
			g.Queued, g.RailsUp, g.RailsDown, g.RailErrors, g.Condemned, g.InFlight, g.SlowPaths
		t.Strays = g.Strays
		for j, q := range e.ports {
			if n := e.core.Failovers(uint8(i), uint8(j)); n > 0 || p.mayFailOver(q) {
				s.Failovers = append(s.Failovers, metrics.Failover{From: p.name, To: q.name, Count: n})
			}
		}
	}
}

// mayFailOver reports whether tasks may switch from one transport to another: both are open, and both carry bytes to
// peers or both to files.
func (p *port) mayFailOver(to *port) bool {
	return p != to && p.transport != nil && to.transport != nil && p.info.Files == to.info.Files &&
		!p.info.Delegates && !to.info.Delegates
}
