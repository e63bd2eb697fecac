package rdma

import (
	"context"
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// link is an attached peer. Its goroutine asks for the peer's devices once; then each rail has one while lanes of it
// are to be connected, and none when all is well.
type link struct {
	t      *Transport
	number transport.Link
	peer   transport.Peer
	rails  atomic.Pointer[[]*rail] // nil until the peer has answered; written by grow
	keys   kit.Slots[transport.RemoteKey, remote]

	ctx    context.Context // ends with the link
	cancel context.CancelFunc
	turn   atomic.Uint64 // of connections: the peer ignores those that come late
	over   atomic.Bool   // it has failed or is detached
	ready  chan struct{} // closed once the rails are known
	dead   atomic.Bool   // the peer's queue pairs are proved to be gone
	due    time.Time     // of the next word to the peer (stay)

	lacks   atomic.Bool // a rail was down: alternates are made
	growing sync.Mutex
	names   []string // of the peer's devices; guarded by growing

	hearing sync.Mutex    // one piece of news at a time
	drained chan struct{} // has something when a slice ended; read while hearing
	waiting atomic.Bool
}

// remote is a region of the peer.
type remote struct {
	region     uint64
	version    uint32
	size, base uint64
	permission mem.Permission
	onDevice   bool   // memory of a GPU or another device
	cut        uint64 // bytes of each part but the last
	keys       []remoteKey
	near       []uint8 // how near the devices are to the memory; nil: not known

	passage  kit.Passage // as far as its owner's news have come
	replaced atomic.Bool
}

type remoteKey struct {
	state uint8
	parts []uint32 // the key of each
}

// States of a remoteKey.
const (
	keyNone = 0 // the device did not take the region
	keyHas  = 1
	keyAway = 2 // the device is lost, or came later: another descriptor has its key
)

// away is the key of a device that an older descriptor does not know.
var away = remoteKey{state: keyAway}

// key returns the remote key of a device.
func (m *remote) key(device int) *remoteKey {
	if device < len(m.keys) {
		return &m.keys[device]
	}
	return &away
}

// nearOf ranks a device of the peer by its way to the memory. One that came later is far: another descriptor has its
// rank.
func (m *remote) nearOf(device int) uint8 {
	if device < len(m.near) {
		return m.near[device]
	}
	return transport.Far
}

// part returns the key of the part with a byte of the region, and how many bytes of it there are from there on.
func (m *remote) part(k *remoteKey, at uint64) (rkey uint32, left uint64) {
	if len(k.parts) == 1 {
		return k.parts[0], ^uint64(0)
	}
	return k.parts[at/m.cut], m.cut - at%m.cut
}

// hear applies news.
func (m *remote) hear(n news) {
	m.passage.Raise(n.floor)
	if n.closed {
		m.passage.Close()
	}
	if n.version > m.version {
		m.replaced.Store(true)
	}
}

// admits reports whether a slice of an epoch may touch the region.
func (m *remote) admits(epoch transport.Epoch) bool {
	return m.passage.Admits(epoch) == kit.DoorOpen && !m.replaced.Load()
}

// refuses returns why a slice of an epoch may not touch the region, nil if it may.
func (m *remote) refuses(epoch transport.Epoch) *errs.Error {
	switch m.passage.Admits(epoch) {
	case kit.DoorClosed:
		return errs.New(errs.AddressNotRegistered, Name, "the owner has closed the region").
			WithScope(errs.ScopeSlice, errs.SideRemote)
	case kit.DoorFenced:
		return transport.Fenced(Name)
	}
	if m.replaced.Load() {
		return transport.Replaced(Name)
	}
	return nil
}

// gone is the error of a link that has ended.
func (l *link) gone(code errs.Code, cause string) *errs.Error {
	return errs.New(code, Name, "%s", cause).WithScope(errs.ScopeLink, errs.SideRemote).
		WithPeer(l.peer.Address, Name, "")
}

// Attach implements transport.Transport.
func (t *Transport) Attach(peer transport.Peer) (transport.Link, error) {
	l := &link{t: t, peer: peer, drained: make(chan struct{}, 1), ready: make(chan struct{})}
	l.ctx, l.cancel = context.WithCancel(t.ctx)
	var err error
	if !t.life.Begin(func() {
		_, err = t.links.Attach("rdma.attach", func(n transport.Link) *link { l.number = n; return l })
	}) {
		l.cancel()
		return 0, kit.Closed("rdma.attach")
	}
	if err != nil {
		l.cancel()
		return 0, err
	}
	t.life.Go(l.open)
	return l.number, nil
}

// open asks the peer for its devices until it answers, and starts the rails. A peer that says nothing for DialLimit is
// reported once and asked on: it may be stopped, and go on later or end.
func (l *link) open() {
	until, silent := time.Now().Add(l.t.settings.DialLimit), false
	for {
		limit, wait := time.Until(until), 20*time.Millisecond
		if silent {
			limit, wait = l.t.settings.DialLimit, 500*time.Millisecond
		}
		answer, err := l.call(l.hello(), limit)
		if err == nil {
			err = l.matched(kit.NewReader(answer))
		}
		switch {
		case l.ctx.Err() != nil:
			return
		case err == nil:
			return
		case final(err):
			l.fail(errs.From(Name, err))
			return
		case !silent && time.Now().After(until):
			silent = true
			l.t.sink.LinkDown(l.number, errs.New(errs.Timeout, Name, "the peer does not answer: %v", err).
				WithScope(errs.ScopeLink, errs.SideUnknown).WithPeer(l.peer.Address, Name, ""))
		}
		if !rest(l.ctx, wait) {
			return
		}
	}
}

// hello is the question that makes us a guest of the peer. Again, it keeps us one.
func (l *link) hello() []byte { return append(message(kindHello, uint64(l.number)), protocol) }

// isReady reports whether the peer has answered.
func (l *link) isReady() bool {
	select {
	case <-l.ready:
		return true
	default:
		return false
	}
}

// proof reports an error that proves that the peer's queue pairs for this link are gone.
func proof(err error) bool {
	e := errs.From(Name, err)
	return e.Code == errs.EngineClosed || e.Code == errs.Stale || e.EndsPeer()
}

// final reports an error after which no call to this peer can succeed.
func final(err error) bool {
	switch errs.CodeOf(err) {
	case errs.PeerNotAdmitted, errs.NotImplemented, errs.Protocol, errs.TooManyRequests:
		return true
	}
	return proof(err)
}

// call calls the peer, for a time.
func (l *link) call(message []byte, limit time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(l.ctx, limit)
	defer cancel()
	return l.t.host.Call(ctx, l.peer, message)
}

// rest waits, and reports whether it was for all of the time: ctx has not ended.
func rest(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// matched makes the rails of the peer's answer.
func (l *link) matched(r *kit.Reader) error {
	names, err := namesOf(r)
	if err != nil {
		return err
	}
	l.grow(names)
	close(l.ready)
	return nil
}

func (l *link) list() []*rail {
	if rails := l.rails.Load(); rails != nil {
		return *rails
	}
	return nil
}

// rail returns a rail by its index. A stale link, nil, has none.
func (l *link) rail(index uint16) *rail {
	if l == nil {
		return nil
	}
	if rails := l.list(); int(index) < len(rails) {
		return rails[index]
	}
	return nil
}

// fail ends the link because its peer is gone. Slices that wait for the peer's proof need none then.
func (l *link) fail(cause *errs.Error) {
	if !l.over.CompareAndSwap(false, true) {
		return
	}
	if proof(cause) {
		l.dead.Store(true)
	}
	l.cancel()
	told := *cause
	told.Scope = max(told.Scope, errs.ScopeLink)
	switch told.Code {
	case errs.PeerRestarted, errs.Timeout:
	case errs.EngineClosed, errs.Stale:
		told.Code, told.Side = errs.PeerUnreachable, errs.SideRemote
	default:
		told.Code = errs.PeerUnreachable
	}
	for _, r := range l.list() {
		r.end(&told)
	}
	l.t.sink.LinkDown(l.number, &told)
}

// Detach implements transport.Transport. The proof that nothing is under way takes a call, so slices may end later.
func (t *Transport) Detach(number transport.Link) {
	l := t.links.Detach(number)
	if l == nil {
		return
	}
	l.over.Store(true)
	l.cancel()
	for _, r := range l.list() {
		r.end(errs.New(errs.Lost, Name, "the link was detached").WithScope(errs.ScopeLink, errs.SideLocal))
	}
	if !t.life.Go(func() { l.leave(t.ctx) }) {
		t.closing.Store(l, true)
	}
}

// leave makes the peer close its ends of the lanes, which proves that no WRITE of ours is under way, and closes ours.
func (l *link) leave(ctx context.Context) {
	for _, r := range l.list() {
		_ = r.quieten(r.broken()) // bury tries again, and waits for it
	}
	goodbye := message(kindDetach, uint64(l.number))
	begin := time.Now()
	for pause := 10 * time.Millisecond; !l.dead.Load(); {
		within, cancel := context.WithTimeout(ctx, silence)
		_, err := l.t.host.Call(within, l.peer, goodbye)
		cancel()
		if err == nil || proof(err) {
			l.dead.Store(true)
			break
		}
		if !rest(ctx, pause) {
			l.t.closing.Store(l, true)
			return
		}
		pause = min(2*pause, max(time.Second, kit.Patience(time.Since(begin))))
	}
	for _, r := range l.list() {
		r.bury(true)
	}
}

// abandon closes the queue pairs of a link, also when its peer could not be asked: Close gives everything back. Slices
// in limbo stay without their completion then.
func (l *link) abandon() {
	for _, r := range l.list() {
		r.bury(l.dead.Load())
	}
}

// Import implements transport.Transport. It asks the owner whether the region is still as its descriptor says; from
// then on the owner knows that this link has to hear of a fence. A slice would find a key that came back otherwise.
func (t *Transport) Import(number transport.Link, d transport.Descriptor) (transport.RemoteKey, error) {
	l := t.links.Lookup(number)
	if l == nil {
		return 0, kit.StaleLink("rdma.import", number)
	}
	m, bad := decode(d, l.peer.ID)
	if bad != nil {
		return 0, bad
	}
	if m.permission == mem.LocalReadWrite {
		return 0, errs.New(errs.PermissionDenied, "rdma.import", "the owner keeps the region to itself").
			WithScope(errs.ScopeSlice, errs.SideRemote)
	}
	ctx, cancel := context.WithTimeout(l.ctx, transport.HearingLimit)
	defer cancel()
	select {
	case <-l.ready:
	case <-ctx.Done():
		return 0, errs.New(errs.Timeout, "rdma.import", "the peer does not answer").
			WithScope(errs.ScopeLink, errs.SideUnknown)
	}
	key := l.keys.Insert(func(transport.RemoteKey) *remote { return m }) // before the question: news may overtake it
	question := binary.LittleEndian.AppendUint64(message(kindLearn, uint64(number)), m.region)
	answer, err := t.host.Call(ctx, l.peer, question)
	r := kit.NewReader(answer)
	if n := decodeNews(r); err == nil && r.Whole() {
		m.hear(n)
		return key, nil
	}
	l.keys.Delete(key)
	if err == nil {
		err = malformed(kindLearn)
	}
	return 0, err
}

// Forget implements transport.Transport.
func (t *Transport) Forget(number transport.Link, key transport.RemoteKey) {
	if l := t.links.Lookup(number); l != nil {
		l.keys.Delete(key)
	}
}

// hear applies news and waits until nothing that they forbid is out. It reports whether that was so in time.
func (l *link) hear(ctx context.Context, n news) bool {
	l.hearing.Lock()
	defer l.hearing.Unlock()
	l.waiting.Store(true)
	defer l.waiting.Store(false)
	named := l.apply(n)
	for {
		left := 0
		for _, r := range l.list() {
			left += r.evict(n.region)
		}
		if left == 0 {
			break
		}
		select {
		case <-l.drained:
		case <-ctx.Done():
			return false
		}
	}
	l.tell(n, named)
	return true
}

// tell hands the epoch of a fence to the core.
func (l *link) tell(n news, named transport.RemoteKey) {
	if n.floor != 0 && !n.closed {
		l.t.sink.Fenced(l.number, named, n.floor)
	}
}

// apply shuts the keys of a region, and returns one of them.
func (l *link) apply(n news) (named transport.RemoteKey) {
	for key, m := range l.keys.All() {
		if m.region == n.region {
			m.hear(n)
			named = key
		}
	}
	return named
}

// ended wakes the goroutine that drains, after a slice has ended.
func (l *link) ended() {
	if l.waiting.Load() {
		select {
		case l.drained <- struct{}{}:
		default:
		}
	}
}
