package shm

import (
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/host/hazard"
	"github.com/tent-engine/tent/transports/host/vm"
	"github.com/tent-engine/tent/transports/kit"
	"github.com/tent-engine/tent/transports/shm/copying"
)

// carryOut copies a bite. All of its slices are of one link, region and direction, of one epoch.
func (t *Transport) carryOut(c *copier) {
	b := &c.bite
	first := b.entries[0]
	l, from, able := first.link, first.from, false
	for k, e := range b.entries[:b.n] {
		c.failed[k] = t.check(e.slice, from)
		able = able || c.failed[k] == nil
	}
	if !able {
		return
	}
	epoch := hazard.Epoch(first.slice.Epoch)
	slot := l.view.Enter(from.name, epoch, c.hint)
	if slot == hazard.Busy { // callers have all of them, for a piece at most
		slot = l.view.Await(from.name, epoch, c.hint, l.useless)
	}
	switch {
	case slot == hazard.Busy && l.useless():
		b.fail(c, l.over())
		return
	case slot == hazard.Busy:
		cause := hazard.Taken(Name, l.Peer.Address)
		l.Renew(cause)
		b.fail(c, cause)
		return
	case slot == hazard.Revoked:
		b.fail(c, revoked(l, from))
		return
	case l.find(first.slice.RemoteKey) != from: // its mapping may be going; unmap looks at the slots afterwards
		b.fail(c, errReplaced)
	case from.base != 0:
		t.near(c, from)
	default:
		t.far(c, l, from)
	}
	l.view.Leave(slot)
}

// errReplaced is for a slice that was accepted while the way to its region changed. The core sends it again, the new
// way.
var errReplaced = &errs.Error{Code: errs.Lost, Scope: errs.ScopeSlice, Side: errs.SideLocal, Collateral: true,
	Op: "shm", Transport: Name, Cause: "the mapping of the region was taken down"}

// fail gives an error to all slices of a bite that have none yet.
func (b *bite) fail(c *copier, cause *errs.Error) {
	for k := range b.n {
		if c.failed[k] == nil {
			c.failed[k] = cause
		}
	}
}

// check returns why a slice must not be carried out, nil if it may.
func (t *Transport) check(s *transport.Slice, from *imported) *errs.Error {
	switch code := t.checkLocal(s); {
	case code != errs.OK:
		return errs.New(code, "shm", "the local range is not in the region with key %#x, or may not be written",
			uint64(s.LocalKey)).WithScope(errs.ScopeSlice, errs.SideLocal)
	case from == nil:
		return errs.New(errs.AddressNotRegistered, "shm", "no region was imported with key %#x", uint64(s.RemoteKey)).
			WithScope(errs.ScopeSlice, errs.SideRemote)
	case !from.allows(s.Op):
		return errs.New(errs.PermissionDenied, "shm", "the region may not be the remote end of a %s", s.Op).
			WithScope(errs.ScopeSlice, errs.SideRemote)
	case !kit.InsideRemote(s, from.size):
		return errs.New(errs.InvalidArgument, "shm", "%d bytes at %d are outside the region of %d", s.Length, s.Remote,
			from.size).WithScope(errs.ScopeSlice, errs.SideRemote)
	case from.base == 0 && from.remote == 0:
		return from.why
	}
	return nil
}

func (r *imported) allows(op transport.Op) bool {
	if op == transport.Write {
		return r.writes
	}
	return r.reads
}

// ranges walks over the parts of a slice, or of a piece of it.
type ranges struct {
	s      *transport.Slice
	left   uint64
	index  uint64 // of the part, where there are many
	within uint64 // its bytes before
}

func rangesOf(s *transport.Slice, from, bytes uint64) ranges {
	r := ranges{s: s, left: bytes, within: from}
	if p := s.Pieces; p != nil {
		r.index, r.within = uint64(s.First)+from/p.Bytes, from%p.Bytes
	}
	return r
}

// next returns the next range, with 0 bytes after the last.
func (r *ranges) next() (local uintptr, remote, bytes uint64) {
	p := r.s.Pieces
	if p == nil {
		bytes, r.left = r.left, 0
		return r.s.Local + uintptr(r.within), r.s.Remote + r.within, bytes
	}
	bytes = min(p.Bytes-r.within, r.left)
	if bytes == 0 {
		return 0, 0, 0
	}
	local, remote = r.s.Local+uintptr(p.LocalAt[r.index]+r.within), r.s.Remote+p.RemoteAt[r.index]+r.within
	r.left -= bytes
	r.index, r.within = r.index+1, 0
	return local, remote, bytes
}

// part returns the bytes of slice k of a bite and where they begin in it.
func (b *bite) part(k int, s *transport.Slice) (from, bytes uint64) {
	if k == 0 {
		return b.from, min(b.bytes, s.Length-b.from)
	}
	return 0, s.Length
}

// near copies between two ranges of our own address space.
func (t *Transport) near(c *copier, from *imported) {
	total := uint64(t.queue.queued.Load()) + c.bite.bytes
	for k, e := range c.bite.entries[:c.bite.n] {
		if c.failed[k] != nil {
			continue
		}
		s := e.slice
		begin, bytes := c.bite.part(k, s)
		if side, ok := t.copyRanges(rangesOf(s, begin, bytes), from.base, s.Op == transport.Write, total); !ok {
			c.failed[k] = vm.Error("shm", unix.EFAULT, side)
		}
	}
}

// far lets the kernel copy between our address space and the peer's: a bite is one call. When memory that a call names
// is not there, each slice is tried by itself, so that only the guilty one fails.
func (t *Transport) far(c *copier, l *link, from *imported) {
	errno := t.farSlices(c, l, from, 0, c.bite.n)
	if errno == 0 {
		return
	}
	for k := range c.bite.n {
		switch {
		case c.failed[k] != nil:
		case errno == unix.EFAULT:
			t.farSlices(c, l, from, k, k+1) // the peer may end meanwhile: each has a reason of its own
		default:
			c.failed[k] = l.kernelSays(errno)
		}
	}
}

