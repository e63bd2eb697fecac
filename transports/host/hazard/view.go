package hazard

import (
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
)

// View is a peer's side of an owner's page: its copiers take slots from it. Any goroutine may use it. Its mapping
// goes when nobody has the View any more, or by Unmap: a copier that comes late finds a page that refuses it, never a
// hole.
type View struct {
	shared
	cleanup runtime.Cleanup
}

// Slot is a taken slot, or why there is none.
type Slot int32

// Results of Enter other than a slot.
const (
	Revoked Slot = -1 // the region is closed, or was fenced in a later epoch
	Busy    Slot = -2 // all slots are taken
)

// NewView maps the page behind a descriptor that the owner handed over. The descriptor stays the caller's and is not
// needed any more. The error says why the page is refused; nothing in it is believed without a check. It wraps ESTALE
// when the owner takes the page back, or looks whether to.
func NewView(fd int) (*View, error) {
	s, err := open(fd)
	if err != nil {
		return nil, err
	}
	if s.header().left.Load() == withheld {
		s.unmap()
		return nil, fmt.Errorf("the owner has taken the page back: %w", unix.ESTALE)
	}
	v := &View{shared: s}
	v.cleanup = runtime.AddCleanup(v, func(s shared) { s.unmap() }, s)
	return v, nil
}

// Unmap takes the mapping down at once. No method of v may be running or be called afterwards.
func (v *View) Unmap() {
	v.cleanup.Stop()
	v.unmap()
}

// Permit returns the owner's permit for a region now. It is 0 for a region that was revoked or never was.
func (v *View) Permit(r Region) Permit {
	if r.Index >= v.regions {
		return 0
	}
	p := Permit(v.permit(r.Index).Load())
	runtime.KeepAlive(v)
	if p.generation() != r.Generation {
		return 0
	}
	return p
}

// Epoch returns the newest epoch that tasks which begin now may carry.
func (v *View) Epoch() Epoch {
	e := v.header().epoch.Load()
	runtime.KeepAlive(v)
	return Epoch(e)
}

// Enter takes a slot for touching a region in a task's epoch. From a slot on until Leave the owner waits for us; be
// short: one piece of a copy. hint is where to look first: a worker's number, or Hint. The cost is one locked
// instruction where the hint's slot is free.
func (v *View) Enter(r Region, epoch Epoch, hint uint32) Slot {
	if r.Index >= v.regions {
		return Revoked
	}
	now := v.permit(r.Index)
	p := Permit(now.Load())
	if p.generation() != r.Generation || uint64(epoch) < v.floor(r.Index).Load() {
		return Revoked // without a slot: nobody keeps a slot busy by trying again and again
	}
	name := r.name()
	for i := range uint32(Slots) {
		at := (hint + i) % Slots
		if !v.slot(at).CompareAndSwap(0, name) {
			continue
		}
		if Permit(now.Load()) != p {
			v.Leave(Slot(at))
			return Revoked
		}
		return Slot(at)
	}
	return Busy
}

// busyMost bounds Await.
const busyMost = time.Second

// Await is Enter after Busy: it tries again until it has a slot, but no longer than a second, nor after over is true.
// Copiers of this process hold a slot for one piece. Where all stay taken, the owner has written to them, or its page
// is broken.
func (v *View) Await(r Region, epoch Epoch, hint uint32, over func() bool) Slot {
	slot := Busy
	for end := time.Now().Add(busyMost); slot == Busy && !over() && time.Now().Before(end); {
		runtime.Gosched()
		slot = v.Enter(r, epoch, hint)
	}
	return slot
}

// Taken is the error of a transport's link to a peer, after an Await that ended Busy.
func Taken(name, peer string) *errs.Error {
	return errs.New(errs.Protocol, name, "all slots of the peer's page stay taken, and not by this process").
		WithScope(errs.ScopeLink, errs.SideRemote).WithPeer(peer, name, "")
}

// Leave gives a slot back that Enter returned, when nothing of the region will be touched under it any more.
func (v *View) Leave(s Slot) {
	clear64(v.slot(uint32(s) % Slots))
	runtime.KeepAlive(v)
}

// Quit notes in the page that no copier of this process enters any more: a message about it may be lost. None may be
// inside.
func (v *View) Quit() {
	v.header().left.Store(quit)
	runtime.KeepAlive(v)
}

// Empty reports whether no copier of this process is inside of any region. Only then Quit may be called.
func (v *View) Empty() bool {
	empty := true
	for i := range uint32(Slots) {
		empty = empty && v.slot(i).Load() == 0
	}
	runtime.KeepAlive(v)
	return empty
}

// Inside reports whether a copier of this process touches a region now. A caller that wants to unmap the region's
// mapping here first makes sure that nobody enters any more and then waits for this.
func (v *View) Inside(r Region) bool {
	name, inside := r.name(), false
	for i := range uint32(Slots) {
		inside = inside || v.slot(i).Load() == name
	}
	runtime.KeepAlive(v)
	return inside
}
