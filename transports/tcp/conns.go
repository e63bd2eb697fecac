package tcp

import (
	"iter"
	"slices"
)

// addConn enters a connection into the table that epoll's numbers point into.
func (t *Transport) addConn(c *conn) {
	t.connMu.Lock()
	defer t.connMu.Unlock()
	conns := append([]*conn(nil), *t.conns.Load()...)
	if n := len(t.freeSlots); n > 0 {
		c.slot, t.freeSlots = t.freeSlots[n-1], t.freeSlots[:n-1]
	} else {
		c.slot, conns = uint32(len(conns)), append(conns, nil)
	}
	conns[c.slot] = c
	t.conns.Store(&conns)
}

// offer makes an open lane of ours visible to Poll.
func (t *Transport) offer(l *initiatorLane) {
	t.connMu.Lock()
	defer t.connMu.Unlock()
	dialled := append([]*initiatorLane(nil), *t.dialled.Load()...)
	at := len(dialled)
	if l.group == 0 { // looked at first
		at = slices.IndexFunc(append(dialled, nil), func(o *initiatorLane) bool { return o == nil || o.group > 0 })
	}
	dialled = slices.Insert(dialled, at, l)
	t.dialled.Store(&dialled)
}

func (t *Transport) dropConn(c *conn) {
	t.connMu.Lock()
	defer t.connMu.Unlock()
	conns := append([]*conn(nil), *t.conns.Load()...)
	if conns[c.slot] != c {
		return
	}
	conns[c.slot] = nil
	t.freeSlots = append(t.freeSlots, c.slot)
	t.conns.Store(&conns)
	dialled := make([]*initiatorLane, 0, len(*t.dialled.Load()))
	for _, other := range *t.dialled.Load() {
		if &other.conn != c {
			dialled = append(dialled, other)
		}
	}
	t.dialled.Store(&dialled)
}

func (t *Transport) connAt(slot uint32) *conn {
	conns := *t.conns.Load()
	if uint64(slot) < uint64(len(conns)) {
		return conns[slot]
	}
	return nil
}

// initiatorAt returns an initiator's lane by its slot, nil if the slot holds none.
func (t *Transport) initiatorAt(slot uint32) *initiatorLane {
	if c := t.connAt(slot); c != nil {
		l, _ := c.lane.(*initiatorLane)
		return l
	}
	return nil
}

// eachConn calls the loop's body for every connection that is in the table now.
func (t *Transport) eachConn() iter.Seq[*conn] {
	return func(yield func(*conn) bool) {
		for _, c := range *t.conns.Load() {
			if c != nil && !yield(c) {
				return
			}
		}
	}
}
