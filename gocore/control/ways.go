package control

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/meta"
	"github.com/tent-engine/tent/gocore/transport"
)

// ways keeps further addresses of engines, so that a call reaches its peer as long as one of them does. They lead to
// the same engine or to none: every call names its id, and any other engine at the address refuses it.
type ways struct {
	mu     sync.Mutex
	peers  map[wayKey]*way
	knocks map[string]*knocks // by address
}

// knocks counts the tries of an address that has not answered. A peer, or many of them, could name anybody's address
// and use us to knock there: it is tried wayTries times within wayEvery, for all that name it.
type knocks struct {
	tries int
	since time.Time
}

type wayKey struct {
	address string
	id      transport.ID
}

// way holds the addresses of one engine.
type way struct {
	addresses []string // the one it is known by, then the others
	preferred int      // that answered last
	answered  []string // may be tried at any time
}

const (
	waysMax  = 4096 // engines
	wayMax   = 16   // addresses of one
	wayTries = 8
	wayEvery = time.Minute
)

// headStart is the time that the address that answered last has before the next one is tried beside it (as in RFC 8305,
// Happy Eyeballs). A call takes a hundredth of it where nothing is wrong; a withdrawal over the control plane has 400
// ms.
const headStart = 60 * time.Millisecond

// Know takes note of the addresses on which a peer's control plane listens, beside the one by which it is known. It
// listens on one port, so addresses with another one are left out. So are names, wildcards, addresses of groups and of
// the local link, and loopback addresses of other machines and containers.
func (c *Client) Know(peer transport.Peer, addresses []string) {
	list := []string{peer.Address}
	for _, a := range addresses {
		if len(list) < wayMax && !slices.Contains(list, a) && meta.CheckAddress(a) == nil &&
			reachable(a, peer.Address, peer.Network == c.options.Self().Network) {
			list = append(list, a)
		}
	}
	c.ways.mu.Lock()
	defer c.ways.mu.Unlock()
	key := wayKey{peer.Address, peer.ID}
	old := c.ways.peers[key]
	if len(list) == 1 || (old != nil && slices.Equal(old.addresses, list)) {
		return
	}
	for any := range c.ways.peers {
		if old != nil || len(c.ways.peers) < waysMax {
			break
		}
		delete(c.ways.peers, any) // its next description brings it back
	}
	c.ways.peers[key] = &way{addresses: list}
}

func reachable(address, own string, sameNetwork bool) bool {
	_, port, err := net.SplitHostPort(own)
	if err != nil {
		return false
	}
	at, err := netip.ParseAddrPort(address)
	if err != nil || strconv.Itoa(int(at.Port())) != port {
		return false
	}
	ip := at.Addr()
	return !ip.IsUnspecified() && !ip.IsMulticast() && !ip.IsLinkLocalUnicast() && (sameNetwork || !ip.IsLoopback())
}

// may reports whether an address of a peer may be tried now, and counts the try.
func (w *ways) may(peer transport.Peer, address string, now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	known := w.peers[wayKey{peer.Address, peer.ID}]
	if address == peer.Address || known == nil || slices.Contains(known.answered, address) {
		return true
	}
	k := w.knocks[address]
	if k == nil {
		if len(w.knocks) >= waysMax && !w.forgetKnocks(now) {
			return false
		}
		k = &knocks{since: now}
		w.knocks[address] = k
	}
	if now.Sub(k.since) >= wayEvery {
		*k = knocks{since: now}
	}
	k.tries++
	return k.tries <= wayTries
}

// forgetKnocks drops the counts that are over, and reports whether there is room for another one.
func (w *ways) forgetKnocks(now time.Time) bool {
	for address, k := range w.knocks {
		if now.Sub(k.since) >= wayEvery {
			delete(w.knocks, address)
		}
	}
	return len(w.knocks) < waysMax
}

// of lists the addresses of a peer in the order in which they are to be tried.
func (w *ways) of(peer transport.Peer) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	known := w.peers[wayKey{peer.Address, peer.ID}]
	if known == nil {
		return []string{peer.Address}
	}
	return slices.Concat(known.addresses[known.preferred:], known.addresses[:known.preferred])
}

func (w *ways) prefer(peer transport.Peer, address string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if known := w.peers[wayKey{peer.Address, peer.ID}]; known != nil {
		known.preferred = max(0, slices.Index(known.addresses, address))
		if !slices.Contains(known.answered, address) {
			known.answered = append(known.answered, address)
		}
	}
}

// race tries addresses one after the other, the next one when the one before has failed or let a head start pass. The
// first answer wins, also one that says no; the others are cancelled and waited for. If no address leads to the peer,
// the error of its own is returned.
func race[R any](ctx context.Context, own string, addresses []string, try func(context.Context, string) (R, error)) (R,
	error) {
	type result struct {
		value R
		err   error
		n     int
	}
	ctx, cancel := context.WithCancel(ctx)
	results := make(chan result, len(addresses))
	started, ended := 0, 0
	start := func() {
		n := started
		started++
		go func() {
			value, err := try(ctx, addresses[n])
			results <- result{value, err, n}
		}()
	}
	defer func() {
		cancel()
		for ; ended < started; ended++ {
			<-results
		}
	}()
	next := time.NewTimer(headStart)
	defer next.Stop()
	start()
	var failed result
	for ended < started || started < len(addresses) {
		select {
		case r := <-results:
			ended++
			if r.err == nil || final(r.err, addresses[r.n] == own) {
				return r.value, r.err
			}
			if failed.err == nil || addresses[r.n] == own {
				failed = r
			}
		case <-next.C:
		}
		if started < len(addresses) {
			start()
			next.Reset(headStart)
		}
	}
	return failed.value, failed.err
}

// final separates answers of the peer from errors of the way. That another engine answers is final at the peer's own
// address; at another one it may be anybody.
func final(err error, own bool) bool {
	switch errs.From("control", err).Code {
	case errs.PeerUnreachable, errs.Timeout, errs.Protocol:
		return false
	case errs.PeerRestarted, errs.PeerNotAdmitted:
		return own
	}
	return true
}
