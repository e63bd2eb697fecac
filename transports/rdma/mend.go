package rdma

import (
	"encoding/binary"
	"errors"
	"math/bits"
	"slices"
	"time"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
	"github.com/tent-engine/tent/transports/rdma/verbs"
)

// mend is the goroutine of a rail while lanes of it are to be connected. It makes the system calls that may last, and
// it is the only one that resets, connects and closes the rail's queue pairs, together with leave.
func (r *rail) mend() {
	pause := r.link.t.settings.Pause
	for {
		risen := *r.device.risen.Load() // before the try, which may have found the port down
		err := r.mendOnce()
		r.mu.Lock()
		switch {
		case r.ended || r.link.ctx.Err() != nil:
			r.mending = false
			r.unlock()
			r.quietenAll()
			if r.link.dead.Load() {
				r.bury(true)
			}
			return
		case r.device.lost.Load() && !r.limboLocked():
			r.ended = true // when the device is back, another rail takes its index
			r.unlock()
			r.bury(true)
			r.mu.Lock()
			r.mending = false
			r.unlock()
			return
		case err == nil && r.wholeLocked():
			r.mending = false
			r.pumpLocked()
			r.askLocked()
			r.unlock()
			return
		}
		r.unlock()
		if err == nil {
			continue
		}
		if final(err) {
			r.link.fail(errs.From(Name, err))
			continue
		}
		r.link.lack(transport.Rail{}, nil)
		pause = r.rest(pause, risen)
	}
}

// pauseMost is the longest pause between two tries to connect, in first ones.
const pauseMost = 100

// rest waits between two tries, until the port comes up or the link ends at the latest. It returns the next pause.
func (r *rail) rest(pause time.Duration, risen <-chan struct{}) time.Duration {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return min(2*pause, pauseMost*r.link.t.settings.Pause)
	case <-risen:
	case <-r.link.ctx.Done(): // the next try ends the rail
	}
	return r.link.t.settings.Pause
}

// wholeLocked reports whether nothing is left to do. A rail that leaves and is not idle goes on when it is.
func (r *rail) wholeLocked() bool {
	if r.state != up || r.leaving && r.idleLocked() {
		return false
	}
	return !r.wanted || r.connectedLocked()
}

// connectedLocked reports whether all lanes work.
func (r *rail) connectedLocked() bool {
	for _, l := range r.lanes {
		if !l.works {
			return false
		}
	}
	return true
}

func (r *rail) limboLocked() bool {
	for i := range r.slab {
		if o := &r.slab[i]; o.limbo || o.out > 0 {
			return true
		}
	}
	return false
}

// mendOnce connects lanes that do not work, and brings the rail up once all of them do. Those that hold slices come
// first: a queue pair may take milliseconds to reset, and a slice ends when its own lane is settled.
func (r *rail) mendOnce() error {
	broken := r.nextBroken()
	if err := r.quieten(broken); err != nil {
		return err
	}
	if r.link.ctx.Err() != nil {
		return r.link.ctx.Err()
	}
	r.mu.Lock()
	wanted, leaves := r.wanted, r.leaving && r.idleLocked()
	r.unlock()
	switch {
	case leaves:
		r.sleep()
		return nil // again: something may wait for lanes
	case wanted && len(broken) > 0:
		if err := r.wire(broken); err != nil {
			return err
		}
	case !wanted:
		if _, _, err := r.source(); err != nil {
			return err
		}
	}
	r.mu.Lock()
	is, proving, more := r.state, r.proving, r.wanted && !r.connectedLocked()
	r.unlock()
	if more {
		return nil // again
	}
	if proving || wanted && is != up {
		if err := r.prove(); err != nil {
			return r.unproved(err)
		}
	}
	if is == up {
		return nil
	}
	return r.announce()
}

// unproved takes a rail down once no pair of its addresses leads to the peer: slices that wait for it go elsewhere.
func (r *rail) unproved(err error) error {
	list, _, _ := r.source() // of a port that went down meanwhile: none
	r.mu.Lock()
	stuck := r.state == up && r.addressing.failed >= len(list) && r.link.ctx.Err() == nil
	r.unlock()
	if stuck {
		r.down(errs.From(Name, err))
	}
	return err
}

