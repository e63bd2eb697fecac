package tcp

import (
	"net/netip"
	"slices"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
)

// A peer names the endpoints of its lanes, and may name those of others: any host and port, ours too. Until one has
// proved that it is the peer's, by its CHALLENGE, a try is a single connection with 88 bytes of ours, and there are at
// most eight a minute: five at once, then one each 15 s. An endpoint that proved itself is dialled as redial.go says.
const (
	knockBurst = 5
	knockEvery = 15 * time.Second
)

// addressesMax bounds the endpoints of an offer. It is more than any host has networks, and with knockEvery it bounds
// the connections to hosts that a peer only names: 256 a minute.
const addressesMax = 32

// farEnd is the record of an endpoint of a link's peer.
type farEnd struct {
	proved bool
	free   clock.Time // from then on all tries of a burst may be made again (GCRA, ITU-T I.371)
}

// plain reports whether an offer may name an endpoint. Link-local addresses of IPv4 are where clouds keep their
// metadata services.
func plain(a netip.AddrPort) bool {
	ip := a.Addr()
	return a.Port() != 0 && !ip.IsUnspecified() && !ip.IsMulticast() && !(ip.Is4() && ip.IsLinkLocalUnicast())
}

// isHere reports whether the address that we opened may be one of our own host. Another host cannot name endpoints on
// our loopback: it says easily that it shares our network, since Hello has the network's name. A name counts as ours,
// for our user chose it.
func isHere(address string) bool {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return true
	}
	a := at.Addr().Unmap().WithZone("")
	return a.IsLoopback() || slices.ContainsFunc(ownSubnets(), func(p netip.Prefix) bool { return p.Addr() == a })
}

// mayKnock returns the time from which on an endpoint may be tried.
func (e *farEnd) mayKnock() clock.Time {
	if e.proved {
		return 0
	}
	return e.free.Add(-(knockBurst - 1) * knockEvery)
}

// knocked counts a try.
func (e *farEnd) knocked(now clock.Time) { e.free = max(e.free, now).Add(knockEvery) }

// notKnocked takes a try back that has sent nothing.
func (e *farEnd) notKnocked() { e.free = e.free.Add(-knockEvery) }

// farEndOf returns the record of a rail's far end. Only the link's goroutine calls it.
func (l *link) farEndOf(r *rail) *farEnd {
	e := l.ends[r.remote]
	if e == nil {
		e = &farEnd{}
		l.ends[r.remote] = e
	}
	return e
}

// forgetEnds drops the records of endpoints that no rail has any more.
func (l *link) forgetEnds(rails []*rail) {
	kept := map[netip.AddrPort]*farEnd{}
	for _, r := range rails {
		if e := l.ends[r.remote]; e != nil {
			kept[r.remote] = e
		}
	}
	l.ends = kept
}
