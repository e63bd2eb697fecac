package control

import (
	"container/list"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tent-engine/tent/gocore/transport"
)

// guests are the accepted connections. gRPC forgets connections before the end of their handshake, and would wait for
// them at shutdown; here they are known, bounded in number and memory, and can be closed.
//
//	silent --first byte--> spoke --first call that names us--> peer's
//	   \______________________\________________________________\____> closed: by the peer, or to make room
type guests struct {
	limits  Limits
	refused func(reason transport.Refusal, from string, cause error)
	turns   *turnstile

	mu        sync.Mutex
	all       *list.List               // of *guest; the one that was idle longest is the first
	callers   map[transport.ID]*caller // engines that have made a call on a connection that is there
	silent    census                   // silent guests of each host
	strangers census                   // guests without a caller, of each network
	received  int                      // bytes of messages that are not there as a whole
	closing   bool
}

// census counts by the place that guests came from. A flood asks it for each connection, so it is kept instead of made.
type census struct {
	at  map[string]int
	all int
}

func newCensus() census { return census{at: map[string]int{}} }

func (c *census) add(place string, n int) {
	c.all += n
	if c.at[place] += n; c.at[place] == 0 {
		delete(c.at, place)
	}
}

// most returns the place with most of them.
func (c *census) most() (place string) {
	for each, n := range c.at {
		if n > c.at[place] {
			place = each
		}
	}
	return place
}

// guest is one accepted connection.
type guest struct {
	net.Conn
	of        *guests
	host      string        // that it came from
	network   string        // of the host
	left      chan struct{} // closed with the connection
	spoke     atomic.Bool   // sent a byte that was read
	receiving atomic.Int32  // calls with a message that is not there as a whole
	owes      atomic.Int64  // nanoseconds that its network owes for it, until it names itself
	judged    atomic.Uint64 // the newest rules of the credentials that admit it
	identity  string        // that its handshake proved; fixed before the first call
	came      time.Time
	parked    *turn       // for which it waited before its handshake; nil: it did not
	holds     atomic.Bool // the turn, until its handshake begins

	// Under guests.mu.
	caller   *caller // nil: a stranger
	pace     pace    // of a stranger
	calls    int     // under way
	received int     // bytes since a message began to arrive
	silent   bool    // counted in guests.silent: it sends nothing although it is listened to
	place    *list.Element
	gone     bool
	expiry   *time.Timer // closes it at the end of its certificate; nil without an end
}

// caller is one engine with its connections.
type caller struct {
	id     transport.ID
	guests map[*guest]struct{}
	pace   pace
}

// guestAddr is the remote address of a guest; calls find their guest by it.
type guestAddr struct {
	net.Addr
	guest *guest
}

func newGuests(o *Options) *guests {
	return &guests{limits: o.Limits, refused: o.Refused, turns: newTurnstile(o.Limits.Connections), all: list.New(),
		callers: map[transport.ID]*caller{}, silent: newCensus(), strangers: newCensus()}
}

// admit makes a connection a guest, and closes another one if that is needed for it.
func (s *guests) admit(conn net.Conn) *guest {
	host := hostIn(conn.RemoteAddr())
	g := &guest{Conn: conn, of: s, host: host, network: NetworkOf(host), left: make(chan struct{}),
		came: time.Now()}
	s.mu.Lock()
	leaves, full := s.makeRoom(host)
	if s.closing || (full && leaves == nil) {
		s.mu.Unlock()
		if full {
			_ = s.refuse(g, transport.RefusedLimit, "all of %d connections have calls under way", s.limits.Connections)
		}
		return nil
	}
	g.place = s.all.PushBack(g)
	s.strangers.add(g.network, 1)
	s.setSilent(g, true)
	s.mu.Unlock()
	s.drop(leaves, "its place was needed: silent, without a call, or idle for longest")
	return g
}

// pays makes the network of a guest owe a time, until the guest names itself.
func (g *guest) pays(took time.Duration) {
	g.owes.Add(int64(took))
	g.of.turns.charge(g.network, took)
}

