package faulty

import (
	"time"

	"github.com/tent-engine/tent/gocore/transport"
)

// Inner implements transport.Decorator: whatever is not here is looked for there.
func (t *Transport) Inner() transport.Transport { return t.Transport }

// Poll looks into the inner transport; without a Poller there is nothing to find.
func (t *Transport) Poll(budget int) int {
	if p, is := t.Transport.(transport.Poller); is {
		return p.Poll(budget)
	}
	return 0
}

// Park sleeps in the inner transport; without a Poller it does not.
func (t *Transport) Park(wake int, timeout time.Duration) bool {
	if p, is := t.Transport.(transport.Parker); is {
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