// wire takes a place for the rail and connects the lanes that do not work. The rail is down if that is refused, if
// slices wait for it, or if no lane works: another rail may be well, and one lane that works proves nothing about its
// path.
func (r *rail) wire(broken []*lane) error {
	if err := r.place(); err != nil {
		return err
	}
	r.alive()
	err := r.connect(broken)
	if err == nil {
		return nil
	}
	r.mu.Lock()
	limbo, works := r.limboLocked(), false
	for _, l := range r.lanes {
		if r.proving { // all of them are connected from one address, and the next try may take another
			l.failLocked(errs.From(Name, err))
		}
		works = works || l.works
	}
	stuck := r.state == up && r.link.ctx.Err() == nil &&
		(!works || errs.CodeOf(err) == errs.RdmaError || r.queue.Urgent() < kit.Classes)
	r.unlock()
	if stuck {
		cause := *errs.From(Name, err)
		if cause.Code == errs.RdmaError {
			cause.Code = errs.Lost // for slices that wait: the rail was lost to them, by no fault of theirs
		}
		r.down(&cause)
	}
	if limbo && !final(err) {
		return errors.Join(err, r.release(broken))
	}
	return err
}

// broken are the lanes that do not work.
func (r *rail) broken() (list []*lane) {
	r.mu.Lock()
	defer r.unlock()
	for _, l := range r.lanes {
		if !l.works {
			list = append(list, l)
		}
	}
	return list
}

// nextBroken are the lanes to be mended next: those that slices were out on when they failed, or all where none were.
func (r *rail) nextBroken() []*lane {
	all := r.broken()
	r.mu.Lock()
	defer r.unlock()
	idle := func(l *lane) bool { return !l.holdsLocked() }
	if holders := slices.DeleteFunc(slices.Clone(all), idle); r.wanted && len(holders) > 0 {
		return holders
	}
	return all
}

// quieten resets and closes our ends of lanes that do not work. Nothing of them is read or written here afterwards, so
// their READs end. The next connection has a queue pair of another number: an acknowledgement of before that is still
// under way finds nobody. Soft-RoCE would take one for that of a newer WRITE. Slices of a lane that does not end stay
// out.
func (r *rail) quieten(broken []*lane) (failed error) {
	r.work.Lock()
	defer r.work.Unlock()
	for _, l := range broken {
		if l.pair == nil || l.reset {
			continue
		}
		_ = l.pair.Reset() // refused by a device that is lost: to close the pair is as much
		if err := r.closeLane(l); err != nil {
			failed = err
			continue
		}
		r.mu.Lock()
		l.settleLocked(false)
		r.unlock()
	}
	return failed
}

// quietenAll does so with all lanes that do not work. It tries until their queue pairs end, or the transport closes.
func (r *rail) quietenAll() {
	for pause := 5 * time.Millisecond; r.quieten(r.broken()) != nil; pause = min(2*pause, 500*time.Millisecond) {
		if !rest(r.link.t.ctx, pause) {
			return
		}
	}
}

// bury closes the queue pairs of a rail after its end. peer says that those of the peer are closed. Slices of a lane
// that does not end stay without their completion.
func (r *rail) bury(peer bool) {
	r.quietenAll()
	r.work.Lock()
	defer r.work.Unlock()
	for _, l := range r.lanes {
		if r.closeLane(l) != nil {
			continue
		}
		r.mu.Lock()
		l.settleLocked(peer)
		r.unlock()
	}
	r.device.store.leave(r)
	r.clock.Stop()
}

