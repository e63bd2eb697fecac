package hazard

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Page is the owner's side of the page of one peer. It belongs to a Table, and only methods of that change it.
type Page struct {
	shared
	fd    int // of the memfd
	pidfd int // -1: our own process
	pid   int
	inode uint64
	ended atomic.Bool // the peer's process has ended or no longer maps the page: every slot is void, for good

	// Under Table.mu.
	cells   []cell // by index of the region
	retired bool   // no permits any more; goes when no slot is taken and nobody waits
	waiters int
}

// cell is the state of one region in a page.
type cell struct {
	turn   uint32 // of the last permit: grows with each revocation
	floor  Epoch  // of the last fence for this peer alone
	shut   int    // fences under way for this peer
	banned bool   // revoked for this peer, for good
}

// Fd is the descriptor to hand to the peer. It stays the page's.
func (p *Page) Fd() int { return p.fd }

// Left reports whether the peer has said by View.Quit that it is done with the page. It must still be retired.
func (p *Page) Left() bool { return p.header().left.Load() == quit }

// Withhold makes the page one that NewView refuses, until Offer. If Mapped then says no, the peer never comes, and the
// page can be retired: a peer that maps it after that look finds it withheld. It reports false for a page that
// the peer has left, or that is withheld already.
func (p *Page) Withhold() bool { return p.header().left.CompareAndSwap(0, withheld) }

// Offer ends Withhold.
func (p *Page) Offer() { p.header().left.CompareAndSwap(withheld, 0) }

// Holder names a process that touches a region, and the slot through which it does.
type Holder struct {
	PID    int
	Slot   int
	Region Region
}

// HeldError says that a wait came to its end before a copier was done.
type HeldError struct {
	Holder
	State string // of the process, as far as known: "stopped", "running", ...
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("process %d (%s) is inside a copy with region %d.%d (slot %d)", e.PID, e.State, e.Region.Index,
		e.Region.Generation, e.Slot)
}

// holder returns the process that is in a slot now.
func (p *Page) holder(slot uint32) (Holder, bool) {
	word := p.slot(slot).Load()
	return Holder{p.pid, int(slot), Region{uint32(word>>32) - 1, uint32(word)}}, word != 0
}

// held returns the first process that touches a region, or any region if r is nil.
func (p *Page) held(r *Region) (Holder, bool) {
	for i := range uint32(Slots) {
		if h, taken := p.holder(i); taken && (r == nil || h.Region == *r) && !p.void() {
			return h, true
		}
	}
	return Holder{}, false
}

// await returns nil when each slot has once been seen without the region, or with nothing at all if r is nil. The
// caller has revoked it before, so that later entries are refused.
func (p *Page) await(ctx context.Context, r *Region) *HeldError {
	for i := range uint32(Slots) {
		wait := waiting{page: p}
		for {
			h, taken := p.holder(i)
			if !taken || r != nil && h.Region != *r {
				break
			}
			if wait.over(ctx) {
				return &HeldError{h, state(p.pid)}
			}
			if p.ended.Load() {
				return nil
			}
		}
	}
	return nil
}

// Pauses of a wait: most copies end while we spin, and no signal comes when a longer one does. A signal would cost each
// copier a system call.
const (
	spins    = 100
	pauseMin = 50 * time.Microsecond
	pauseMax = 2 * time.Millisecond
	mapsLook = 20 // sleeps between looks at the peer's mappings
)

// waiting is one wait for one slot.
type waiting struct {
	page  *Page
	looks int
	pause time.Duration
}

// over waits a little and reports whether the time is up.
func (w *waiting) over(ctx context.Context) bool {
	if w.looks++; w.looks < spins {
		runtime.Gosched()
		return false
	}
	if ctx.Err() != nil {
		return !w.page.void()
	}
	w.pause = min(max(2*w.pause, pauseMin), pauseMax)
	pause := w.pause
	if end, bounded := ctx.Deadline(); bounded {
		pause = min(pause, max(time.Until(end), 0))
	}
	w.page.sleep(pause)
	if w.looks%mapsLook == 0 && !w.page.Mapped() {
		w.page.ended.Store(true)
	}
	return false
}

// sleep returns after a pause, or when the peer ends.
func (p *Page) sleep(pause time.Duration) {
	timeout := unix.NsecToTimespec(pause.Nanoseconds())
	set := [1]unix.PollFd{{Fd: int32(p.pidfd), Events: unix.POLLIN}} // a negative descriptor is ignored by the kernel
	if n, err := unix.Ppoll(set[:], &timeout, nil); err == nil && n > 0 {
		p.ended.Store(true)
	}
}

// void reports whether the peer's process has ended: no slot counts.
func (p *Page) void() bool {
	if !p.ended.Load() {
		p.sleep(0)
	}
	return p.ended.Load()
}

// Mapped reports whether the peer maps the page. One that called exec does not, and cannot touch anything of before.
// Where we may not look, we believe that it does.
func (p *Page) Mapped() bool {
	if p.pidfd < 0 {
		return true
	}
	maps, err := os.ReadFile("/proc/" + strconv.Itoa(p.pid) + "/maps")
	if err != nil || len(maps) == 0 {
		return true
	}
	return bytes.Contains(maps, []byte(" "+strconv.FormatUint(p.inode, 10)+" "))
}

// state describes a process in a word.
func state(pid int) string {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if i := bytes.LastIndex(stat, []byte(") ")); err == nil && i >= 0 && i+2 < len(stat) {
		switch stat[i+2] {
		case 'T', 't':
			return "stopped"
		case 'D':
			return "waiting for a device"
		case 'R', 'S':
			return "running"
		}
	}
	return "in an unknown state"
}
