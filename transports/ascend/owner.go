package ascend

import (
	"context"
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/ascend/hixl"
	"github.com/tent-engine/tent/transports/kit"
)

// An owner's end of the links of its peers. NPUs of peers read and write its memory without asking, so it asks their
// engines first.
//
//	Revoke ── news to every guest that learned of the region ──answers: nothing of before is out──▶ quiet
//	             └── no answer in time ──▶ our engine of HIXL begins again ──▶ quiet; the guest hears at its next hello,
//	                 which names all that it reaches
//
// A registration ends likewise: guests are asked to part, and cannot connect until it has ended.

// silence bounds the wait for a guest, below transport.HearingLimit. drainLimit bounds the guest's wait for slices that
// are out; then it ends their link.
const (
	silence    = 900 * time.Millisecond
	drainLimit = 300 * time.Millisecond
)

// guestsPerPeer bounds the links of one peer.
const guestsPerPeer = 256

// guest is a peer's link to us, at our end.
type guest struct {
	key  guestKey
	peer transport.Peer

	mu        sync.Mutex
	connected bool // it may be: it said hello, and has not parted since
}

type guestKey struct {
	id   transport.ID
	link uint64
}

// guests is the table of them.
type guests struct {
	mu    sync.Mutex
	byKey map[guestKey]*guest
}

// of returns the guest of a link, which it makes.
func (t *guests) of(from transport.Peer, link uint64) (*guest, *errs.Error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	key, others := guestKey{from.ID, link}, 0
	if g := t.byKey[key]; g != nil {
		return g, nil
	}
	for known := range t.byKey {
		if known.id == from.ID {
			others++
		}
	}
	if others >= guestsPerPeer {
		return nil, errs.New(errs.TooManyRequests, "ascend.serve", "%d links of one peer, which is the limit",
			guestsPerPeer)
	}
	g := &guest{key: key, peer: from}
	t.byKey[key] = g
	return g, nil
}

// Visitors implements transport.Visited.
func (t *ascend) Visitors() (list []transport.ID) {
	for _, g := range t.guests.all() {
		list = append(list, g.peer.ID)
	}
	return list
}

func (t *guests) all() (list []*guest) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, g := range t.byKey {
		list = append(list, g)
	}
	return list
}

// learn enters a guest as one that knows the region, and returns the news that hold for it.
func (r *region) learn(g *guest) news {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.guests[g] = true
	floor, closed := r.door.Last(g.key.id)
	return news{uint64(r.key), floor, closed}
}

// dismiss forgets a guest that has parted.
func (t *ascend) dismiss(g *guest) {
	t.guests.mu.Lock()
	delete(t.guests.byKey, g.key)
	t.guests.mu.Unlock()
	for _, r := range t.regions.All() {
		r.mu.Lock()
		delete(r.guests, g)
		r.mu.Unlock()
	}
}

// Revoke implements transport.Transport.
func (t *ascend) Revoke(ctx context.Context, key transport.LocalKey, peer *transport.Peer,
	epoch transport.Epoch) error {
	r := t.regions.Lookup(key)
	if r == nil {
		return kit.NoRegion("ascend.revoke", key)
	}
	t.revoke(ctx, r, peer, epoch)
	return nil
}

func (t *ascend) revoke(ctx context.Context, r *region, peer *transport.Peer, epoch transport.Epoch) {
	r.door.Shut(peer, epoch) // before the list of guests: one that learns of the region now sees it
	r.mu.Lock()
	var list []*guest
	for g := range r.guests {
		if peer == nil || peer.ID == g.key.id {
			list = append(list, g)
		}
	}
	r.mu.Unlock()
	n := news{region: uint64(r.key), floor: epoch, closed: epoch == transport.ForGood}
	deaf := t.ask(ctx, list, func(g *guest) []byte { return n.encode(message(kindNews, g.key.link)) })
	if slices.ContainsFunc(deaf, (*guest).isConnected) {
		t.instance.replace("a peer did not answer to a fence")
		part(deaf)
	}
}

