package hazard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
)

// Table is the owner's side: its regions, and a page for each peer. All methods may be called from any goroutine; none
// is for the hot path.
//
// A page always follows the table: the permit of a region is 0 while the region is closed, revoked for
// the peer or being fenced, or the page is retired; else its generation and its turn there, and behind them the epoch
// of its last fence.
type Table struct {
	regionsMax uint32

	mu      sync.Mutex
	regions []region // by index
	epoch   Epoch    // the newest of a fence that has ended
	free    []uint32 // indexes
	pages   []*Page
}

type region struct {
	generation uint32
	used       bool  // between Add and Remove
	open       bool  // not yet revoked for good
	shut       int   // revocations under way for every peer
	floor      Epoch // of the last fence for every peer
}

// NewTable makes a table for a number of regions, RegionsMax at most.
func NewTable(regionsMax uint32) *Table { return &Table{regionsMax: min(regionsMax, RegionsMax)} }

// Add names a new region and opens it to every peer that has a page.
func (t *Table) Add() (Region, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.addLocked(Region{})
}

// Succeed gives a region another name, with the fences and the bans of the old one. Nobody enters by the old name any
// more; it stays until Remove. It does not wait: Revoke of the old name does.
func (t *Table) Succeed(old Region) (Region, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.findLocked(old) == nil {
		return Region{}, errs.New(errs.AddressNotRegistered, "hazard.succeed", "no region %d.%d", old.Index,
			old.Generation)
	}
	name, err := t.addLocked(old)
	if err != nil {
		return Region{}, err
	}
	t.regions[old.Index].open = false
	for _, p := range t.pages {
		t.publishLocked(p, old.Index)
	}
	return name, nil
}

// addLocked names a region that takes over from another one; the zero Region is none.
func (t *Table) addLocked(from Region) (Region, error) {
	index := uint32(len(t.regions))
	switch n := len(t.free); {
	case n > 0:
		index, t.free = t.free[n-1], t.free[:n-1]
	case index == t.regionsMax:
		return Region{}, errs.New(errs.TooManyRequests, "hazard.add", "%d regions are registered, which is the limit",
			t.regionsMax)
	default:
		t.regions = append(t.regions, region{})
	}
	r := &t.regions[index]
	*r = region{generation: max(r.generation+1, 1), used: true, open: true}
	before := t.findLocked(from)
	if before != nil {
		r.open, r.floor = before.open, before.floor
	}
	for _, p := range t.pages {
		p.grow(len(t.regions))
		p.cells[index] = cell{turn: 1}
		if before != nil {
			p.cells[index].banned, p.cells[index].floor = p.cells[from.Index].banned, p.cells[from.Index].floor
		}
		t.publishLocked(p, index)
	}
	return Region{index, r.generation}, nil
}

// NewPage makes the page of a peer, with permits for all regions there are. pidfd is of the peer's process, taken when
// we knew that it was the peer's; it stays the caller's. -1 stands for our own process.
func (t *Table) NewPage(pid, pidfd int) (*Page, error) {
	fd, s, err := create(t.regionsMax)
	if err != nil {
		return nil, errs.Wrap(errs.OutOfMemory, "hazard.page", err)
	}
	p := &Page{shared: s, fd: fd, pid: pid, pidfd: -1}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && pidfd >= 0 {
		p.pidfd, err = unix.FcntlInt(uintptr(pidfd), unix.F_DUPFD_CLOEXEC, 0)
	}
	if err != nil {
		p.release()
		return nil, errs.Wrap(errs.Internal, "hazard.page", err)
	}
	p.inode = st.Ino
	t.mu.Lock()
	defer t.mu.Unlock()
	p.grow(len(t.regions))
	t.pages = append(t.pages, p)
	p.header().epoch.Store(uint64(t.epoch))
	for i := range t.regions {
		p.cells[i] = cell{turn: 1}
		t.publishLocked(p, uint32(i))
	}
	return p, nil
}

// grow makes room for the cells of n regions. The new ones are set by the caller.
func (p *Page) grow(n int) { p.cells = append(p.cells, make([]cell, max(0, n-len(p.cells)))...) }

// publishLocked writes a region's permit into a page. The store is a full barrier towards the reads of slots that
// follow. The floor comes first: a copier that finds the permit finds it, and one that found an older permit before the
// floor finds another permit in its slot.
func (t *Table) publishLocked(p *Page, index uint32) {
	r, c := &t.regions[index], &p.cells[index]
	var now Permit
	if r.open && r.shut == 0 && c.shut == 0 && !c.banned && !p.retired {
		now = permit(r.generation, c.turn)
		p.floor(index).Store(uint64(max(r.floor, c.floor)))
	}
	p.permit(index).Store(uint64(now))
}

// findLocked returns a region that was added and not removed, or nil.
func (t *Table) findLocked(r Region) *region {
	if int64(r.Index) >= int64(len(t.regions)) {
		return nil
	}
	if found := &t.regions[r.Index]; found.used && found.generation == r.Generation {
		return found
	}
	return nil
}

// Revoke takes a region back from the peer of a page, or from every peer if p is nil. Nobody enters any more, and it
// returns when none of those that were inside are, or when ctx ends, which must have a deadline. Afterwards, also after
// an error, tasks of the epoch and of later ones enter again. Peers find it by View.Epoch. With ForGood, the region
// stays closed to the peer, or to all until Remove. The error is an *errs.Error around a *HeldError, which names a
// process that is still inside. The memory is not safe then; ask Held.
func (t *Table) Revoke(ctx context.Context, r Region, p *Page, epoch Epoch) error {
	pages, err := t.shut(r, p, epoch)
	if err != nil {
		return err
	}
	var held *HeldError
	for _, page := range pages {
		if h := page.await(ctx, &r); h != nil && held == nil {
			held = h
		}
	}
	t.reopen(r, p, pages, epoch)
	if held != nil {
		return heldError("hazard.revoke", held)
	}
	return nil
}

