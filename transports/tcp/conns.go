package tcp

import (
	"golang.org/x/sys/unix"
)

// connKey is a connection's key in Transport.conns. Epoll returns it with each event, so an event of a connection
// that has been closed meanwhile finds nothing. Its low half is never 0.
type connKey uint64

// event describes the connection to epoll.
func (k connKey) event(events uint32) unix.EpollEvent {
	return unix.EpollEvent{Events: events, Fd: int32(uint32(k)), Pad: int32(uint32(k >> 32))}
}

// connOf returns the connection of an event, nil if it was closed or if the event is that of another descriptor.
func (t *Transport) connOf(e *unix.EpollEvent) *conn {
	return t.conns.Lookup(connKey(uint32(e.Pad))<<32 | connKey(uint32(e.Fd)))
}

// Tags of events of other descriptors: the low half of their key is 0, so they are no connection's.
const (
	tagListener = iota + 1 // and the listener's index from tagBits on
	tagStop
	tagBulk
	tagBits = 8
)

func taggedEvent(events uint32, tag, index int) unix.EpollEvent {
	return unix.EpollEvent{Events: events, Pad: int32(index<<tagBits | tag)}
}

// initiatorOf returns an initiator's lane by its connection's key, nil if that is closed or no initiator's.
func (t *Transport) initiatorOf(k connKey) *initiatorLane {
	if c := t.conns.Lookup(k); c != nil {
		l, _ := c.lane.(*initiatorLane)
		return l
	}
	return nil
}
