package cuda

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/host/access"
	"github.com/tent-engine/tent/transports/host/hazard"
)

// Bounds.
const (
	guestsMax     = 4096
	guestsPerPeer = 64 // one in use, and those of links that end just now
	tellingMost   = 64 // guests that are told something at the same time
)

// settleTime is the pause between the news that a guest's process has ended and the belief that its copies have. The
// kernel closes sockets and device files of a process in one pass, in no promised order.
const settleTime = 250 * time.Millisecond

// guest is a peer's link to us.
type guest struct {
	peer   transport.Peer
	secret access.Token // the peer's name of the link
	token  access.Token // ours
}

// guests are the peers on other hosts that may have regions of ours mapped. No call of the driver takes a mapping of
// theirs down: each has to say that it has done so, or to be known as ended. So a hold is entered before the handles
// leave, and stays until then.
type guests struct {
	mu      sync.Mutex
	byToken map[access.Token]*guest
	holds   map[hazard.Region]map[*guest]uint64 // serial number of the last question
	renamed map[hazard.Region]bool              // names that Remap has replaced
	closed  bool
}

// greet returns the guest of a link, a new one for a link that is not known.
func (gs *guests) greet(from transport.Peer, secret access.Token) (*guest, *errs.Error) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	links := 0
	for _, g := range gs.byToken {
		if g.peer.ID != from.ID {
			continue
		}
		if links++; g.secret == secret {
			return g, nil
		}
	}
	if gs.closed || len(gs.byToken) >= guestsMax || links >= guestsPerPeer {
		return nil, errs.New(errs.TooManyRequests, "mnnvl.attach", "%d links of peers are there, %d of this one",
			len(gs.byToken), links).
			WithScope(errs.ScopeLink, errs.SidePath)
	}
	if gs.byToken == nil {
		gs.byToken = map[access.Token]*guest{}
	}
	g := &guest{peer: from, secret: secret, token: access.NewToken()}
	gs.byToken[g.token] = g
	return g, nil
}

// Visitors implements transport.Visited.
func (t *mnnvl) Visitors() (list []transport.ID) {
	t.guests.mu.Lock()
	defer t.guests.mu.Unlock()
	for _, g := range t.guests.byToken {
		list = append(list, g.peer.ID)
	}
	return list
}

// named returns the guest that was given a token, or nil.
func (gs *guests) named(from transport.Peer, token access.Token) *guest {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	if g := gs.byToken[token]; g != nil && g.peer.ID == from.ID {
		return g
	}
	return nil
}

// hold enters that a guest may map a region; false if it has left meanwhile. undo ends that where the guest gets no
// handle: an older hold of the guest stays.
func (gs *guests) hold(g *guest, name hazard.Region, serial uint64) (undo func(), is bool) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	if gs.byToken[g.token] != g {
		return nil, false
	}
	if gs.holds == nil {
		gs.holds = map[hazard.Region]map[*guest]uint64{}
	}
	if gs.holds[name] == nil {
		gs.holds[name] = map[*guest]uint64{}
	}
	before := gs.holds[name][g]
	gs.holds[name][g] = max(before, serial)
	return func() {
		if before == 0 {
			gs.release(g, name, serial)
		}
	}, true
}

// release ends a hold, unless the guest has asked for the region again since the serial number.
func (gs *guests) release(g *guest, name hazard.Region, serial uint64) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	if last, holds := gs.holds[name][g]; holds && last <= serial {
		gs.dropLocked(g, name)
	}
}

func (gs *guests) dropLocked(g *guest, name hazard.Region) {
	delete(gs.holds[name], g)
	if len(gs.holds[name]) == 0 {
		delete(gs.holds, name)
	}
}

// end forgets a guest that maps nothing any more.
func (gs *guests) end(g *guest) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	delete(gs.byToken, g.token)
	for name := range gs.holds {
		gs.dropLocked(g, name)
	}
}

// of returns the regions that a guest may map.
func (gs *guests) of(g *guest) (names []hazard.Region) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	for name, holders := range gs.holds {
		if _, is := holders[g]; is {
			names = append(names, name)
		}
	}
	return names
}

// holding returns the guests, or those of one peer, that may map a region.
func (gs *guests) holding(name hazard.Region, peer *transport.Peer) (list []*guest) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	for g := range gs.holds[name] {
		if peer == nil || g.peer.ID == peer.ID {
			list = append(list, g)
		}
	}
	return list
}