// connect asks the peer to reset its ends of lanes and to connect them with ours, and connects ours.
func (r *rail) connect(lanes []*lane) error {
	if !r.device.use() {
		return r.device.errLost()
	}
	defer r.device.unuse()
	r.work.Lock()
	defer r.work.Unlock()
	list, port, err := r.source()
	if err != nil {
		return err
	}
	from := r.addressing.next(list)
	ours := end{gid: from.own.GID, kind: kindOf(&from.own), skip: from.skip, lid: port.LID, route: port.Global,
		reads: r.device.reads(255)}
	ours.mtu = min(uint32(port.MTU), r.link.t.settings.mtu())
	for _, l := range lanes {
		if err := l.open(); err != nil {
			return err
		}
		ours.lanes = append(ours.lanes, laneEnd{uint8(l.index), l.pair.Number, newPSN(), l.marks})
	}
	theirs, err := r.greet(&ours)
	if err != nil {
		r.misled(err)
		return err
	}
	if len(theirs.lanes) != len(lanes) {
		return errs.New(errs.Protocol, Name, "the peer connected %d of %d lanes", len(theirs.lanes), len(lanes)).
			WithScope(errs.ScopeLink, errs.SideRemote)
	}
	r.mu.Lock()
	for _, l := range lanes {
		l.settleLocked(true)
	}
	r.unlock()
	for i, l := range lanes {
		theirs.lanes[i].marks = l.marks
		path := r.device.path(theirs, &theirs.lanes[i], theirs, ours.lanes[i].psn)
		path.SourceGID, path.Global = uint8(from.own.Index), global(&from.own, &ours, theirs)
		l.reset = false
		if err := join(l.pair, &path); err != nil {
			r.addressing.judge(false)
			return errs.Wrap(errs.RdmaError, Name, err).WithScope(errs.ScopeRail, errs.SidePath)
		}
	}
	r.mu.Lock()
	r.proving, r.from = !r.addressing.proved, from.own
	for _, l := range lanes {
		l.works, l.cause = !r.ended, nil
		l.reset = r.ended
	}
	r.postLocked() // also where it is asked to leave: each turn moves something
	r.unlock()
	return nil
}

// misled counts an answer that no address of the peer goes with ours.
func (r *rail) misled(err error) {
	if errs.CodeOf(err) == errs.RdmaError {
		r.addressing.judge(false)
	}
}

// source is the port that the rail is connected from now, with its addresses.
func (r *rail) source() (list []verbs.GID, port verbs.Port, err error) {
	if !r.device.use() {
		return nil, port, r.device.errLost()
	}
	defer r.device.unuse()
	if port, err = r.device.verbs.Port(r.link.t.settings.Port); err != nil {
		return
	}
	if !port.Active {
		err = errs.New(errs.Lost, Name, "the port of %s is down", r.device.name).
			WithScope(errs.ScopeRail, errs.SideLocal)
		return
	}
	list, err = r.device.addresses()
	return
}

// open makes the queue pair of a lane.
func (l *lane) open() error {
	if l.pair != nil {
		return nil
	}
	requests := min(l.rail.link.t.settings.Requests, l.device.limits.Requests)
	s := &l.rail.link.t.settings
	if !l.device.enter(l) {
		return errs.New(errs.TooManyRequests, Name, "%d lanes of one device, which is the limit", lanesMax).
			WithScope(errs.ScopeRail, errs.SideLocal)
	}
	pair, in, err := l.device.newPair(verbs.Room{Requests: requests, Ranges: min(s.Ranges, l.device.limits.Ranges),
		Inline: int(*s.Inline)})
	if err != nil {
		l.device.leave(l)
		return errs.Wrap(errs.RdmaError, Name, err).WithScope(errs.ScopeRail, errs.SideLocal)
	}
	l.rail.mu.Lock()
	l.pair, l.in, l.reset = pair, in, true
	l.most, l.ring = requests, make([]posted, 1<<bits.Len(uint(requests-1)))
	l.life++
	l.rail.unlock()
	return nil
}

// turn begins a message about the rail in a new turn.
func (r *rail) turn(kind byte) []byte {
	b := message(kind, uint64(r.link.number))
	b = binary.LittleEndian.AppendUint64(b, r.link.turn.Add(1))
	return binary.LittleEndian.AppendUint32(b, uint32(r.index))
}