// farSlices moves some slices of a bite. A single one that fails gets its error here, for any reason.
func (t *Transport) farSlices(c *copier, l *link, from *imported, first, end int) unix.Errno {
	write := false
	for k := first; k < end; k++ {
		if c.failed[k] != nil {
			continue
		}
		s := c.bite.entries[k].slice
		write = s.Op == transport.Write
		begin, bytes := c.bite.part(k, s)
		r := rangesOf(s, begin, bytes)
		for local, remote, n := r.next(); n > 0; local, remote, n = r.next() {
			// all of it: a bite has no more ranges and bytes than a call
			c.vector.Add(local, from.remote+uintptr(remote), n)
		}
	}
	done, errno := l.move(c, write)
	switch {
	case errno == 0 || end > first+1:
	case errno == unix.EFAULT:
		s := c.bite.entries[first].slice
		begin, _ := c.bite.part(first, s)
		c.failed[first] = blame(int(l.pid), s, begin+done, from)
	default:
		c.failed[first] = l.kernelSays(errno)
	}
	return errno
}

// move moves the ranges that a copier has added, unless the peer's pid is another program's by now.
func (l *link) move(c *copier, write bool) (uint64, unix.Errno) {
	switch {
	case l.space.Gone():
		c.vector.Reset()
		return 0, unix.ESRCH
	case write:
		return c.vector.Write(int(l.pid))
	}
	return c.vector.Read(int(l.pid))
}

// blame makes the error of a slice that stopped at its byte at.
func blame(pid int, s *transport.Slice, at uint64, from *imported) *errs.Error {
	r := rangesOf(s, at, 1)
	local, remote, _ := r.next()
	return vm.Error("shm", unix.EFAULT, vm.Blame(pid, s.Op == transport.Write, local, from.remote+uintptr(remote)))
}

// kernelSays makes the error of a call that failed for a reason other than memory. A copy that the kernel refuses here,
// another transport may carry: the code is not a permanent one.
func (l *link) kernelSays(errno unix.Errno) *errs.Error {
	switch errno {
	case unix.ESRCH:
		return l.PeerEnded()
	case unix.EPERM, unix.EACCES:
		return errs.New(errs.PeerUnreachable, "shm", "the kernel does not let us touch the peer's own memory any more").
			WithScope(errs.ScopeLink, errs.SidePath).WithPeer(l.Peer.Address, Name, "")
	}
	return vm.Error("shm", errno, errs.SideUnknown)
}

// useless reports whether nothing can be moved on a link any more.
func (l *link) useless() bool { return l.Left() || l.Gone() != nil }

// over is the error of a slice that has not begun when its link ends.
func (l *link) over() *errs.Error {
	if cause := l.Gone(); cause != nil {
		return cause
	}
	return errs.New(errs.Lost, "shm.detach", "the link was detached").WithScope(errs.ScopeLink, errs.SideLocal)
}

// revoked is the error of a slice that its region's owner has cut off.
func revoked(l *link, from *imported) *errs.Error {
	if cause := l.Gone(); cause != nil {
		return cause
	}
	if l.view.Permit(from.name) != 0 {
		return transport.Fenced("shm").WithPeer(l.Peer.Address, Name, "")
	}
	return errs.New(errs.AddressNotRegistered, "shm", "the region was closed or fenced by its owner").
		WithScope(errs.ScopeSlice, errs.SideRemote).WithPeer(l.Peer.Address, Name, "")
}

// copyRanges copies a slice, or a piece of it, between our memory and memory of a peer that begins at base here. When
// memory is not there, it returns the side. total is how much is copied in one go, of which this is a part.
func (t *Transport) copyRanges(r ranges, base uintptr, write bool, total uint64) (side errs.Side, ok bool) {
	p := r.s.Pieces
	for r.left > 0 {
		var fault *copying.Fault
		if p != nil && r.within == 0 && r.left >= p.Bytes {
			fault = t.copyParts(&r, base, write, total)
		} else {
			local, remote, n := r.next()
			near, far := local, base+uintptr(remote)
			if !write {
				near, far = far, near
			}
			fault = t.copier.Copy(far, near, n, total)
		}
		if fault != nil {
			return t.sideOf(fault, r.s), false
		}
	}
	return errs.SideUnknown, true
}

// copyParts copies as many whole parts as are left.
func (t *Transport) copyParts(r *ranges, base uintptr, write bool, total uint64) (fault *copying.Fault) {
	p, n := r.s.Pieces, r.left/r.s.Pieces.Bytes
	local, remote := p.LocalAt[r.index:r.index+n], p.RemoteAt[r.index:r.index+n]
	near, far := r.s.Local, base+uintptr(r.s.Remote)
	if write {
		_, fault = t.copier.Pieces(far, near, remote, local, p.Bytes, total)
	} else {
		_, fault = t.copier.Pieces(near, far, local, remote, p.Bytes, total)
	}
	r.index, r.left = r.index+n, r.left-n*p.Bytes
	return fault
}

// sideOf returns the side of the memory that a fault was in.
func (t *Transport) sideOf(fault *copying.Fault, s *transport.Slice) errs.Side {
	switch r := t.regions.Lookup(s.LocalKey); {
	case fault.Addr == 0 || r == nil:
		return errs.SideUnknown
	case fault.Addr >= r.addr && uint64(fault.Addr-r.addr) < r.size:
		return errs.SideLocal
	}
	return errs.SideRemote
}
