package tcp

import (
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/transport"
)

// Shares of the process's descriptors (RLIMIT_NOFILE). We are guests in it: a flood that fills ours leaves the rest.
const (
	lanesShare     = 4  // lanes of peers have one of this many descriptors
	lanesMin       = 64 // but this many are possible with any limit
	strangersShare = 16
)

const (
	strangersMax    = 256 // less where that is more than their share of descriptors
	strangersOfHost = 16  // with one address; of IPv6 with one /64, of which a host has every address
	acceptBatch     = 64  // connections that a worker takes before it looks at the lanes again
)

// descriptorLimit is the most descriptors that the process may have open.
func descriptorLimit() int {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return 1024 // the usual one
	}
	return int(min(limit.Cur, 1<<20))
}

// strangers are the connections that have named no attachment yet, for Settings.Greeting at most. Each costs a
// descriptor and some 4 KiB. The kernel hands a connection over when its first bytes have come (TCP_DEFER_ACCEPT), and
// these are read before it joins: a peer's HELLO is among them, so the peer is never here. Therefore a full table holds
// none of them, and the oldest connection goes for a new one.
type strangers struct {
	most int // that are possible at once

	mu  sync.Mutex
	all []*responderLane // the oldest first
}

// add takes a connection in and returns the one that has to go for it, nil for none. The caller drops it.
func (s *strangers) add(l *responderLane) (dropped *responderLane) {
	s.mu.Lock()
	defer s.mu.Unlock()
	same, oldest := 0, 0
	for i := len(s.all) - 1; i >= 0; i-- {
		if s.all[i].from == l.from {
			same, oldest = same+1, i
		}
	}
	if same < strangersOfHost {
		oldest = 0
	}
	if same >= strangersOfHost || len(s.all) >= s.most {
		dropped = s.pick(oldest)
	}
	s.all = append(s.all, l)
	return dropped
}

// pick takes out a connection that has to go. Holds mu.
func (s *strangers) pick(i int) *responderLane {
	l := s.all[i]
	s.all = slices.Delete(s.all, i, i+1)
	l.picked = true
	return l
}

// remove forgets a connection that has named its attachment or was closed. It returns false for one that is picked to
// go: its reader promises it nothing any more, since its socket is about to be closed.
func (s *strangers) remove(l *responderLane) (stays bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.all, l); i >= 0 {
		s.all = slices.Delete(s.all, i, i+1)
	}
	return !l.picked
}

// dropOldest picks the oldest to go, nil if there is none.
func (s *strangers) dropOldest() *responderLane {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) == 0 {
		return nil
	}
	return s.pick(0)
}

// hostOf is the part of an address that one host has to itself.
func hostOf(from unix.Sockaddr) netip.Addr {
	a := addrPort(from).Addr().Unmap()
	if !a.Is6() {
		return a
	}
	network, _ := a.WithZone("").Prefix(64) // fails for no address of 128 bits
	return network.Addr()
}

// drop closes a connection for the sake of others. Its descriptor is free when this returns, unless it is being read:
// then its reader is at it for one call more.
func (l *responderLane) drop() {
	l.markEnd(eventLate, l.refuse(transport.RefusedLimit, "%d connections say nothing, and this is the oldest",
		strangersOfHost))
	l.closeLane()
}
