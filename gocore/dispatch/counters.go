package dispatch

import (
	"math/bits"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/transport"
)

// addValue counts a value.
func (h *Histogram) addValue(v uint64) { h.addValues(v, 1) }

func (h *Histogram) addValues(v, n uint64) {
	h.Buckets[bits.Len64(v)&63] += n
	h.Sum += v * n
}

// Counters returns the counters of a transport and a class; nil if there is no such transport or class. The caller
// reads it under the same lock as every other call.
func (c *Core) Counters(transport uint8, class int) *Counters {
	if int(transport) >= len(c.counters) || class < 0 || class >= ClassCount {
		return nil
	}
	return &c.counters[transport][class]
}

// Failovers is the number of switches of a task from one transport to another.
func (c *Core) Failovers(from, to uint8) uint64 {
	if int(from) >= len(c.failovers) || int(to) >= len(c.failovers) {
		return 0
	}
	return c.failovers[from][to]
}

func (c *Core) growCounters() {
	c.counters = append(c.counters, [ClassCount]Counters{})
	for i := range c.failovers {
		c.failovers[i] = append(c.failovers[i], 0)
	}
	c.failovers = append(c.failovers, make([]uint64, len(c.counters)))
}

// countersOf are those of a task's current transport.
func (c *Core) countersOf(t *task) *Counters {
	return &c.counters[t.path().Transport][t.spec.Class]
}

// countersFor are those of a slice.
func (c *Core) countersFor(a *attempt) *Counters {
	return &c.counters[a.rail.link.spec.Transport][a.Class]
}

// countEnd counts the end of a task; each part is a request.
func (c *Core) countEnd(t *task, now clock.Time) {
	k := c.countersOf(t)
	op := t.spec.Op & transport.Write
	n, size := uint64(1), t.spec.Length
	if parts := t.spec.Parts; parts != nil { // a division costs as much as all else here
		n, size = uint64(t.spec.requests()), parts.Bytes
	}
	k.Requests[op] += n
	k.ByOp[op].Sizes.addValues(size, n)
	if t.state == Completed {
		us := micros(now.Sub(t.submitted))
		k.ByOp[op].Latency.addValues(us, n)
		return
	}
	lost := uint64(0)
	t.eachMissing(func(int) { lost++ })
	switch t.state {
	case Canceled:
		k.Canceled += lost
	case TimedOut:
		k.TimedOut += lost
		c.countMisses(t, lost, now)
	default:
		k.Failures[op] += lost
	}
	if t.dirty {
		k.Dirty++
	}
}

// micros is a duration as histograms have it.
func micros(d time.Duration) uint64 { return uint64(max(d, 0)) / 1000 }