// makeRoom chooses the connection that leaves for a new one of a host, nil for none. The network that most strangers
// came from makes room for newcomers, so that a flood closes its own connections and not those of other hosts. The
// caller holds mu.
func (s *guests) makeRoom(host string) (leaves *guest, full bool) {
	switch {
	case s.silent.at[host] >= s.limits.SilentPerHost:
		return s.idlest(func(g *guest) bool { return g.host == host && g.silent }), true
	case s.strangers.all >= s.limits.Strangers:
		crowd := s.strangers.most()
		return s.idlest(func(g *guest) bool { return g.caller == nil && g.network == crowd }), true
	case s.all.Len() >= s.limits.Connections:
		return s.idlest(func(*guest) bool { return true }), true
	}
	return nil, false
}

// setSilent counts a guest among the silent ones, or no more. The caller holds mu.
func (s *guests) setSilent(g *guest, silent bool) {
	if g.silent == silent || g.gone {
		return
	}
	g.silent = silent
	if silent {
		s.silent.add(g.host, 1)
	} else {
		s.silent.add(g.host, -1)
	}
}

// listens notes that a guest is listened to: it is silent until it says a word.
func (s *guests) listens(g *guest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setSilent(g, !g.spoke.Load())
}

// park has a guest of an indebted network wait for its turn, and reports whether it waits. It is not silent meanwhile,
// since nobody listens.
func (s *guests) park(g *guest) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g.gone || !s.turns.park(g) {
		return false
	}
	s.setSilent(g, false)
	return true
}

// NetworkOf returns a host's address, of IPv6 the 64 bits of its network. A host can give itself all the addresses of
// one (RFC 4291, section 2.5.4).
func NetworkOf(host string) string {
	if address, err := netip.ParseAddr(host); err == nil && address.Unmap().Is6() {
		if network, err := address.WithZone("").Prefix(64); err == nil {
			return network.String()
		}
	}
	return host
}

// idlest returns the guest that has least to lose by leaving: silent ones come first, then strangers, then those that
// have done nothing for longest. One with a call under way stays. The caller holds mu.
func (s *guests) idlest(among func(*guest) bool) (found *guest) {
	rank := func(g *guest) int {
		switch {
		case g.silent:
			return 0
		case g.caller == nil:
			return 1
		}
		return 2
	}
	best := 2
	switch {
	case s.silent.all > 0:
		best = 0
	case s.strangers.all > 0:
		best = 1
	}
	for at := s.all.Front(); at != nil && (found == nil || rank(found) > best); at = at.Next() {
		g := at.Value.(*guest)
		if (g.calls > 0 && g.caller != nil) || !among(g) {
			continue
		}
		if found == nil || rank(g) < rank(found) {
			found = g
		}
	}
	return found
}

// drop closes a connection to make room; nil is none. The caller does not hold mu.
func (s *guests) drop(g *guest, why string) {
	if g != nil {
		_ = s.refuse(g, transport.RefusedLimit, "a connection was closed: %s", why)
		_ = g.Close()
	}
}

// identified makes a stranger a guest of the engine that it has proved to be. It reports whether this was the first
// call on the connection, and whether the engine had none. It returns an error when the engine has too many
// connections, all with calls under way.
func (s *guests) identified(g *guest, id transport.ID) (first, isNew bool, err error) {
	s.mu.Lock()
	if g.gone || (g.caller != nil && g.caller.id == id) {
		s.mu.Unlock()
		return false, false, nil
	}
	c := s.callers[id]
	if isNew = c == nil; isNew {
		c = &caller{id: id, guests: map[*guest]struct{}{}, pace: g.pace}
		s.callers[id] = c
	}
	var leaves *guest
	if len(c.guests) >= s.limits.ConnectionsPerPeer {
		if leaves = s.idlest(func(o *guest) bool { return o.caller == c }); leaves == nil {
			s.mu.Unlock()
			return false, false, s.refuse(g, transport.RefusedLimit,
				"more than %d connections of one peer have calls under way", s.limits.ConnectionsPerPeer).
				WithHint("security/limits/connections_per_peer of the engine that was called")
		}
	}
	s.leaveCaller(g)
	g.caller = c
	s.turns.charge(g.network, -time.Duration(g.owes.Swap(0)))
	c.guests[g] = struct{}{}
	s.mu.Unlock()
	s.drop(leaves, "its peer has opened another one")
	return true, isNew, nil
}

