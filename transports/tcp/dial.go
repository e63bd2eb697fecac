package tcp

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/nic"
	"github.com/tent-engine/tent/gocore/transport"
)

// dialDue starts the dials that are due and returns the time of the next one.
func (l *link) dialDue(now clock.Time) clock.Time {
	due := clock.Never
	if !l.known {
		return due
	}
	for _, r := range *l.rails.Load() {
		wanted := l.wantedFrom(r)
		switch from := max(r.due, wanted, l.farEndOf(r).mayKnock()); {
		case r.set != nil || r.dial != nil || wanted == clock.Never:
		case now < from:
			due = min(due, from)
		default:
			l.dial(r, now)
		}
	}
	return due
}

// dial begins a try.
func (l *link) dial(r *rail, now clock.Time) {
	d := l.dialOf(r, now)
	l.farEndOf(r).knocked(now)
	if !l.t.spawn(func() {
		err := d.bringUp()
		if !l.runOnLink(func(now clock.Time) { l.dialEnded(r, d, err, now) }) {
			d.closeAll()
		}
	}) {
		r.due = clock.Never
		return
	}
	r.dial = d
}

// dial is one try to bring a rail up: all its lanes side by side, within one limit. The first lane to an endpoint that
// has not proved to be the peer's goes ahead of the others.
type dial struct {
	t        *Transport
	link     *link
	local    netip.Addr
	remote   netip.AddrPort
	greeting greeting
	secret   secret
	shield   shield
	peer     transport.ID // that must answer
	sameHost bool
	began    clock.Time
	every    time.Duration // between first packets that look for the way, before the lanes follow; 0: all lanes at once
	proved   bool          // the endpoint has shown that it is the peer's
	extra    bool          // for lanes that a rail which is up lacks, see widen.go
	obsolete atomic.Bool   // something has changed: a new try is better than this one
	trip     time.Duration
	fds      []int
	ids      []uint64
	seen     []transcript // of each socket, as far as its handshake has come
}

func (l *link) dialOf(r *rail, now clock.Time) *dial {
	if r.routed { // an address that was renewed, another interface that leads there now
		if from, found := nic.RouteSource(r.remote.Addr()); found && from != r.local {
			r.local = from
			l.t.watch.add(from)
		}
	}
	return l.newDial(r, now)
}

func (l *link) newDial(r *rail, now clock.Time) *dial {
	return &dial{t: l.t, link: l, local: r.local, remote: r.remote, peer: l.offer.owner, began: now,
		every: r.scouting(now), sameHost: l.offer.machine == l.t.self.MachineID,
		secret: l.offer.secret, shield: l.offer.shield, proved: l.farEndOf(r).proved,
		greeting: greeting{magic: magic, version: uint32(l.spoken), generation: r.generation + 1,
			attachment: l.offer.attachment, rail: r.index}}
}

// bringUp leaves connected sockets in fds, with the handshakes done, or closes them all.
func (d *dial) bringUp() (err error) {
	begin := time.Now()
	end := begin.Add(d.t.settings.DialTimeout)
	defer func() {
		if err != nil {
			d.closeAll()
		}
	}()
	defer d.t.caught("tcp.dial", &err) // the rail waits for the end of this try
	switch {
	case !d.proved:
		if err := d.connect(); err != nil {
			return err
		}
		if err := d.handshake(begin, end); err != nil {
			return err
		}
	case d.every > 0:
		if err := d.scout(end); err != nil {
			return err
		}
	}
	for len(d.fds) < d.count() {
		if err := d.connect(); err != nil {
			return err
		}
	}
	return d.handshake(begin, end)
}

// closeAll closes the sockets.
func (d *dial) closeAll() {
	for _, fd := range d.fds {
		_ = unix.Close(fd)
	}
	d.fds = nil
}

// handshake makes the sockets that have not done so greet and prove themselves, side by side.
func (d *dial) handshake(begin, end time.Time) error {
	first := len(d.seen)
	for i, fd := range d.fds[first:] {
		if err := d.greet(first+i, fd, end); err != nil {
			return err
		}
		d.trip = cmp.Or(d.trip, time.Since(begin))
	}
	for i, fd := range d.fds[first:] {
		if err := d.prove(first+i, fd, end); err != nil {
			return err
		}
		d.proved = true
	}
	return nil
}

func (d *dial) connect() error {
	fd, err := newSocket(d.local)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	d.fds = append(d.fds, fd)
	// The port is chosen at connect, where two rails with one local address may share it.
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
	if err := tune(fd, &d.t.settings, d.sameHost); err != nil {
		return fmt.Errorf("no-delay: %w", err)
	}
	if err := unix.Bind(fd, sockaddr(netip.AddrPortFrom(d.local, 0))); err != nil {
		return fmt.Errorf("bind %v: %w", d.local, err)
	}
	if err := unix.Connect(fd, sockaddr(d.remote)); err != nil && err != unix.EINPROGRESS {
		return unconnected{d.remote, err}
	}
	return nil
}

func (d *dial) stopped() bool { return d.link.left.Load() || d.obsolete.Load() }

func (d *dial) connected(fd int, end time.Time) error {
	if err := waitFd(fd, unix.POLLOUT, d.stopped, end); err != nil {
		return unconnected{d.remote, err}
	}
	if errno, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || errno != 0 {
		return unconnected{d.remote, cmp.Or(err, error(unix.Errno(errno)))}
	}
	return nil
}

