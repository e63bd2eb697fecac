package engine

import "github.com/tent-engine/tent/gocore/transport"

const (
	pollWork = 64 // sockets or queues in one look
	pollCopy = 1  // queued copies in one look, each of some 10 to 50 µs
)

// pollers are the transports that waiters look after, by how they do it. They are fixed by Open.
type pollers struct {
	answering  []transport.Poller    // waiters look there for completions
	copying    []transport.Poller    // they have copies for waiters to carry out
	parking    []transport.Parker    // waiters sleep on their descriptors
	exclusives []transport.Exclusive // those of parking that are one, nil for the others
}

// gather finds the transports of ports.
func (l *pollers) gather(ports []*port) {
	*l = pollers{}
	for _, p := range ports {
		if parker, ok := transport.Find[transport.Parker](p.transport); ok {
			exclusive, _ := transport.Find[transport.Exclusive](p.transport)
			l.parking, l.exclusives = append(l.parking, parker), append(l.exclusives, exclusive)
		}
		switch poller, ok := transport.Find[transport.Poller](p.transport); {
		case !ok:
		case p.info.Copies:
			l.copying = append(l.copying, poller)
		default:
			l.answering = append(l.answering, poller)
		}
	}
}

// none reports whether no transport is polled.
func (l *pollers) none() bool { return len(l.answering)+len(l.copying) == 0 }

// poll looks once for completions of some classes, in up to work sockets or queues of a transport. The caller owes
// arm.
func (l *pollers) poll(work int, classes transport.Classes) (found int) {
	for _, p := range l.answering {
		found += p.Poll(work, classes)
	}
	return found
}

// copy carries out a queued copy of each transport that has some. The caller owes armCopies.
func (l *pollers) copy(classes transport.Classes) (copied int) {
	for _, p := range l.copying {
		copied += p.Poll(pollCopy, classes)
	}
	return copied
}

// arm wakes workers of transports for completions from now on.
func (l *pollers) arm() {
	for _, p := range l.answering {
		p.Arm()
	}
}

// armCopies leaves the queued copies to workers of transports.
func (l *pollers) armCopies() {
	for _, p := range l.copying {
		p.Arm()
	}
}