// expel closes the connections of an engine that are meant.
func (s *guests) expel(id transport.ID, meant func(*guest) bool) {
	var ended []*guest
	s.mu.Lock()
	if c := s.callers[id]; c != nil {
		for g := range c.guests {
			if meant(g) {
				ended = append(ended, g)
			}
		}
	}
	s.mu.Unlock()
	for _, g := range ended {
		_ = g.Close()
	}
}

// endsAt closes the connection at the end of its certificate, the zero time for never. The peer connects again at its
// next call, with the certificate that it has then.
func (g *guest) endsAt(until time.Time) {
	if until.IsZero() {
		return
	}
	g.of.mu.Lock()
	defer g.of.mu.Unlock()
	if !g.gone {
		g.expiry = time.AfterFunc(time.Until(until), func() { _ = g.Close() })
	}
}

// leaveCaller takes a guest from its caller, or from the strangers. The caller of the function holds mu.
func (s *guests) leaveCaller(g *guest) {
	c := g.caller
	if c == nil {
		s.strangers.add(g.network, -1)
		return
	}
	delete(c.guests, g)
	if len(c.guests) == 0 {
		delete(s.callers, c.id)
	}
}

// connected reports whether an engine has a connection.
func (s *guests) connected(id transport.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.callers[id] != nil
}

// moved notes that a guest does something. The caller holds mu.
func (s *guests) moved(g *guest) { s.all.MoveToBack(g.place) }

// begin, arrived and end follow a call: its first byte, its whole message, its end.
func (s *guests) begin(g *guest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g.calls++
	g.receiving.Add(1)
	s.moved(g)
}

func (s *guests) arrived(r *reception) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.arrivedLocked(r)
}

func (s *guests) arrivedLocked(r *reception) {
	if r.arrived {
		return
	}
	r.arrived = true
	if r.guest.receiving.Add(-1) == 0 {
		s.received -= r.guest.received
		r.guest.received = 0
	}
}

func (s *guests) end(r *reception) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.arrivedLocked(r)
	r.guest.calls--
	s.moved(r.guest)
}

// receive counts bytes of messages that are not there as a whole. Beyond the limit the guest with most of them leaves:
// an honest message is there in milliseconds.
func (s *guests) receive(g *guest, n int) {
	s.mu.Lock()
	if g.gone || g.receiving.Load() == 0 {
		s.mu.Unlock()
		return
	}
	g.received += n
	s.received += n
	var most *guest
	for at := s.all.Front(); at != nil && s.received > s.limits.Reception; at = at.Next() {
		if o := at.Value.(*guest); most == nil || o.received > most.received {
			most = o
		}
	}
	s.mu.Unlock()
	s.drop(most, "too many bytes of messages that have not arrived whole")
}

// charge takes n calls from the rate of a guest's engine, and returns how long it must wait for them.
func (s *guests) charge(g *guest, n int, limit time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &g.pace
	if g.caller != nil {
		p = &g.caller.pace
	}
	return p.take(time.Now(), n, s.limits.CallsPerSecond, limit)
}

func (s *guests) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all.Len()
}

// close admits nobody any more and ends the connections that never sent a byte, or all.
func (s *guests) close(all bool) {
	s.mu.Lock()
	s.closing = true
	var ended []*guest
	for at := s.all.Front(); at != nil; at = at.Next() {
		if g := at.Value.(*guest); all || !g.spoke.Load() {
			ended = append(ended, g)
		}
	}
	s.mu.Unlock()
	for _, g := range ended {
		_ = g.Close()
	}
}

// RemoteAddr leads calls to their guest.
func (g *guest) RemoteAddr() net.Addr { return guestAddr{g.Conn.RemoteAddr(), g} }

// Read notes that the peer has spoken, and counts the bytes while a message is under way.
func (g *guest) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	if n > 0 {
		if !g.spoke.Load() {
			g.spoke.Store(true)
			g.of.listens(g)
		}
		if g.receiving.Load() > 0 {
			g.of.receive(g, n)
		}
	}
	return n, err
}

// Close forgets the guest.
func (g *guest) Close() error {
	s := g.of
	s.mu.Lock()
	if !g.gone {
		s.setSilent(g, false)
		g.gone = true
		close(g.left)
		s.all.Remove(g.place)
		s.leaveCaller(g)
		s.received -= g.received
		g.received = 0
		if g.expiry != nil {
			g.expiry.Stop()
		}
	}
	s.mu.Unlock()
	s.turns.abandon(g)
	return g.Conn.Close()
}