// ask calls guests side by side, and returns those that did not answer. The end of a guest's process takes two proofs:
// a connection that broke looks like it, and the next call finds out.
func (t *ascend) ask(ctx context.Context, list []*guest, question func(*guest) []byte) (deaf []*guest) {
	ctx, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	var mu sync.Mutex
	var wait sync.WaitGroup
	for _, g := range list {
		wait.Go(func() {
			_, err := t.host.Call(ctx, g.peer, question(g))
			if err != nil && errs.From(Name, err).EndsPeer() {
				_, err = t.host.Call(ctx, g.peer, question(g))
			}
			switch {
			case err == nil:
			case ended(err):
				t.dismiss(g)
			default:
				mu.Lock()
				deaf = append(deaf, g)
				mu.Unlock()
			}
		})
	}
	wait.Wait()
	return deaf
}

// ended reports an error that proves that a peer has no such link any more.
func ended(err error) bool {
	e := errs.From(Name, err)
	return e.Code == errs.Stale || e.Code == errs.EngineClosed || e.EndsPeer()
}

// isConnected reports whether the guest may have a link.
func (g *guest) isConnected() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.connected
}

func (g *guest) setConnected(connected bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.connected = connected
}

// part notes that guests have no link.
func part(list []*guest) {
	for _, g := range list {
		g.setConnected(false)
	}
}

// apart carries work out while no link is there: neither those of guests nor our own. Guests that do not answer lose
// theirs with our engine of HIXL. It returns the error of the work.
func (t *ascend) apart(ctx context.Context, work func(engine *hixl.Engine) *errs.Error) error {
	t.mu.Lock()
	t.paused++ // nobody connects from now on
	t.mu.Unlock()
	t.kickAll()
	defer func() {
		t.mu.Lock()
		t.paused--
		t.changed.Broadcast()
		t.mu.Unlock()
		t.kickAll()
	}()
	list := slices.DeleteFunc(t.guests.all(), func(g *guest) bool { return !g.isConnected() })
	deaf := t.ask(ctx, list, func(g *guest) []byte { return message(kindPart, g.key.link) })
	limited, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	t.mu.Lock()
	alone := t.await(limited, func() bool { return t.seats == 0 })
	t.mu.Unlock()
	if len(deaf) > 0 || !alone {
		t.instance.replace("a link does not end")
	}
	part(list)
	var failed *errs.Error
	err := t.instance.with(func(engine *hixl.Engine, _ uint64) { failed = work(engine) })
	if err != nil || failed == nil { // without an engine nothing is registered
		return nil
	}
	return failed
}

// Serve implements transport.Transport.
func (t *ascend) Serve(ctx context.Context, from transport.Peer, message []byte) (answer []byte, err error) {
	if t.life.Closed() {
		select { // the error proves that nothing of ours moves any more
		case <-t.quiet:
			return nil, kit.Closed("ascend.serve")
		case <-ctx.Done():
			return nil, errs.Wrap(errs.Timeout, "ascend.serve", ctx.Err())
		}
	}
	r := kit.NewReader(message)
	kind := r.U8()
	if r.U32() != magic {
		return nil, malformed(kind)
	}
	link := r.U64()
	switch kind {
	case kindHello:
		return t.serveHello(ctx, from, link, r)
	case kindLearn:
		return t.serveLearn(from, link, r)
	case kindDetach, kindGoodbye:
		return t.serveEnd(from, link, kind, r)
	case kindNews, kindPart:
		return t.serveInitiator(ctx, from, transport.Link(link), kind, r)
	}
	return nil, malformed(kind)
}

