package rdma

import (
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
	"github.com/tent-engine/tent/transports/rdma/verbs"
)

// guest is a peer's link to us, at our end: the queue pairs that receive its requests. They post nothing. Everything
// that a guest may do, its queue pairs carry out without us; so its fence is their reset.
type guest struct {
	key   guestKey
	peer  transport.Peer
	heard time.Time // when its latest call came; guarded by guests.mu

	mu      sync.Mutex // short: never held while a pair is connected
	ended   bool
	tried   bool // a goroutine tries to dismiss it until it has ended
	rails   map[uint32]*guestRail
	unheard map[uint64]news // by region: the guest was silent, and hears it before its lanes work again
}

// guestRail is our end of a rail of a guest. A connection may wait seconds for a link address that nobody answers for,
// so each rail has a turn of its own: others connect meanwhile, and a fence does not wait.
type guestRail struct {
	busy  chan struct{}        // holds a token while somebody makes, connects or closes its pairs
	turn  uint64               // the newest that was asked for, guarded by guest.mu
	lanes map[uint8]*guestLane // changed under guest.mu by the holder of the token

	answered uint64 // the turn of answer, as all below of the holder of the token
	answer   []byte
	failed   *errs.Error
}

type guestKey struct {
	id   transport.ID
	link uint64
}

type guestLane struct {
	device   *device
	pair     *verbs.Pair
	in       *waiting
	received uint32 // the number of the packet that was due at the last look; used by the holder of the token
}

// Limits of a peer, and of all.
const (
	guestsPerPeer = 256
	guestsMax     = 1 << 14
	railsMax      = 64
	guestRequests = 1 // a queue pair that posts nothing takes one request all the same
)

// guests is the table of them.
type guests struct {
	mu    sync.Mutex
	byKey map[guestKey]*guest
	count map[transport.ID]int
	came  uint64                  // of other engines, ever
	out   map[transport.ID]*exile // peers that were disconnected, each by a decision about it
}

func (t *Transport) guest(from transport.Peer, link uint64, make bool) (*guest, *errs.Error) {
	key := guestKey{from.ID, link}
	t.guests.mu.Lock()
	defer t.guests.mu.Unlock()
	g := t.guests.byKey[key]
	switch {
	case g != nil:
		g.heard = time.Now()
		return g, nil
	case t.guests.isOutLocked(from.ID):
		return nil, t.guests.out[from.ID].refusal(make)
	case !make:
		return nil, errs.New(errs.Stale, "rdma.serve", "a link that is not attached").
			WithScope(errs.ScopeLink, errs.SideRemote)
	case t.guests.count[from.ID] >= guestsPerPeer:
		return nil, errs.New(errs.TooManyRequests, "rdma.serve", "%d links of one peer, which is the limit",
			guestsPerPeer)
	case len(t.guests.byKey) >= guestsMax:
		return nil, errs.New(errs.TooManyRequests, "rdma.serve", "%d links of all peers, which is the limit", guestsMax)
	}
	g = &guest{key: key, peer: from, heard: time.Now(), rails: map[uint32]*guestRail{}, unheard: map[uint64]news{}}
	t.guests.byKey[key] = g
	t.guests.count[from.ID]++
	if !from.Self {
		t.guests.came++
	}
	return g, nil
}

// foreigners reports whether a guest of another engine is here, and how many have come ever.
func (t *guests) foreigners() (here bool, came uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, g := range t.byKey {
		if !g.peer.Self {
			return true, t.came
		}
	}
	return false, t.came
}

// left counts the guests of other engines that have come and gone: keys that are made now are not for them. One that
// is here may learn of the keys, and be gone before a fence.
func (t *guests) left() uint64 {
	here, came := t.foreigners()
	if here {
		came--
	}
	return came
}

// once carries out a call about a rail. One that went two ways comes twice (control/ways.go): the peer then takes
// either answer, so they are the same.
func (g *guest) once(ctx context.Context, number uint32, turn uint64, call func(*guestRail) ([]byte, *errs.Error),
) ([]byte, *errs.Error) {
	r, err := g.begin(ctx, number, turn)
	if err != nil {
		return nil, err
	}
	defer func() { <-r.busy }()
	if r.answered != turn {
		r.answer, r.failed = call(r)
		r.answered = turn
	}
	return r.answer, r.failed
}

// begin gives a call of the peer its turn at a rail, until the token is taken out of busy. A call that a newer one has
// overtaken, or that its peer waits for no more, ends.
func (g *guest) begin(ctx context.Context, number uint32, turn uint64) (*guestRail, *errs.Error) {
	g.mu.Lock()
	r := g.rails[number]
	if r == nil {
		r = &guestRail{busy: make(chan struct{}, 1), lanes: map[uint8]*guestLane{}}
		g.rails[number] = r
	}
	err := g.admitLocked(r, turn)
	r.turn = max(r.turn, turn)
	g.mu.Unlock()
	if err != nil {
		return nil, err
	}
	select {
	case r.busy <- struct{}{}:
	case <-ctx.Done():
		return nil, errs.New(errs.Timeout, "rdma.serve", "another connection of the rail is under way").
			WithScope(errs.ScopeRail, errs.SideLocal)
	}
	g.mu.Lock()
	err = g.admitLocked(r, turn)
	g.mu.Unlock()
	if err != nil {
		<-r.busy
		return nil, err
	}
	return r, nil
}

