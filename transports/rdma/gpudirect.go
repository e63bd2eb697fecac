package rdma

import (
	"sync"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/rdma/verbs"
)

// Memory of devices is reached by NICs directly, where the platform gives it as a dma-buf, or the kernel has a driver
// that finds it by address. A NIC and a device that have failed each other are kept apart for a while, by pairs: the
// same NIC goes on to serve other memory. Registration does not show it, since an IOMMU or ACS refuses when bytes move.
//
//	reached ──threshold errors inside the window──▶ apart ──cooldown, which doubles each time──▶ reached

// reachKey names a NIC and memory of a device: ours by location, a peer's by region.
type reachKey struct {
	peer     transport.ID // zero for ours
	nic      int
	location mem.Location
	region   uint64
}

// apartMost is the longest pause of a pair, as that of a rail.
const apartMost = 300 * time.Second

// reachTable holds the pairs that had errors. A healthy pair has no entry.
type reachTable struct {
	mu    sync.Mutex
	pairs map[reachKey]*reachState
}

type reachState struct {
	errors int
	first  clock.Time // of these errors
	until  clock.Time // the pair is apart
	pause  time.Duration
}

// reachMost bounds the table: pairs that are apart no longer make room.
const reachMost = 4096

// struck counts an error of a pair, and reports whether the pair is apart from now on.
func (t *reachTable) struck(key reachKey, s *Settings, now clock.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.pairs[key]
	if r == nil {
		if len(t.pairs) >= reachMost {
			clear(t.pairs)
		}
		if t.pairs == nil {
			t.pairs = map[reachKey]*reachState{}
		}
		r = &reachState{first: now, pause: s.GDRCooldown}
		t.pairs[key] = r
	}
	if now > r.first.Add(s.GDRWindow) {
		r.errors, r.first = 0, now
	}
	if r.errors++; r.errors < s.GDRThreshold {
		return false
	}
	r.errors, r.until = 0, now.Add(r.pause)
	r.pause = min(2*r.pause, apartMost)
	return true
}

// apart reports whether a pair is kept apart.
func (t *reachTable) apart(key reachKey, now clock.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.pairs[key]
	return r != nil && now < r.until
}

// onDevice reports memory of a device to which NICs have a way.
func onDevice(kind mem.Kind) bool { return kind == mem.Cuda || kind == mem.Rocm }

func (r *rail) ownReach(own *region) reachKey {
	return reachKey{nic: r.device.index, location: own.Location}
}

func (r *rail) farReach(m *remote) reachKey {
	return reachKey{peer: r.link.peer.ID, nic: r.far, region: m.region}
}

// unreached returns why a slice with memory of a device may not go over the rail now, nil if it may.
func (r *rail) unreached(o *op) *errs.Error {
	own, far := onDevice(o.owner.Kind), o.remote.onDevice
	if !own && !far {
		return nil
	}
	t, now := r.link.t, clock.Now()
	switch {
	case own && t.reach.apart(r.ownReach(o.owner), now):
		return errs.New(errs.NotHere, Name, "%s has failed to reach %s", r.device.name, o.owner.Location).
			WithScope(errs.ScopeRail, errs.SideLocal)
	case far && t.reach.apart(r.farReach(o.remote), now):
		return errs.New(errs.NotHere, Name, "%s of the peer has failed to reach memory of its device", r.remoteName).
			WithScope(errs.ScopeRail, errs.SideRemote)
	}
	return nil
}

// blameReach counts an error of a slice with memory of a device, by the end that its status names. A flush reads memory
// of the peer alone.
func (r *rail) blameReach(o *op, flush bool, status verbs.Status) {
	if o.owner == nil || o.remote == nil {
		return
	}
	t := r.link.t
	end, key := "", reachKey{}
	switch side := blameOf(status).side; {
	case reachErrors[status] && side == errs.SideLocal && onDevice(o.owner.Kind) && !flush:
		end, key = string(o.owner.Location), r.ownReach(o.owner)
	case reachErrors[status] && side == errs.SideRemote && o.remote.onDevice:
		end, key = "memory of the peer's device", r.farReach(o.remote)
	default:
		return
	}
	if t.reach.struck(key, &t.settings, clock.Now()) {
		t.host.Log().Warn("rdma: a NIC does not reach memory of a device", "rail", r.name(), "memory", end,
			"status", status.String())
	}
}

// reachErrors are the statuses of a NIC that does not reach memory with a good key.
var reachErrors = map[verbs.Status]bool{4: true, 8: true, 10: true, 11: true}