func heldError(op string, held *HeldError) error {
	e := errs.Wrap(errs.Timeout, op, held).WithScope(errs.ScopeSlice, errs.SideRemote)
	return e.WithHint("continue or end process %d, or keep the memory as it is", held.PID)
}

// shut begins a revocation and returns the pages on which to wait; reopen ends it.
func (t *Table) shut(r Region, only *Page, epoch Epoch) ([]*Page, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	state := t.findLocked(r)
	if state == nil {
		return nil, errs.New(errs.AddressNotRegistered, "hazard.revoke", "no region %d.%d", r.Index, r.Generation)
	}
	if only == nil {
		state.shut++
		state.open = state.open && epoch != ForGood
		state.floor = max(state.floor, epoch)
	}
	var pages []*Page
	for _, p := range t.pages {
		if only != nil && p != only {
			continue
		}
		c := &p.cells[r.Index]
		if c.turn++; c.turn == 0 {
			c.turn = 1
		}
		if only != nil {
			c.shut++
			c.banned = c.banned || epoch == ForGood
			c.floor = max(c.floor, epoch)
		}
		t.publishLocked(p, r.Index)
		p.waiters++
		pages = append(pages, p)
	}
	return pages, nil
}

func (t *Table) reopen(r Region, only *Page, pages []*Page, epoch Epoch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.epoch = max(t.epoch, epoch)
	if state := t.findLocked(r); state != nil { // else it was removed meanwhile
		if only == nil {
			state.shut--
		}
		for _, p := range t.pages {
			if only == p {
				p.cells[r.Index].shut--
			}
			t.publishLocked(p, r.Index)
		}
	}
	for _, p := range pages {
		p.waiters--
	}
	for _, p := range t.pages { // also of a peer that came meanwhile. The permits are published: its tasks may enter
		if only == nil || only == p {
			p.header().epoch.Store(uint64(t.epoch))
		}
	}
	t.sweepLocked()
}

// Remove ends a region: its name is never used again. It does not wait: Revoke does, before.
func (t *Table) Remove(r Region) {
	t.mu.Lock()
	defer t.mu.Unlock()
	state := t.findLocked(r)
	if state == nil {
		return
	}
	state.used, state.open = false, false
	for _, p := range t.pages {
		t.publishLocked(p, r.Index)
	}
	t.free = append(t.free, r.Index)
}

// Held returns a process that still touches a region, also one that was removed. While there is one, the memory must
// neither be unmapped nor used for something else.
func (t *Table) Held(r Region) (Holder, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.pages {
		if h, taken := p.held(&r); taken {
			return h, true
		}
	}
	return Holder{}, false
}

// Retire takes all regions back from a peer that is detached or has ended, and lets its page go. When
// the peer is still inside a copy at the end of ctx it says so; the page then goes later, and counts in Revoke and Held
// until.
func (t *Table) Retire(ctx context.Context, p *Page) error {
	t.mu.Lock()
	if !slices.Contains(t.pages, p) {
		t.mu.Unlock()
		return nil
	}
	p.retired = true
	p.waiters++
	for i := range t.regions {
		t.publishLocked(p, uint32(i))
	}
	t.mu.Unlock()
	held := p.await(ctx, nil)
	t.mu.Lock()
	defer t.mu.Unlock()
	p.waiters--
	t.sweepLocked()
	if held != nil {
		return heldError("hazard.retire", held)
	}
	return nil
}

// Has reports whether a page is there still: a retired one goes when nobody is inside.
func (t *Table) Has(p *Page) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Contains(t.pages, p)
}

// sweepLocked lets retired pages go in which no slot counts any more.
func (t *Table) sweepLocked() {
	t.pages = slices.DeleteFunc(t.pages, func(p *Page) bool {
		if !p.retired || p.waiters > 0 {
			return false
		}
		if _, taken := p.held(nil); taken {
			return false
		}
		p.release()
		return true
	})
}

// Close retires every page, waiting until ctx ends for copiers that are inside. The error names all that still are:
// memory that they touch must stay mapped for as long as this process lives, since nothing is left that could tell when
// they are done.
func (t *Table) Close(ctx context.Context) error {
	t.mu.Lock()
	pages := slices.Clone(t.pages)
	t.mu.Unlock()
	var all []error
	for _, p := range pages {
		all = append(all, t.Retire(ctx, p))
		t.settle(ctx, p)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.pages {
		if p.waiters > 0 {
			all = append(all, fmt.Errorf("a revocation from process %d is under way", p.pid))
			continue
		}
		p.release()
	}
	t.pages = slices.DeleteFunc(t.pages, func(p *Page) bool { return p.waiters == 0 })
	return errors.Join(all...)
}

// settle waits for revocations of a page by other goroutines. One that has seen the last copier leave still has to say
// so.
func (t *Table) settle(ctx context.Context, p *Page) {
	under := func() bool {
		t.mu.Lock()
		defer t.mu.Unlock()
		return p.waiters > 0
	}
	look := time.NewTicker(pauseMin)
	defer look.Stop()
	for under() {
		select {
		case <-look.C:
		case <-ctx.Done():
			return
		}
	}
}

// release gives back the resources of a page.
func (p *Page) release() {
	p.unmap()
	_ = unix.Close(p.fd)
	if p.pidfd >= 0 {
		_ = unix.Close(p.pidfd)
	}
}
