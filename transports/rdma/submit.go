package rdma

import (
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// Submit implements transport.Transport. Every check is made here: a work request that the peer's NIC would refuse
// costs a queue pair.
func (t *Transport) Submit(list []*transport.Slice) int {
	if len(list) == 0 {
		return 0
	}
	which := list[0].Rail
	r := t.links.Lookup(which.Link).rail(which.Index)
	if r == nil {
		return 0
	}
	r.mu.Lock()
	if r.generation != which.Generation || r.generation == 0 || r.state == down {
		r.unlock()
		return 0
	}
	if r.state == announced {
		r.starved = true
		r.unlock()
		return 0
	}
	r.wakeLocked()
	r.run.straight = r.straightLocked(list)
	n := 0
	for i, s := range list {
		o := r.vacantLocked()
		if o == nil {
			r.starved = true
			break
		}
		r.acceptLocked(o, s, len(list)-i)
		if t.settings.LogSlices {
			t.host.Log().Info("rdma: slice", "rail", r.name(), "op", s.Op, "class", s.Class, "bytes", s.Length)
		}
		n++
	}
	r.pumpLocked()
	r.unlock()
	return n
}

// run holds the look-ups that consecutive slices share. It lasts as long as the rail's mutex is held. The terms of a
// region are looked at for each slice.
type run struct {
	straight bool // slices are posted as they come

	local transport.LocalKey
	far   transport.RemoteKey
	owner *region // nil: none was looked up
	there *remote
	keys  keyPair // of the two, in memory of hosts; here is nil: not looked up

	lane  *lane // of the latest slice
	class int
	op    transport.Op
	bytes uint64 // out on the lane when it was chosen
}

// keyPair are the keys of a slice's ends for the devices of a rail.
type keyPair struct {
	here  *memory
	there *remoteKey
}

// straightLocked reports whether slices need not wait in the queue: none is there, and they are of one class.
func (r *rail) straightLocked(list []*transport.Slice) bool {
	if r.state != up || r.proving || r.leaving || r.queue.Urgent() < kit.Classes {
		return false
	}
	class := list[0].Class
	for _, s := range list {
		if s.Class != class {
			return false
		}
	}
	return true
}

// acceptLocked makes an op of a slice, one of as many that are left. One that may not be carried out ends at once.
func (r *rail) acceptLocked(o *op, s *transport.Slice, left int) {
	o.slice, o.id = s, s.Id
	s.Scratch[0] = uint64(o.index)
	k := &r.run
	if s.LocalKey != k.local || s.RemoteKey != k.far || k.owner == nil || k.there == nil {
		k.local, k.far, k.keys = s.LocalKey, s.RemoteKey, keyPair{}
		k.owner, k.there = r.link.t.regions.Lookup(k.local), r.link.keys.Lookup(k.far)
	}
	o.remote = k.there
	if k.owner == nil || !r.spare.take(k.owner, int64(left)) {
		r.finishLocked(o, refusal(errs.AddressNotRegistered, errs.SideLocal, "no region has the local key"))
		return
	}
	o.owner = k.owner
	keys, err := r.check(o, s)
	if err != nil {
		r.finishLocked(o, err)
		return
	}
	class := kit.ClassOf(s.Class)
	if !k.straight || !r.buildLocked(class, o, &keys) {
		k.straight = false
		r.queue.PushBack(class, o, &o.place)
	}
}

// buildLocked puts a slice into the chain of a lane. It reports whether all of it is there.
func (r *rail) buildLocked(class int, o *op, keys *keyPair) bool {
	l := r.choose(class, o.slice)
	if l == nil {
		return false
	}
	o.lane = l
	whole := l.buildLocked(o, keys)
	if !l.takes() {
		l.postLocked()
	}
	return whole
}

func refusal(code errs.Code, side errs.Side, cause string) *errs.Error {
	return errs.New(code, Name, "%s", cause).WithScope(errs.ScopeSlice, side)
}

// check returns the keys of a slice, or why it may not be carried out. The look-ups of the run are those of the slice.
func (r *rail) check(o *op, s *transport.Slice) (keyPair, *errs.Error) {
	m := o.remote
	if m == nil {
		return keyPair{}, refusal(errs.AddressNotRegistered, errs.SideRemote, "no imported region has the remote key")
	}
	if code := kit.CheckLocal(s, o.owner.Addr, o.owner.Size, o.owner.ReadOnly); code != errs.OK {
		return keyPair{}, refusal(code, errs.SideLocal, "the local range is not in its region, or not for this use")
	}
	if !m.permission.Allows(s.Op == transport.Write) || !kit.InsideRemote(s, m.size) {
		return keyPair{}, m.forbids(s)
	}
	k := &r.run
	if k.keys.here != nil && m.admits(s.Epoch) {
		return k.keys, nil
	}
	keys, err := r.keysOf(o)
	if err == nil && !onDevice(o.owner.Kind) && !m.onDevice {
		k.keys = keys // those of devices are asked for each time: a NIC may have failed to reach one
	}
	return keys, err
}

// forbids returns why a slice may not be carried out that the region's terms or its bounds exclude.
func (m *remote) forbids(s *transport.Slice) *errs.Error {
	if err := m.refuses(s.Epoch); err != nil {
		return err
	}
	if !m.permission.Allows(s.Op == transport.Write) {
		return refusal(errs.PermissionDenied, errs.SideRemote, "the owner of the region does not allow it")
	}
	return refusal(errs.InvalidArgument, errs.SideRemote, "the remote range is not in its region")
}

// Match implements transport.Matcher: on rails of a device that did not take a region, keys do not work.
func (t *Transport) Match(number transport.Link, local transport.LocalKey, key transport.RemoteKey) (transport.Match,
	error,
) {
	l := t.links.Lookup(number)
	if l == nil {
		return transport.Match{}, kit.StaleLink("rdma.match", number)
	}
	own, m := t.regions.Lookup(local), l.keys.Lookup(key)
	if own == nil || m == nil {
		return transport.Match{}, kit.NoRegion("rdma.match", local)
	}
	match, whole := transport.Match{}, true
	rails := l.list()
	devices := make([]*device, len(rails))
	for i, r := range rails {
		devices[i] = r.device
		why := t.leavesOut(own, m, r)
		if why == "" {
			match.Rails |= 1 << min(i, 63)
		} else {
			whole, match.Why = false, why
		}
		if m.near != nil {
			match.There = append(match.There, m.nearOf(r.far))
		}
	}
	match.Near = t.ranks(own, devices)
	if whole {
		match.Rails = 0
	} else if match.Rails == 0 {
		return match, errs.New(errs.NotHere, "rdma.match", "%s", match.Why)
	}
	return match, nil
}

// leavesOut returns why the keys of a region do not work on a rail, "" where they do.
func (t *Transport) leavesOut(own *region, m *remote, r *rail) string {
	k := own.keys.Load()
	_, used := t.matrix.rank(own.Location, r.device.name)
	switch here := k.own(r.device.index) != nil || r.device.lost.Load(); { // one that returns will take it
	case !used:
		return "the priority matrix leaves " + r.device.name + " out for " + string(own.Location)
	case !here && k.why != nil:
		return k.why.Error()
	case !here:
		return r.device.name + " did not take the memory"
	case m.key(r.far).state == keyNone:
		return r.remoteName + " of the peer did not take the region"
	}
	return ""
}

// Probe implements transport.Prober by an empty WRITE.
func (t *Transport) Probe(which transport.Rail, done func(clock.Time, *errs.Error)) {
	begun := clock.Now()
	r := t.links.Lookup(which.Link).rail(which.Index)
	if r == nil {
		done(0, refusal(errs.StaleGeneration, errs.SideLocal, "no such rail"))
		return
	}
	told := func(err *errs.Error) { done(clock.Now()-begun, err) }
	r.mu.Lock()
	sent := r.generation == which.Generation && r.state == up
	if sent {
		r.wakeLocked()
		if sent = r.probeLocked(told); !sent && r.mending && len(r.asks) < asksMax {
			r.asks = append(r.asks, ask{told, begun})
			sent = true
		}
	}
	r.unlock()
	if !sent {
		done(0, refusal(errs.StaleGeneration, errs.SideLocal, "the rail is not up in this generation, or is full"))
	}
}

// ask is a probe of a rail whose lanes are being connected.
type ask struct {
	done  func(*errs.Error)
	begun clock.Time
}

// asksMax bounds them. One that waited for askLimit has failed.
const (
	asksMax  = 64
	askLimit = 900 * time.Millisecond
)

// askLocked sends the probes that wait for lanes.
func (r *rail) askLocked() {
	for len(r.asks) > 0 && r.probeLocked(r.asks[0].done) {
		r.asks = r.asks[1:]
	}
}

// pushes reports whether WRITEs to a region are flushed: those to memory of a device always, unless the user trusts
// acknowledgements.
func (t *Transport) pushes(m *remote) bool {
	return t.flush || m.onDevice && t.settings.Visibility != "acknowledged"
}

// Flushes implements transport.Flusher.
func (t *Transport) Flushes() uint64 { return t.flushes.Load() }
