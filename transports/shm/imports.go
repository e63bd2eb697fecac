package shm

import (
	"fmt"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/host/access"
	"github.com/tent-engine/tent/transports/host/hazard"
	"github.com/tent-engine/tent/transports/host/manifest"
	"github.com/tent-engine/tent/transports/kit"
)

// imported is a peer's region on a link. It is immutable; a change replaces it in the link's table.
type imported struct {
	key    transport.RemoteKey // generation<<32 | index+1 in the link's table
	name   hazard.Region
	size   uint64
	reads  bool    // we may
	writes bool    // we may
	base   uintptr // of its first byte in our own address space, 0 if it is not there
	remote uintptr // of its first byte in the peer's, if base is 0 and the kernel moves bytes between the two
	on     *mapping
	told   manifest.Region
	why    *errs.Error // neither base nor remote: why not
}

// mapped names a mapping: a file of the peer, as far as we may touch it.
type mapped struct {
	dev, ino uint64
	writable bool
}

// mapping is a file of the peer in our address space, whole, for all regions in it.
type mapping struct {
	key   mapped
	addr  uintptr
	size  uintptr
	users int  // imports; under link.mu
	kept  bool // a copier inside could not be waited for: it stays for as long as the process lives; under link.mu
}

// span is a range of a mapping.
type span struct{ addr, size uintptr }

// find returns the import of a key, nil if there is none. Hot: no lock, no map.
func (l *link) find(key transport.RemoteKey) *imported {
	table := *l.imports.Load()
	if i := uint64(uint32(key)) - 1; i < uint64(len(table)) && table[i] != nil && table[i].key == key {
		return table[i]
	}
	return nil
}