func (d *dial) greet(i, fd int, end time.Time) error {
	if err := d.connected(fd, end); err != nil {
		return err
	}
	g := d.greeting
	group, lane := d.place(i)
	g.group, g.lane = uint8(group), uint8(lane)
	id := d.t.nextLane.Add(1)
	d.ids = append(d.ids, id)
	g.nonce = newNonce()
	seen := transcript{hello: g.hello(id), initiator: d.t.self.ID, responder: d.peer}
	d.seen = append(d.seen, seen)
	if _, err := unix.SendmsgN(fd, seen.hello, nil, nil, unix.MSG_NOSIGNAL); err != nil { // fits into an empty buffer
		return fmt.Errorf("greet %v: %w", d.remote, err)
	}
	return nil
}

// prove checks the challenge, which only the peer can make, and answers it.
func (d *dial) prove(i, fd int, end time.Time) error {
	b := make([]byte, headerBytes+challengeSize)
	for got := 0; got < len(b); {
		if err := waitFd(fd, unix.POLLIN, d.stopped, end); err != nil {
			return fmt.Errorf("challenge from %v: %w", d.remote, err)
		}
		n, errno := receive(fd, b[got:])
		switch {
		case errno == unix.EAGAIN || errno == unix.EINTR:
		case errno != 0:
			return fmt.Errorf("challenge from %v: %w", d.remote, errno)
		case n == 0:
			return fmt.Errorf("%v turned the lane away", d.remote)
		}
		got += n
	}
	proof, err := d.seen[i].answer(&d.secret, b)
	if err == nil {
		_, err = unix.SendmsgN(fd, proof, nil, nil, unix.MSG_NOSIGNAL)
	}
	if err != nil {
		return fmt.Errorf("prove to %v: %w", d.remote, err)
	}
	return nil
}

// dialEnded takes a dial's result on the link's goroutine.
func (l *link) dialEnded(r *rail, d *dial, err error, now clock.Time) {
	r.dial = nil
	defer l.answerProbes(r)
	if d.proved && d.remote == r.remote {
		l.farEndOf(r).proved = true
	}
	if err == nil && (!l.serves() || l.offer.attachment != d.greeting.attachment) {
		d.closeAll()
		return
	}
	if r.set != nil {
		if err != nil {
			return // the old lanes may yet recover
		}
		l.railDown(r, r.ours(errs.New(errs.Withdrawn, "tcp.dial", "new connections take over")), now)
	}
	if err == nil {
		if err = l.railUp(r, d, now); err != nil {
			l.railDown(r, r.ours(errs.Wrap(errs.Internal, "tcp.dial", err)), now)
		}
	}
	r.lastErr = err
	if err == nil {
		return
	}
	if scarce(err) {
		l.farEndOf(r).notKnocked()
	}
	if d.obsolete.Load() {
		r.due = now // this try was cut off by news
		return
	}
	r.scheduleRetry(d.began, now)
	l.checkGone(now)
	if !l.calling && l.callTries > 0 { // else the control plane's answer shows which end it is
		l.reportDown(l.dialError())
	}
}

// unconnected is the error of a try that nobody has accepted.
type unconnected struct {
	remote netip.AddrPort
	err    error
}

func (u unconnected) Error() string { return fmt.Sprintf("connect %v: %v", u.remote, u.err) }

func (u unconnected) Unwrap() error { return u.err }

// dialError is the last dial's error as the cause of a link that is down; nil if no dial has failed.
func (l *link) dialError() *errs.Error {
	for _, r := range *l.rails.Load() {
		if r.lastErr == nil {
			continue
		}
		e := errs.Wrap(errs.PeerUnreachable, "tcp.dial", r.lastErr).WithScope(errs.ScopeLink, errs.SidePath)
		var closed unconnected
		switch {
		case scarce(r.lastErr):
			e.Code, e.Side = errs.TooManyRequests, errs.SideLocal
		case errors.As(r.lastErr, &closed):
			e.WithHint("a firewall has to let the port of data through, too: %v, transports/tcp/port at the peer",
				closed.remote)
		}
		return e.WithPeer(l.peer.Address, Name, r.name())
	}
	return nil
}

// railUp makes lanes of a dial's sockets and reports the rail to the core. A rail with an error has to go down.
func (l *link) railUp(r *rail, d *dial, now clock.Time) (err error) {
	defer l.t.caught("tcp.dial", &err)
	r.generation++
	r.since, r.trip = now, d.trip
	set := &laneSet{rail: r, generation: r.generation, owner: d.peer, trip: d.trip}
	r.set = set
	if err := l.join(set, d); err != nil {
		return err
	}
	r.live.Store(set)
	l.advance(linkRailUp)
	l.callTries, l.callErr = 0, nil
	at := l.t.places.placeOf(r.local)
	l.t.sink.RailUp(transport.RailInfo{Rail: set.id(), Local: r.local.String(), Remote: r.remote.String(),
		Device: at.device, Node: at.node, Bandwidth: at.bandwidth, BytesMax: l.t.settings.WindowBytes,
		SlicesMax: l.requests(), Alternates: r.alternate})
	return nil
}

// requests is the credit of a lane: the smaller of ours and the peer's, as a power of two.
func (l *link) requests() int {
	n := requestsMin
	for n*2 <= min(int(l.offer.requests), l.t.settings.CreditRequests) {
		n *= 2
	}
	return n
}