// admitLocked refuses a call about a rail that is older than the last one.
func (g *guest) admitLocked(r *guestRail, turn uint64) *errs.Error {
	switch {
	case g.ended: // no proof for the peer before its queue pairs have ended
		return errs.New(errs.Timeout, "rdma.serve", "the link is being closed").
			WithScope(errs.ScopeLink, errs.SideRemote)
	case turn < r.turn || turn == 0:
		return errs.New(errs.StaleGeneration, "rdma.serve", "a call of before").
			WithScope(errs.ScopeRail, errs.SideRemote)
	}
	return nil
}

// list returns the rails of the guest.
func (g *guest) list() []*guestRail {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Collect(maps.Values(g.rails))
}

// all returns the guests of a peer, of everybody for the zero ID.
func (t *guests) all(id transport.ID) (list []*guest) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, g := range t.byKey {
		if id.IsZero() || key.id == id {
			list = append(list, g)
		}
	}
	return list
}

// Serve implements transport.Transport.
func (t *Transport) Serve(ctx context.Context, from transport.Peer, message []byte) (answer []byte, err error) {
	if !t.enter() {
		select { // the error proves that nothing moves here any more
		case <-t.emptied:
			return nil, kit.Closed("rdma.serve")
		case <-ctx.Done():
			return nil, errs.Wrap(errs.Timeout, "rdma.serve", ctx.Err())
		}
	}
	defer t.calls.Done()
	r := kit.NewReader(message)
	kind := r.U8()
	if r.U32() != magic {
		return nil, malformed(kind)
	}
	switch kind {
	case kindHello:
		answer, err = wrapped(t.serveHello(from, r))
	case kindConnect:
		answer, err = wrapped(t.serveConnect(ctx, from, r))
	case kindLearn:
		answer, err = wrapped(t.serveLearn(from, r))
	case kindDetach:
		answer, err = wrapped(t.serveDetach(from, r))
	case kindDevices:
		answer, err = wrapped(t.serveDevices(from, r))
	case kindRelease:
		answer, err = wrapped(t.serveRelease(ctx, from, r))
	case kindNews:
		answer, err = wrapped(t.serveNews(ctx, from, r))
	case kindGoodbye:
		answer, err = wrapped(t.serveGoodbye(from, r))
	default:
		return nil, malformed(kind)
	}
	return answer, err
}

// wrapped keeps a nil *Error from becoming an error that is not nil.
func wrapped(answer []byte, err *errs.Error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	return answer, nil
}

func (t *Transport) serveHello(from transport.Peer, r *kit.Reader) ([]byte, *errs.Error) {
	link, version := r.U64(), r.U8()
	if !r.Whole() || version != protocol {
		return nil, malformed(kindHello)
	}
	if _, err := t.guest(from, link, true); err != nil {
		return nil, err
	}
	list := t.nics() // once: one may come meanwhile
	answer := []byte{byte(len(list))}
	for _, d := range list {
		answer = kit.AppendText(answer, d.name)
	}
	return answer, nil
}

func (t *Transport) serveConnect(ctx context.Context, from transport.Peer, r *kit.Reader) ([]byte, *errs.Error) {
	link, turn, number, index := r.U64(), r.U64(), r.U32(), r.U8()
	theirs := decodeEnd(r)
	if !r.Whole() || !theirs.valid() || number >= railsMax || int(index) >= len(t.nics()) {
		return nil, malformed(kindConnect)
	}
	g, err := t.guest(from, link, false)
	if err != nil {
		return nil, err
	}
	return g.once(ctx, number, turn, func(rail *guestRail) ([]byte, *errs.Error) {
		ours, failed := g.receive(t.nics()[index], rail, &theirs)
		if failed != nil {
			return nil, errs.Wrap(errs.RdmaError, "rdma.serve", failed).WithScope(errs.ScopeRail, joinSide(failed))
		}
		return g.news(ours.encode(nil)), nil
	})
}

// news appends those that the guest has not heard.
func (g *guest) news(answer []byte) []byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	answer = binary.LittleEndian.AppendUint32(answer, uint32(min(len(g.unheard), newsMost)))
	for _, n := range g.unheard {
		answer = n.encode(answer)
	}
	return answer
}