// greet carries out the call of connect, and applies the news that come with its answer.
func (r *rail) greet(ours *end) (*end, error) {
	l, limit := r.link, r.link.t.settings.DialLimit
	question := ours.encode(append(r.turn(kindConnect), byte(r.far)))
	answer, err := l.call(question, limit)
	if errs.CodeOf(err) == errs.Stale { // it took us for gone (sweep): nothing is under way, and we are here
		if _, err = l.call(l.hello(), limit); err == nil {
			answer, err = l.call(question, limit)
		}
	}
	if err != nil {
		return nil, err
	}
	reader := kit.NewReader(answer)
	theirs := decodeEnd(reader)
	var list []news
	for range min(reader.U32(), newsMost) {
		if reader.Short() {
			break
		}
		list = append(list, decodeNews(reader))
	}
	if !reader.Whole() || !theirs.valid() {
		return nil, errs.New(errs.Protocol, Name, "a malformed answer").WithScope(errs.ScopeLink, errs.SideRemote)
	}
	for _, n := range list {
		named := l.apply(n)
		for _, other := range l.list() {
			other.evict(n.region)
		}
		l.tell(n, named)
	}
	return &theirs, nil
}

// release makes the peer close its ends of the rail, where they cannot be connected now. So slices in limbo end.
func (r *rail) release(lanes []*lane) error {
	l := r.link
	if _, err := l.call(r.turn(kindRelease), silence); err != nil {
		return err
	}
	r.mu.Lock()
	released := errs.New(errs.Lost, Name, "the rail was released").WithScope(errs.ScopeRail, errs.SideUnknown)
	r.failLanesLocked(released) // the peer has closed all of the rail's
	for _, l := range lanes {
		l.settleLocked(true)
	}
	r.unlock()
	return nil
}

// announce brings the rail up in a new generation. It takes nothing before the core has heard.
func (r *rail) announce() error {
	r.mu.Lock()
	if r.ended || r.wanted && !r.connectedLocked() {
		r.unlock()
		return nil // again
	}
	r.generation++
	r.state, r.fenced, r.cause = announced, false, nil
	rail := r.railLocked()
	r.unlock()
	r.link.t.sink.RailUp(transport.RailInfo{Rail: rail, Local: r.device.name, Remote: r.remoteName,
		Device: r.device.wire, Node: r.device.node, Bandwidth: r.device.rate, SlicesMax: slicesMax,
		Alternates: r.alternate})
	r.mu.Lock()
	was, cause := transport.Rail{}, r.cause
	switch {
	case r.state != announced:
		was = rail
	case r.fenced:
		r.state = down
	default:
		r.state = up
	}
	r.unlock()
	if was.Generation != 0 {
		r.link.t.sink.RailDown(was, cause)
	}
	return nil
}

// path is how a queue pair of ours is connected with one of the peer.
func (d *device) path(theirs *end, far *laneEnd, agreed *end, psn uint32) verbs.Path {
	s := &d.t.settings
	return verbs.Path{GID: theirs.gid, Pair: far.pair, PSN: far.psn, OwnPSN: psn, MTU: agreed.mtu, LID: theirs.lid,
		PKey: uint16(s.PKeyIndex), Port: uint8(s.Port), Hops: uint8(s.HopLimit), Flow: uint32(s.FlowLabel),
		Bits: uint8(s.SourceBits), Rate: uint8(s.StaticRate), Traffic: far.traffic, Level: far.level,
		Timeout: uint8(s.Timeout), Retries: uint8(s.Retries), RNRRetries: uint8(s.RNRRetries),
		RNRTimer: uint8(s.RNRTimer), Reads: d.reads(theirs.reads), Served: d.served(theirs.reads)}
}

// reads is how many READs may be under way on a queue pair between this device and one that takes a number of them.
func (d *device) reads(theirs uint8) uint8 {
	return uint8(max(1, min(d.t.settings.Reads, d.limits.Reads, int(theirs), 255)))
}

// served is how many READs of a peer that sends a number of them are served at once.
func (d *device) served(theirs uint8) uint8 {
	return uint8(max(1, min(d.t.settings.ReadsServed, d.limits.Reads, int(theirs), 255)))
}
