package delegate

import (
	"context"
	"sync"
	"time"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// Bounds of the orders of peers. Those of parts and of descriptors, which have a page at most, fit into a message.
const (
	lanesMost       = 16      // of one peer
	lanesAll        = 4096    // of all of them
	placesMost      = 4096    // of one order
	bytesMost       = 1 << 30 // of one order
	messageMost     = 192 << 10
	descriptorsMost = 32   // of lent memory
	listenersMost   = 8192 // peers that hear of fences
)

// keptFor is how long the end of an order is kept at least. No message of it comes later: the control plane ends its
// calls before.
const keptFor = 10 * time.Second

// answerWait bounds the time of an answer while a transfer goes on.
const answerWait = time.Second

// desk takes the orders of peers. Any goroutine may call it.
type desk struct {
	mu        sync.Mutex
	lanes     map[laneKey]*served
	ofPeer    map[transport.ID]int
	listeners map[transport.ID]transport.Peer // that hear of fences
}

// laneKey names a lane of a peer.
type laneKey struct {
	peer transport.ID
	lane uint64
}

// served is a lane of a peer: its newest order.
type served struct {
	seq   uint64
	key   transport.LocalKey
	epoch transport.Epoch
	stop  context.CancelFunc
	done  chan struct{} // closed at the end; end is set before
	end   answer
	since time.Time // of the end; set before done is closed
}

// running reports whether the order has not ended.
func (s *served) running() bool {
	select {
	case <-s.done:
		return false
	default:
		return true
	}
}

// listen notes a peer that hears of fences, and reports whether it did not before. Beyond listenersMost another one
// does so no more.
func (d *desk) listen(from transport.Peer) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, known := d.listeners[from.ID]; known {
		d.listeners[from.ID] = from
		return false
	}
	if d.listeners == nil {
		d.listeners = make(map[transport.ID]transport.Peer)
	}
	for id := range d.listeners {
		if len(d.listeners) < listenersMost {
			break
		}
		delete(d.listeners, id)
	}
	d.listeners[from.ID] = from
	return true
}

// listening lists those that hear of a fence for one of them, or for all.
func (d *desk) listening(peer *transport.Peer) (list []transport.Peer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, to := range d.listeners {
		if peer == nil || peer.ID == id {
			list = append(list, to)
		}
	}
	return list
}

// take finds the order of a message, and starts it with run if it is a new one.
func (d *desk) take(from transport.ID, m *message, run func(ctx context.Context, s *served)) (*served, answer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	key := laneKey{from, m.lane}
	s := d.lanes[key]
	switch {
	case s != nil && s.seq > m.seq:
		return nil, answer{state: ended, err: malformed("order %d of a lane came behind %d", m.seq, s.seq)}
	case s != nil && s.seq == m.seq:
		if m.kind == cancel {
			s.stop()
		}
		return s, answer{}
	case m.kind == ask:
		return nil, answer{state: unknown}
	case s != nil && s.running():
		return nil, answer{state: ended, err: malformed("order %d came before the end of %d", m.seq, s.seq)}
	case s == nil && !d.roomLocked(from):
		return nil, answer{state: busy}
	}
	if s == nil {
		d.ofPeer[from]++
	}
	ctx, stop := context.WithCancel(context.Background())
	s = &served{seq: m.seq, key: m.order.Key, epoch: m.order.Epoch, stop: stop, done: make(chan struct{})}
	d.lanes[key] = s
	if m.kind == cancel { // it has overtaken its order
		s.finish(answer{state: ended, err: withdrawn()})
		return s, answer{}
	}
	run(ctx, s)
	return s, answer{}
}

// roomLocked makes room for one more lane of a peer. Another one of this peer goes for it, else of any.
func (d *desk) roomLocked(from transport.ID) bool {
	if d.lanes == nil {
		d.lanes, d.ofPeer = make(map[laneKey]*served), make(map[transport.ID]int)
	}
	own := d.ofPeer[from] >= lanesMost
	if !own && len(d.lanes) < lanesAll {
		return true
	}
	var oldest *laneKey
	for key, s := range d.lanes {
		if (!own || key.peer == from) && !s.running() && time.Since(s.since) > keptFor &&
			(oldest == nil || s.since.Before(d.lanes[*oldest].since)) {
			oldest = &key
		}
	}
	if oldest == nil {
		return false
	}
	if d.ofPeer[oldest.peer]--; d.ofPeer[oldest.peer] == 0 {
		delete(d.ofPeer, oldest.peer)
	}
	delete(d.lanes, *oldest)
	return true
}

