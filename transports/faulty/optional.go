package faulty

import (
	"time"

	"github.com/tent-engine/tent/gocore/transport"
)

// Poll looks into the inner transport; without a Poller there is nothing to find.
func (t *Transport) Poll(budget int) int {
	if p, is := t.Transport.(transport.Poller); is {
		return p.Poll(budget)
	}
	return 0
}

// Park sleeps in the inner transport; without a Poller it does not.
func (t *Transport) Park(wake int, timeout time.Duration) bool {
	if p, is := t.Transport.(transport.Poller); is {
		return p.Park(wake, timeout)
	}
	return false
}

// Arm hands the work back to the inner transport.
func (t *Transport) Arm() {
	if p, is := t.Transport.(transport.Poller); is {
		p.Arm()
	}
}

// Explain adds the faults to what the inner transport says.
func (t *Transport) Explain(link transport.Link) string {
	text := "without faults"
	if faults := t.plan.String(); faults != "" {
		text = "with faults: " + faults
	}
	if e, is := t.Transport.(transport.Explainer); is {
		return e.Explain(link) + " (" + text + ")"
	}
	return text
}

// dress gives the transport those optional interfaces that its inner one has: a waiter or an Explain that finds nothing
// does no harm, the others would promise what is not there.
func (t *Transport) dress() transport.Transport {
	n, notifies := t.Transport.(transport.Notifier)
	p, probes := t.Transport.(transport.Prober)
	a, allocates := t.Transport.(transport.Allocator)
	switch {
	case notifies && probes && allocates:
		return struct {
			*Transport
			transport.Notifier
			transport.Prober
			transport.Allocator
		}{t, n, p, a}
	case notifies && probes:
		return struct {
			*Transport
			transport.Notifier
			transport.Prober
		}{t, n, p}
	case notifies && allocates:
		return struct {
			*Transport
			transport.Notifier
			transport.Allocator
		}{t, n, a}
	case probes && allocates:
		return struct {
			*Transport
			transport.Prober
			transport.Allocator
		}{t, p, a}
	case notifies:
		return struct {
			*Transport
			transport.Notifier
		}{t, n}
	case probes:
		return struct {
			*Transport
			transport.Prober
		}{t, p}
	case allocates:
		return struct {
			*Transport
			transport.Allocator
		}{t, a}
	}
	return t
}