// serveHello answers a guest that is about to connect, and not before registrations have ended that are to end. It
// names all that it can reach, for we may have taken it for ended, and forgotten it (docs/design/decisions/0154).
func (t *ascend) serveHello(ctx context.Context, from transport.Peer, link uint64, r *kit.Reader) ([]byte, error) {
	reached := decodeRegions(r)
	if !r.Whole() {
		return nil, malformed(kindHello)
	}
	g, refusal := t.guests.of(from, link)
	if refusal != nil {
		return nil, refusal
	}
	t.mu.Lock()
	if !t.await(ctx, func() bool { return t.paused == 0 }) {
		t.mu.Unlock()
		return nil, errs.New(errs.Timeout, "ascend.serve", "registrations are being ended")
	}
	g.setConnected(true) // before mu is given back: the next call of apart sees it
	t.mu.Unlock()
	answer := greeting{}
	for _, key := range reached {
		if n := t.admit(g, from, transport.LocalKey(key)); n.closed || n.floor != 0 {
			answer.news = append(answer.news, n)
		}
	}
	var err error
	if answer.name, answer.serial, err = t.instance.address(); err != nil {
		return nil, err
	}
	return answer.encode(), nil
}

func (t *ascend) serveLearn(from transport.Peer, link uint64, r *kit.Reader) ([]byte, error) {
	key := transport.LocalKey(r.U64())
	if !r.Whole() {
		return nil, malformed(kindLearn)
	}
	g, refusal := t.guests.of(from, link)
	if refusal != nil {
		return nil, refusal
	}
	n := t.admit(g, from, key)
	return n.encode(nil), nil
}

// admit lets a guest know of a region, unless that is not for it, and returns the news that hold for it.
func (t *ascend) admit(g *guest, from transport.Peer, key transport.LocalKey) news {
	r := t.regions.Lookup(key)
	if r == nil || r.Peers != nil && r.Peers.Admit != nil && !r.Peers.Admit(from.Names()) {
		return news{region: uint64(key), closed: true}
	}
	return r.learn(g)
}

// serveEnd forgets a guest, or all of a peer that closes, and ends our own links to it.
func (t *ascend) serveEnd(from transport.Peer, link uint64, kind byte, r *kit.Reader) ([]byte, error) {
	if !r.Whole() {
		return nil, malformed(kind)
	}
	for _, g := range t.guests.all() {
		if g.key.id == from.ID && (kind == kindGoodbye || g.key.link == link) {
			t.dismiss(g)
		}
	}
	for _, l := range t.links.All() {
		if kind == kindGoodbye && l.peer.ID == from.ID {
			l.fail(l.gone(errs.PeerUnreachable, "the peer has closed"))
		}
	}
	return []byte{1}, nil
}

// serveInitiator answers an owner of memory, about a link of ours. One that was detached is asked until its connection
// has ended: before that its slices are out.
func (t *ascend) serveInitiator(ctx context.Context, from transport.Peer, number transport.Link, kind byte,
	r *kit.Reader) ([]byte, error) {
	var n news
	if kind == kindNews {
		n = decodeNews(r)
	}
	if !r.Whole() {
		return nil, malformed(kind)
	}
	way, _ := t.ways.Load(number)
	l, _ := way.(*link)
	if l == nil || l.peer.ID != from.ID {
		return nil, errs.New(errs.Stale, "ascend.serve", "a link that has ended").
			WithScope(errs.ScopeLink, errs.SideRemote)
	}
	quiet := false
	if kind == kindNews {
		quiet = l.hear(ctx, n)
	} else {
		quiet = l.parted(ctx)
	}
	if !quiet {
		return nil, errs.New(errs.Timeout, "ascend.serve", "slices of before are still out")
	}
	return []byte{1}, nil
}

// learn asks the owner of a region for the news of it; from then on it lets this link hear of a fence.
func (l *link) learn(ctx context.Context, region uint64) (n news, err error) {
	question := binary.LittleEndian.AppendUint64(message(kindLearn, uint64(l.number)), region)
	answer, err := l.t.host.Call(ctx, l.peer, question)
	if err != nil {
		return n, err
	}
	r := kit.NewReader(answer)
	if n = decodeNews(r); !r.Whole() {
		return n, malformed(kindLearn)
	}
	return n, nil
}
