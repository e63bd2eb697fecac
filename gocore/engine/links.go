package engine

import (
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/plan"
)

// linkTable has the engine's side of the core's links. Guarded by the engine's mutex.
type linkTable struct {
	bySlot  []linkMirror
	leaving []plan.LinkID // detached, not forgotten yet
}

// linkMirror is the engine's side of a core link: the transport that it belongs to, and the outboxes of its rails.
type linkMirror struct {
	port     *port
	outboxes []*outbox // by rail index, nil before the rail's first order
}

// enter makes a new link known.
func (t *linkTable) enter(id plan.LinkID, port *port) {
	for int(id.Slot()) >= len(t.bySlot) {
		t.bySlot = append(t.bySlot, linkMirror{})
	}
	t.bySlot[id.Slot()] = linkMirror{port: port}
}

// port returns the transport of a link, nil if it has been forgotten.
func (t *linkTable) port(id plan.LinkID) *port {
	if slot := int(id.Slot()); slot < len(t.bySlot) {
		return t.bySlot[slot].port
	}
	return nil
}

// outbox returns the outbox of a rail, made at first use.
func (t *linkTable) outbox(id plan.LinkID, rail uint16) *outbox {
	m := &t.bySlot[id.Slot()]
	for int(rail) >= len(m.outboxes) {
		m.outboxes = append(m.outboxes, nil)
	}
	if m.outboxes[rail] == nil {
		m.outboxes[rail] = &outbox{engine: m.port.engine, link: id, port: m.port}
	}
	return m.outboxes[rail]
}

// everyOutbox returns those of all links.
func (t *linkTable) everyOutbox() (all []*outbox) {
	for i := range t.bySlot {
		for _, o := range t.bySlot[i].outboxes {
			if o != nil {
				all = append(all, o)
			}
		}
	}
	return all
}

// forget drops the records of links that were left and have nothing outstanding.
func (t *linkTable) forget(core *dispatch.Core) {
	rest := t.leaving[:0]
	for _, id := range t.leaving {
		if core.LinkBusy(id) {
			rest = append(rest, id)
			continue
		}
		core.RemoveLink(id)
		t.bySlot[id.Slot()] = linkMirror{}
	}
	t.leaving = rest
}
