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
// these are read at once: a peer is a stranger for the length of one call. So a full table holds none of them, and the
// oldest connection goes for a new one.
type strangers struct {
	most int // that are possible at once

	mu  sync.Mutex
	all []*responderLane // the oldest first
}

// add takes a connection in and returns the one that has to go for it, nil for none.
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
		dropped = s.all[oldest]
		s.all = slices.Delete(s.all, oldest, oldest+1)
	}
	s.all = append(s.all, l)
	return dropped
}

// remove forgets a connection that has named its attachment or was closed.
func (s *strangers) remove(l *responderLane) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.all, l); i >= 0 {
		s.all = slices.Delete(s.all, i, i+1)
	}
}

// dropOldest takes the oldest out, nil if there is none.
func (s *strangers) dropOldest() *responderLane {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) == 0 {
		return nil
	}
	l := s.all[0]
	s.all = slices.Delete(s.all, 0, 1)
	return l
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