// finish notes the end of an order.
func (s *served) finish(end answer) {
	s.end, s.since = end, time.Now()
	s.stop()
	close(s.done)
}

// halt cancels the orders that a revocation ends, and waits for them.
func (d *desk) halt(ctx context.Context, meant func(from transport.ID, s *served) bool) error {
	d.mu.Lock()
	var list []*served
	for key, s := range d.lanes {
		if s.running() && meant(key.peer, s) {
			s.stop()
			list = append(list, s)
		}
	}
	d.mu.Unlock()
	for _, s := range list {
		select {
		case <-s.done:
		case <-ctx.Done():
			return errs.New(errs.Timeout, "delegate.revoke", "an order of a peer has not ended").
				WithScope(errs.ScopeLink, errs.SideLocal)
		}
	}
	return nil
}

// Serve takes a message of a peer. It answers when the order has ended, or that it goes on.
func (t *delegate) Serve(ctx context.Context, from transport.Peer, b []byte) ([]byte, error) {
	m, err := decode(b)
	if err != nil {
		t.host.Refused(transport.RefusedMalformed, from.Address, err)
		return nil, err
	}
	switch m.kind {
	case fenced:
		t.hear(from.ID, transport.RemoteKey(m.lane), transport.Epoch(m.seq))
		return nil, nil
	case hello, begin:
		if t.desk.listen(from) { // fences of before are behind the epoch that it has, or it would be refused for good
			t.welcome(from)
		}
	}
	if m.kind == hello {
		return (&answer{state: unknown}).encode(), nil
	}
	m.order.From = from
	s, now := t.desk.take(from.ID, m, func(ctx context.Context, s *served) {
		order := m.order
		if !t.life.Go(func() { s.finish(t.execute(ctx, &order)) }) {
			s.finish(answer{state: ended, err: kit.Closed("delegate").WithScope(errs.ScopeLink, errs.SideRemote)})
		}
	})
	if s == nil {
		return now.encode(), nil
	}
	limit := time.NewTimer(answerWait)
	defer limit.Stop()
	select {
	case <-s.done:
		return s.end.encode(), nil
	case <-limit.C:
	case <-ctx.Done():
	}
	return (&answer{state: pending}).encode(), nil
}

// welcome lets a peer hear of the newest fence of before.
func (t *delegate) welcome(from transport.Peer) {
	epoch := t.newest.Load()
	if epoch == 0 {
		return
	}
	t.life.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), transport.HearingLimit)
		defer cancel()
		m := message{kind: fenced, seq: epoch} // of no region: the epoch alone
		_, _ = t.host.Call(ctx, from, m.encode(nil))
	})
}

// hear reports a fence of a peer's region.
func (t *delegate) hear(from transport.ID, key transport.RemoteKey, epoch transport.Epoch) {
	for number, l := range t.links.All() {
		if l.peer.ID == from {
			t.sink.Fenced(number, key, epoch)
		}
	}
}

// execute carries one order out.
func (t *delegate) execute(ctx context.Context, o *transport.Order) answer {
	r := t.regions.Lookup(o.Key)
	refused := func(err *errs.Error) answer { return answer{state: ended, err: err} }
	switch {
	case r == nil || r.lent:
		return refused(errs.New(errs.AddressNotRegistered, Name, "the region was closed by its owner").
			WithScope(errs.ScopeSlice, errs.SideRemote))
	case r.door.Admits(o.From.ID, o.Epoch) != kit.DoorOpen:
		return refused(transport.Fenced(Name))
	}
	dirty, err := t.deputy.Execute(ctx, o)
	a := answer{state: ended, dirty: dirty}
	if err != nil {
		e := *errs.From(Name, err)
		a.err = (&e).WithScope(min(e.Scope, errs.ScopeLink), errs.SideRemote)
		a.err.Peer, a.err.Transport, a.err.Rail = "", "", ""
		if e.Code == errs.Canceled {
			a.err = withdrawn()
		}
	}
	return a
}

func withdrawn() *errs.Error {
	return errs.New(errs.Withdrawn, Name, "the order was taken back").WithScope(errs.ScopeSlice, errs.SideUnknown)
}

// nobody is the deputy of a host that carries out no orders, as those of some tests.
type nobody struct{}

func (nobody) Lent(transport.LocalKey) (transport.Lent, bool) { return transport.Lent{}, false }

func (nobody) Confine(context.Context, transport.LocalKey, transport.Peer) error { return nil }

func (nobody) Execute(context.Context, *transport.Order) (bool, error) {
	return false, errs.New(errs.NotImplemented, Name, "this host carries out no orders")
}
