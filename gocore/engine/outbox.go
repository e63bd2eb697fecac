package engine

import (
	"sync"

	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/transport"
)

// outbox keeps the core's decisions for one rail in their order until its holder has handed them to the transport.
// Without it, two threads that left the core one after the other could reach Submit in the other order: LOW would pass
// HIGH, and a withdrawal could overtake the slice that it withdraws.
//
// Lock order: engine mutex, then order. holder is taken without the engine mutex and never waited for: a goroutine that
// fails to get it relies on the holder, which looks again after releasing it.
type outbox struct {
	engine *Engine
	port   *port
	link   plan.LinkID

	holder sync.Mutex

	order  sync.Mutex
	orders []order            // in the order of decision
	slices []*transport.Slice // of all orders, one after the other
	spare  []order
	pool   []*transport.Slice
}

type orderKind uint8

const (
	orderSubmit orderKind = iota
	orderWithdraw
	orderFence
)

// order is one decision: a run of the outbox's slices, or a fence.
type order struct {
	kind orderKind
	n    int
	rail transport.Rail
}

// add appends a decision; the caller holds the engine's mutex.
func (o *outbox) add(kind orderKind, rail transport.Rail, slices []*transport.Slice) {
	o.order.Lock()
	last := len(o.orders) - 1
	if last >= 0 && kind != orderFence && o.orders[last].kind == kind && o.orders[last].rail == rail {
		o.orders[last].n += len(slices)
	} else {
		o.orders = append(o.orders, order{kind, len(slices), rail})
	}
	o.slices = append(o.slices, slices...)
	o.order.Unlock()
}

// drain carries out the queued orders unless another goroutine holds the outbox. The caller holds no lock.
func (o *outbox) drain() {
	for !o.empty() && o.holder.TryLock() {
		orders, slices := o.take()
		for i := range orders {
			o.carryOut(&orders[i], slices[:orders[i].n])
			slices = slices[orders[i].n:]
		}
		o.holder.Unlock()
	}
}

func (o *outbox) carryOut(d *order, slices []*transport.Slice) {
	switch d.kind {
	case orderSubmit:
		before := o.port.readies.Load()
		if n := o.port.transport.Submit(slices); n < len(slices) {
			o.engine.inbox.refuse(slices[n:])
			// Ready may have come before the refusal was written down; the core would then wait for it for ever.
			if o.port.readies.Load() != before {
				o.engine.inbox.notice(notice{kind: noticeReady, link: o.link, rail: d.rail})
			}
		}
	case orderWithdraw:
		o.port.transport.Withdraw(slices)
		o.engine.inbox.withdrew(slices)
	case orderFence:
		o.port.transport.Fence(d.rail)
	}
}

func (o *outbox) empty() bool {
	o.order.Lock()
	n := len(o.orders)
	o.order.Unlock()
	return n == 0
}

// take exchanges the two pairs of arrays; only the holder calls it, and uses the result until it takes again.
func (o *outbox) take() ([]order, []*transport.Slice) {
	o.order.Lock()
	o.orders, o.spare = o.spare[:0], o.orders
	o.slices, o.pool = o.pool[:0], o.slices
	o.order.Unlock()
	return o.spare, o.pool
}