// Import makes a peer's region usable. It is mapped where it can be, without touching its pages, which the link's
// goroutine does later, else reached through the kernel. It waits for the greeting to end, at most its limit, so that
// the error can say why a region cannot be reached, and the region's plan goes elsewhere.
func (t *Transport) Import(number transport.Link, d transport.Descriptor) (transport.RemoteKey, error) {
	l := t.links.Lookup(number)
	if l == nil {
		return 0, kit.StaleLink("shm.import", number)
	}
	name, err := readDescriptor(d, l.Peer.ID)
	if err != nil {
		return 0, err.WithPeer(l.Peer.Address, Name, "")
	}
	limit := time.NewTimer(access.GreetLimit)
	defer limit.Stop()
	select {
	case <-l.Greeted():
	case <-limit.C:
	}
	if cause := l.Gone(); cause != nil {
		return 0, cause
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if key, known := l.byName[name]; known {
		return key, nil
	}
	r := l.resolveLocked(name)
	if r.why != nil && l.met {
		return 0, r.why
	}
	l.enterLocked(r)
	l.byName[name] = r.key
	return r.key, nil
}

// enterLocked puts an import into the table, at an index that is free, and gives it its key.
func (l *link) enterLocked(r *imported) {
	l.imported++
	table := *l.imports.Load()
	if last := len(l.vacant) - 1; last >= 0 {
		i := l.vacant[last]
		l.vacant = l.vacant[:last]
		table = slices.Clone(table)
		r.key = l.imported<<32 | transport.RemoteKey(i+1)
		table[i] = r
	} else {
		r.key = l.imported<<32 | transport.RemoteKey(len(table)+1)
		table = append(table, r) // room beyond the length is not seen through the old slice
	}
	l.imports.Store(&table)
}

// Forget implements transport.Transport. It returns when no copier is inside the region by this key.
func (t *Transport) Forget(number transport.Link, key transport.RemoteKey) {
	l := t.links.Lookup(number)
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.find(key)
	if r == nil {
		return
	}
	i := uint32(key) - 1
	table := slices.Clone(*l.imports.Load())
	table[i] = nil
	l.imports.Store(&table)
	l.vacant = append(l.vacant, i)
	if l.byName[r.name] == key {
		delete(l.byName, r.name)
	}
	if r.on != nil {
		l.release(r)
	}
}

// release gives up a region's part of its mapping. The table does not hold the region any more, so nobody enters. It
// waits for the copiers that are inside; they end within a piece, but for one that page faults hold up.
func (l *link) release(r *imported) {
	m, end := r.on, time.Now().Add(leaveLimit)
	for l.view.Inside(r.name) && !m.kept {
		time.Sleep(10 * time.Microsecond)
		m.kept = time.Now().After(end)
	}
	if m.users--; m.users == 0 {
		l.unmap(m)
	}
}

// unmap takes a mapping down that no region has.
func (l *link) unmap(m *mapping) {
	delete(l.mappings, m.key)
	l.fresh = slices.DeleteFunc(l.fresh, func(s span) bool { return s.addr-m.addr < m.size })
	if !m.kept {
		_ = unix.MunmapPtr(mem.Pointer(m.addr), m.size)
		l.t.mapped.Add(-int64(m.size))
	}
}

// resolveLocked finds the way to a region that the peer's manifest lists.
func (l *link) resolveLocked(name hazard.Region) *imported {
	r := &imported{name: name}
	if l.access == nil {
		r.why = errs.New(errs.PeerUnreachable, "shm.import", "the peer has not answered our greeting yet").
			WithScope(errs.ScopeLink, errs.SidePath)
		return r
	}
	d, listed := l.access.Offers.Find(name.Index, name.Generation)
	if r.why = l.closed(&d, listed); r.why != nil {
		return r
	}
	r.told, r.size = d, d.Size
	r.reads = l.Peer.Self || d.Allows.Allows(false)
	r.writes = (l.Peer.Self || d.Allows.Allows(true)) && !d.Fixed
	var unmapped error
	switch {
	case l.access.Process() == nil || l.t.settings.reach == reachOwn:
		r.base = uintptr(d.Addr)
		return r
	case d.Shared && l.t.settings.reach != reachForeign:
		if unmapped = l.mapLocked(r); unmapped == nil {
			return r
		}
	}
	switch {
	case l.foreign == nil:
		r.remote = uintptr(d.Addr)
	case unmapped != nil:
		r.why = l.noMapping(unmapped)
	default:
		r.why = l.foreign
	}
	return r
}

// noMapping is the error of a region that is reached by its mapping or not at all. As in unreachable it is the way that
// is closed.
func (l *link) noMapping(cause error) *errs.Error {
	// Of an internal error errs knows the cure, if the system has a limit.
	e := errs.Wrap(errs.Internal, "shm.import", fmt.Errorf("the region's file is not mapped: %w", cause))
	e.Code = errs.PeerUnreachable
	return e.WithScope(errs.ScopeLink, errs.SidePath).WithPeer(l.Peer.Address, Name, "")
}

// closed returns why a region is none for us, nil if it is one.
func (l *link) closed(d *manifest.Region, listed bool) *errs.Error {
	var e *errs.Error
	switch {
	case !listed:
		e = errs.New(errs.AddressNotRegistered, "shm.import", "its owner does not list the region (any more)")
	case d.Allows == mem.LocalReadWrite && !l.Peer.Self:
		e = errs.New(errs.PermissionDenied, "shm.import", "its owner offers the region to nobody")
	default:
		return nil
	}
	return e.WithScope(errs.ScopeSlice, errs.SideRemote).WithPeer(l.Peer.Address, Name, "")
}

// mapLocked maps the file that holds the region and sets its base.
func (l *link) mapLocked(r *imported) error {
	d := &r.told
	key := mapped{d.File.Dev, d.File.Ino, r.writes}
	m := l.mappings[key]
	if m == nil {
		flags := unix.O_RDONLY
		if r.writes {
			flags = unix.O_RDWR
		}
		fetch := l.access.Fetch
		if d.Named {
			fetch = l.access.FetchUnnamed
		}
		fd, err := fetch(d.File, flags)
		if err != nil {
			return err
		}
		m, err = l.t.mapFile(fd, key, d.Named)
		_ = unix.Close(fd)
		if err != nil {
			return err
		}
		l.mappings[key] = m
	}
	if !mem.Contains(uint64(m.size), d.At, d.Size) {
		if m.users == 0 {
			l.unmap(m)
		}
		return errs.New(errs.InvalidArgument, "shm.import",
			"the file behind the region has %d bytes, the region ends at %d", m.size, d.At+d.Size)
	}
	m.users++
	r.on, r.base = m, m.addr+uintptr(d.At)
	l.fresh = append(l.fresh, span{r.base, uintptr(d.Size)})
	l.Kick()
	return nil
}

// mappedMost bounds the addresses that files of peers take together, to a quarter of those of a process. A peer's file
// can be as long as that and have no bytes, and without addresses the process would end.
const mappedMost = 1 << 45

// mapFile maps a whole file. One without a name must be sealed against becoming shorter; one with a name cannot be, and
// copies from behind its end are errors. A child that is forked does not get the mapping: no slot would speak for it.
func (t *Transport) mapFile(fd int, key mapped, named bool) (m *mapping, err error) {
	if !named && !sealed(fd) {
		return nil, errs.New(errs.PermissionDenied, "shm.import", "the file behind the region can become shorter")
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			t.mapped.Add(-st.Size)
		}
	}()
	if all := t.mapped.Add(st.Size); all > mappedMost {
		return nil, errs.New(errs.TooManyRequests, "shm.import", "files of peers would take %d bytes of addresses: at "+
			"most %d are allowed", all, int64(mappedMost))
	}
	prot := unix.PROT_READ
	if key.writable {
		prot |= unix.PROT_WRITE
	}
	at, err := unix.MmapPtr(fd, 0, nil, uintptr(st.Size), prot, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	m = &mapping{key: key, addr: uintptr(at), size: uintptr(st.Size)}
	if err := madvise(m.addr, m.size, unix.MADV_DONTFORK); err != nil {
		_ = unix.MunmapPtr(at, m.size)
		return nil, err
	}
	return m, nil
}

func madvise(addr, size uintptr, advice int) error {
	page := uintptr(unix.Getpagesize())
	start := addr &^ (page - 1)
	return unix.Madvise(unsafe.Slice((*byte)(mem.Pointer(start)), (addr+size-start+page-1)&^(page-1)), advice)
}

// meetLocked resolves regions that were imported before the greeting had an answer. The rail is down: nobody uses the
// table yet.
func (l *link) meetLocked() {
	l.met = true
	table := slices.Clone(*l.imports.Load())
	for i, r := range table {
		if r != nil {
			table[i] = l.resolveLocked(r.name)
			table[i].key = r.key
		}
	}
	l.imports.Store(&table)
}

// populateChunk bounds one call that makes pages present, so that Detach does not wait for long.
const populateChunk = 16 << 20

// Tick implements access.Traffic. It maps the pages of fresh mappings that their owner has touched, so that no copy
// pays for it, and drops mappings without a region that is left.
func (l *link) Tick() {
	for !l.Left() && l.Gone() == nil {
		l.mu.Lock()
		n := len(l.fresh)
		if n == 0 {
			l.dropLocked()
			l.mu.Unlock()
			return
		}
		s := &l.fresh[n-1]
		chunk := span{s.addr, min(s.size, populateChunk)}
		s.addr, s.size = s.addr+chunk.size, s.size-chunk.size
		if s.size == 0 {
			l.fresh = l.fresh[:n-1]
		}
		l.mu.Unlock()
		chunk.populate()
	}
}

// populate maps the pages of a chunk that are in memory. Pages that nobody has touched stay so: they would be taken
// from our own memory, and counted to our cgroup, on a peer's word. The mapping may be taken down meanwhile: then there
// is nothing, or other memory, of which no page is added either.
func (s span) populate() {
	page := uintptr(unix.Getpagesize())
	first := s.addr &^ (page - 1)
	there := make([]byte, (s.addr+s.size-first+page-1)/page)
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, first, uintptr(len(there))*page,
		uintptr(unsafe.Pointer(&there[0]))); errno != 0 {
		return // the first copies map them
	}
	for i := 0; i < len(there); {
		n := 1
		for i+n < len(there) && there[i+n]&1 == there[i]&1 {
			n++
		}
		if there[i]&1 != 0 { // a kernel that cannot leaves it to the first copies
			_ = madvise(first+uintptr(i)*page, uintptr(n)*page, unix.MADV_POPULATE_READ)
		}
		i += n
	}
}

// dropLocked unmaps files without a region that is left. A region is left until its owner lists it no more: one without
// a permit may be under a fence, of any length, and must be there when that ends.
func (l *link) dropLocked() {
	var next, ended []*imported
	for i, r := range *l.imports.Load() {
		if r == nil || r.on == nil {
			continue
		}
		d, listed := l.access.Offers.Find(r.name.Index, r.name.Generation)
		if listed {
			continue
		}
		if next == nil {
			next = slices.Clone(*l.imports.Load())
		}
		without := *r
		without.on, without.base, without.why = nil, 0, l.closed(&d, listed)
		next[i] = &without
		ended = append(ended, r)
	}
	if next == nil {
		return
	}
	l.imports.Store(&next)
	for _, r := range ended {
		l.release(r)
	}
}
