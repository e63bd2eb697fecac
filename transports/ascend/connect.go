package ascend

import (
	"context"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/transports/ascend/hixl"
)

// connect takes a place, says hello to the owner and connects with HIXL. Everything that is registered there now can be
// reached then. Where HIXL has fewer links than we thought, the link waits for another one to part.
func (l *link) connect() error {
	for {
		err := l.attempt()
		if err == nil || !l.t.shrink(err) {
			return err
		}
	}
}

func (l *link) attempt() error {
	t := l.t
	if err := l.sit(); err != nil {
		return err
	}
	met, err := l.hello()
	if err == nil {
		err = l.dial(met)
	}
	t.mu.Lock()
	if err != nil {
		t.standLocked(l)
	}
	t.changed.Broadcast()
	t.mu.Unlock()
	t.bell.ring()
	l.wake()
	return err
}

// full is the error of a link for which HIXL has no room.
type full struct{ cause *errs.Error }

func (f full) Error() string { return f.cause.Error() }

// Unwrap returns the error of HIXL.
func (f full) Unwrap() error { return f.cause }

// shrink takes the number of links that are there for the bound, if HIXL had no room for one more. It reports whether
// another link can make room.
func (t *ascend) shrink(err error) bool {
	if _, is := err.(full); !is {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.seats == 0 {
		return false
	}
	t.most = min(t.most, t.seats)
	return true
}

// hello asks the owner for its address, and hears the news of all regions that the link can reach.
func (l *link) hello() (met greeting, err error) {
	ctx, cancel := context.WithTimeout(l.ctx, callLimit)
	defer cancel()
	answer, err := l.t.host.Call(ctx, l.peer, encodeRegions(message(kindHello, uint64(l.number)), l.reached()))
	if err != nil {
		return met, err
	}
	if met, err = decodeGreeting(answer); err != nil {
		return met, err
	}
	for _, n := range met.news {
		l.tell(n, l.apply(n))
	}
	return met, nil
}

// dial connects with HIXL.
func (l *link) dial(met greeting) error {
	t := l.t
	if err := l.claim(met.name); err != nil {
		return err
	}
	name := hixl.NameOf(met.name)
	var status hixl.Status
	var failed *errs.Error
	var life uint64
	err := t.instance.with(func(engine *hixl.Engine, of uint64) {
		life = of
		status = engine.Connect(name, t.settings.ConnectTimeout)
		if status == hixl.AlreadyConnected { // of before: it cannot see everything that is registered now
			_ = engine.Disconnect(name, disconnectLimit)
			status = engine.Connect(name, t.settings.ConnectTimeout)
		}
		if status != hixl.Success {
			failed = status.Error("ascend.connect", hixl.Report()).WithPeer(l.peer.Address, Name, "")
		}
	})
	switch {
	case err == nil && status == hixl.ResourceExhausted:
		err = full{failed}
	case err == nil && failed != nil:
		err = failed
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		name.Free()
		return err
	}
	l.name.Free()
	l.name, l.seen, l.life, l.used = name, met.serial, life, clock.Now()
	l.connection, l.evicted = open, false
	if l.over { // it ends with the connection that it has now
		l.cause = l.gone(errs.Lost, "the link was detached")
	}
	return nil
}

// claim waits until no other link of ours is connected with the peer's engine of HIXL, for that knows links by their
// peer alone. Two links to one peer have it in turn.
func (l *link) claim(name string) error {
	t := l.t
	ctx, cancel := context.WithTimeout(l.ctx, callLimit)
	defer cancel()
	t.mu.Lock()
	defer t.mu.Unlock()
	free := func() bool {
		holder := t.claims[name]
		if holder != nil && holder != l {
			holder.evicted = true
			holder.wake()
		}
		return holder == nil || holder == l
	}
	if !t.await(ctx, free) {
		return errs.New(errs.Lost, "ascend.connect", "another link to %s does not end", name).
			WithScope(errs.ScopeRail, errs.SideLocal)
	}
	t.claims[name], l.claimed = l, name
	return nil
}

// disconnect ends the connection, if there is one. When it returns, nothing of the link moves. A connection that HIXL
// does not end goes with our engine.
func (l *link) disconnect() {
	t := l.t
	t.mu.Lock()
	if l.connection != open {
		t.mu.Unlock()
		return
	}
	l.connection = closing
	_ = t.await(context.Background(), func() bool { return l.calls == 0 }) // calls of the carrier do not wait
	name, life := l.name, l.life
	t.mu.Unlock()
	var status hixl.Status
	_ = t.instance.with(func(engine *hixl.Engine, now uint64) {
		if now == life {
			status = engine.Disconnect(name, disconnectLimit)
		}
	})
	if status != hixl.Success && status != hixl.NotConnected {
		t.instance.replace("a link does not end: " + status.String())
	}
	t.mu.Lock()
	t.standLocked(l)
	t.changed.Broadcast()
	t.mu.Unlock()
}

// sit takes one of the places for links that are connected. Links that were not used for longest make room, one for
// each that waits.
func (l *link) sit() error {
	t := l.t
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting++
	defer func() { t.waiting-- }()
	room := func() bool {
		if l.heldLocked() {
			return false
		}
		if t.seats >= t.most {
			t.makeRoomLocked(l)
		}
		return t.seats < t.most
	}
	if !t.await(l.ctx, room) {
		return errs.Wrap(errs.Lost, "ascend.connect", l.ctx.Err())
	}
	t.seats++
	l.connection = opening
	return nil
}

// standLocked gives a link's place back.
func (t *ascend) standLocked(l *link) {
	if l.connection != shut {
		l.connection, l.evicted = shut, false
		t.seats--
		if t.claims[l.claimed] == l {
			delete(t.claims, l.claimed)
		}
	}
}

// makeRoomLocked asks a link to part, if fewer were asked than wait. It is one without slices, the one that was not
// used for longest, or else that one of all.
func (t *ascend) makeRoomLocked(newcomer *link) {
	var idle, any *link
	leaving := 0
	for _, l := range t.links.All() {
		if l.evicted {
			leaving++
		}
		if l == newcomer || l.connection != open || l.evicted {
			continue
		}
		if any == nil || l.used < any.used {
			any = l
		}
		if l.posted.Len() == 0 && l.queue.Len() == 0 && (idle == nil || l.used < idle.used) {
			idle = l
		}
	}
	if leaving >= t.waiting {
		return
	}
	if idle == nil {
		idle = any
	}
	if idle != nil {
		idle.evicted = true
		idle.wake()
	}
}

// loseAll notes that the connections of all links end with our engine of HIXL. Their posted slices end afterwards.
func (t *ascend) loseAll(why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.links.All() {
		if l.connection == open && l.cause == nil {
			l.cause = errs.New(errs.Lost, Name, "our engine of HIXL begins again, because %s", why).
				WithScope(errs.ScopeRail, errs.SideLocal)
		}
	}
}
