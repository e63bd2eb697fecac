package sim

import "github.com/tent-engine/tent/gocore/clock"

// kind is the effect of an event. Events of slices carry their attempt; the rest are rare and carry a function.
type kind uint8

const (
	call    kind = iota
	sent         // the last byte left the rail; the next slice may go
	arrived      // a WRITE, or the request of a READ, is at the peer
	data         // the bytes of a READ are here
	answer       // the peer's acknowledgement or refusal is here
	lost         // nothing came back; the transport gives up
	placed       // a posted WRITE lands
	asked        // a withdrawal is at the peer
	told         // the peer's answer to a withdrawal is here
)

// event is something that will happen. node, rail and link are its conditions: it happens at that node, it travels
// on that rail, it travels on any rail of that link.
type event struct {
	at       clock.Time
	sequence uint64 // ties are broken in the order of scheduling
	kind     kind
	attempt  *attempt
	life     uint64 // of the attempt; another one by now: the event is void
	node     *Transport
	rail     *rail
	link     *link
	do       func()
}

// void reports that an event means nothing any more.
func (e *event) void() bool {
	return e.attempt != nil && e.kind != sent && e.attempt.life != e.life
}

// queue is a binary heap of events by time, then sequence.
type queue struct{ heap []event }

func (q *queue) first() clock.Time {
	if len(q.heap) == 0 {
		return clock.Never
	}
	return q.heap[0].at
}

func (q *queue) less(i, j int) bool {
	a, b := &q.heap[i], &q.heap[j]
	return a.at < b.at || (a.at == b.at && a.sequence < b.sequence)
}

func (q *queue) push(e event) {
	q.heap = append(q.heap, e)
	for i := len(q.heap) - 1; i > 0; {
		parent := (i - 1) / 2
		if !q.less(i, parent) {
			break
		}
		q.heap[i], q.heap[parent] = q.heap[parent], q.heap[i]
		i = parent
	}
}

func (q *queue) pop() event {
	top, last := q.heap[0], len(q.heap)-1
	q.heap[0] = q.heap[last]
	q.heap[last] = event{} // keeps nothing alive
	q.heap = q.heap[:last]
	for i := 0; ; {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < last; child++ {
			if q.less(child, least) {
				least = child
			}
		}
		if least == i {
			return top
		}
		q.heap[i], q.heap[least] = q.heap[least], q.heap[i]
		i = least
	}
}