// receive closes our ends of lanes and connects new ones with the peer's. Nothing that came by the older ones is
// carried out any more when it has begun to connect. The caller holds the rail's token.
func (g *guest) receive(d *device, rail *guestRail, theirs *end) (*end, error) {
	if !d.use() {
		return nil, d.errLost()
	}
	defer d.unuse()
	address, err := d.answering(theirs)
	if err != nil {
		return nil, err
	}
	port, err := d.verbs.Port(d.t.settings.Port)
	if err != nil {
		return nil, err
	}
	ours := &end{gid: address.GID, kind: kindOf(&address), lid: port.LID, route: port.Global,
		reads: d.served(theirs.reads)}
	ours.mtu = min(theirs.mtu, uint32(port.MTU), d.t.settings.mtu())
	for _, far := range theirs.lanes {
		if err := g.closeLanes(rail, func(l *guestLane) bool {
			return l.device != d || l == rail.lanes[far.lane]
		}); err != nil {
			return nil, err
		}
		pair, in, err := d.guestPair(g.peer)
		if err != nil {
			return nil, err
		}
		g.mu.Lock()
		rail.lanes[far.lane] = &guestLane{device: d, pair: pair, in: in}
		g.mu.Unlock()
		path := d.path(theirs, &far, ours, newPSN())
		path.SourceGID, path.Global = uint8(address.Index), global(&address, ours, theirs)
		path.Access = uint8(verbs.RemoteRead | verbs.RemoteWrite)
		if err := join(pair, &path); err != nil {
			return nil, err
		}
		ours.lanes = append(ours.lanes, laneEnd{lane: far.lane, pair: pair.Number, psn: path.OwnPSN})
	}
	return ours, nil
}

func join(pair *verbs.Pair, path *verbs.Path) error {
	if err := pair.Init(path); err != nil {
		return err
	}
	return pair.Connect(path)
}

// joinSide blames the path where the kernel found no way to the far end, as a silent switch lets it. All other failures
// to connect are this device's.
func joinSide(err error) errs.Side {
	for _, wayless := range [...]error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.ETIMEDOUT} {
		if errors.Is(err, wayless) {
			return errs.SidePath
		}
	}
	return errs.SideLocal
}

func (t *Transport) serveLearn(from transport.Peer, r *kit.Reader) ([]byte, *errs.Error) {
	link, number := r.U64(), r.U64()
	if !r.Whole() {
		return nil, malformed(kindLearn)
	}
	g, err := t.guest(from, link, false)
	if err != nil {
		return nil, err
	}
	n := news{region: number, closed: true}
	if own := t.regions.Lookup(transport.LocalKey(number)); own != nil {
		n = own.learn(g)
	}
	return n.encode(nil), nil
}

func (t *Transport) serveDetach(from transport.Peer, r *kit.Reader) ([]byte, *errs.Error) {
	link := r.U64()
	if !r.Whole() {
		return nil, malformed(kindDetach)
	}
	if g, err := t.guest(from, link, false); err == nil {
		if err := t.dismiss(g); err != nil {
			return nil, errs.From("rdma.serve", err)
		}
	}
	return []byte{1}, nil
}

// serveRelease closes our ends of a rail, for a peer that cannot connect them now.
func (t *Transport) serveRelease(ctx context.Context, from transport.Peer, r *kit.Reader) ([]byte, *errs.Error) {
	link, turn, number := r.U64(), r.U64(), r.U32()
	if !r.Whole() || number >= railsMax {
		return nil, malformed(kindRelease)
	}
	g, err := t.guest(from, link, false)
	if err != nil {
		return nil, err
	}
	return g.once(ctx, number, turn, func(rail *guestRail) ([]byte, *errs.Error) {
		if err := g.closeLanes(rail, func(*guestLane) bool { return true }); err != nil {
			return nil, errs.From("rdma.serve", err)
		}
		return []byte{1}, nil
	})
}

// serveNews answers when no slice that the news forbid is out any more.
func (t *Transport) serveNews(ctx context.Context, from transport.Peer, r *kit.Reader) ([]byte, *errs.Error) {
	link, n := transport.Link(r.U64()), decodeNews(r)
	if !r.Whole() {
		return nil, malformed(kindNews)
	}
	for number, l := range t.links.All() {
		if number == link && l.peer.ID == from.ID {
			ctx, cancel := context.WithTimeout(ctx, drainLimit)
			defer cancel()
			if !l.hear(ctx, n) {
				return nil, errs.New(errs.Timeout, "rdma.serve", "slices of before are still out")
			}
		}
	}
	return []byte{1}, nil
}

// drainLimit bounds the wait of an initiator for slices that are out; silence is how long its owner waits for it, less
// than transport.HearingLimit.
const (
	drainLimit = 700 * time.Millisecond
	silence    = 900 * time.Millisecond
)

func (t *Transport) serveGoodbye(from transport.Peer, r *kit.Reader) ([]byte, *errs.Error) {
	if r.U64() != 0 || !r.Whole() {
		return nil, malformed(kindGoodbye)
	}
	for _, g := range t.guests.all(from.ID) {
		if !g.peer.Self {
			t.expel(g)
		}
	}
	for _, l := range t.links.All() {
		if l.peer.ID == from.ID && !l.peer.Self {
			l.fail(l.gone(errs.PeerUnreachable, "the peer has closed"))
		}
	}
	return []byte{1}, nil
}