// rename notes that a region goes by another name.
func (gs *guests) rename(old hazard.Region) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	if gs.renamed == nil {
		gs.renamed = map[hazard.Region]bool{}
	}
	gs.renamed[old] = true
}

// forgetName drops the note of rename, once the region has ended.
func (gs *guests) forgetName(old hazard.Region) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	delete(gs.renamed, old)
}

func (gs *guests) wasRenamed(name hazard.Region) bool {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	return gs.renamed[name]
}

// crowded reports whether it is time to look for guests that have ended.
func (gs *guests) crowded() bool {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	return len(gs.byToken) > guestsMax/2
}

// all returns the guests; with shut, no new one comes.
func (gs *guests) all(shut bool) []*guest {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	gs.closed = gs.closed || shut
	return slices.Collect(maps.Values(gs.byToken))
}

// revoke brings news of a region to the guests that may map it. When it returns nil, nothing moves that the news
// forbid. The error names a guest that did not answer: it may touch the memory until its process has ended.
func (t *mnnvl) revoke(ctx context.Context, n news, peer *transport.Peer) error {
	return t.tellAll(t.guests.holding(n.name, peer), func(g *guest) error {
		err := t.tell(ctx, g, n.append(access.Call(version, callNews, g.secret)))
		if err == nil && n.closed {
			t.guests.release(g, n.name, ^uint64(0))
		}
		return err
	})
}

// tellAll runs tell for guests, some at a time, and returns the first error.
func (t *mnnvl) tellAll(list []*guest, tell func(*guest) error) error {
	room, failed := make(chan struct{}, tellingMost), make([]error, len(list))
	var calls sync.WaitGroup
	for i, g := range list {
		room <- struct{}{}
		calls.Go(func() {
			failed[i] = tell(g)
			<-room
		})
	}
	calls.Wait()
	return errors.Join(failed...)
}

// tell calls a guest until it has answered, or is known to have ended. That takes two proofs, with settleTime between
// them: a connection that broke looks like the end of a process, and the next call finds out.
func (t *mnnvl) tell(ctx context.Context, g *guest, message []byte) error {
	ended := false
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		_, err := t.host.Call(ctx, g.peer, message)
		if err == nil {
			return nil
		}
		if errs.CodeOf(err) == errs.Stale { // its link has ended, and nothing is mapped
			t.guests.end(g)
			return nil
		}
		before := ended
		if ended = errs.From("mnnvl.revoke", err).EndsPeer(); ended && before {
			t.guests.end(g)
			return nil
		}
		if ended {
			pause = settleTime
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return g.silent(err)
		}
	}
}

// silent is the error of a guest that may still touch our memory.
func (g *guest) silent(cause error) error {
	return errs.New(errs.Timeout, "mnnvl.revoke", "%s may still touch the memory, which it maps over NVLink: %v",
		g.peer.Address, cause).
		WithScope(errs.ScopeSlice, errs.SideRemote).WithPeer(g.peer.Address, FabricName, "").
		WithHint("continue or end that process, and keep the memory as it is until then")
}

// newsOf returns the state of each region that a guest may map, as far as it is not open.
func (t *mnnvl) newsOf(g *guest) (list []news) {
	for _, name := range t.guests.of(g) {
		if n := t.stateOf(name, g.peer.ID); n != (news{name: name}) && len(list) < newsMost {
			list = append(list, n)
		}
	}
	return list
}

// stateOf returns the state of a region for a peer. A name that is no region's is closed, or was replaced by Remap.
func (t *mnnvl) stateOf(name hazard.Region, peer transport.ID) news {
	if r := t.regionOf(name); r != nil {
		floor, closed := r.door.Last(peer)
		return news{name, floor, closed, false}
	}
	return news{name, 0, true, t.guests.wasRenamed(name)}
}

// tend forgets guests that have ended without a word: links that hold nothing cost a place in the table.
func (t *mnnvl) tend() {
	if t.tending.CompareAndSwap(false, true) {
		t.life.Go(func() {
			defer t.tending.Store(false)
			ctx, cancel := context.WithTimeout(context.Background(), access.RevokeLimit)
			defer cancel()
			_ = t.tellAll(t.guests.all(false), func(g *guest) error {
				return t.tell(ctx, g, access.Call(version, callAlive, g.secret))
			})
		})
	}
}
