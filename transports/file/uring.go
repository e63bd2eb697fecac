package file

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/file/ring"
	"github.com/tent-engine/tent/transports/kit"
)

// Uring is the transport io-uring: O_DIRECT where file and range allow it, by one ring that one thread owns. All
// methods may be called from any goroutine.
type Uring struct{ cached }

var (
	_ transport.Factory   = UringFactory{}
	_ transport.Transport = (*Uring)(nil)
	_ transport.Filer     = (*Uring)(nil)
	_ transport.Poller    = (*Uring)(nil)
	_ transport.Inliner   = (*Uring)(nil)
	_ transport.Explainer = (*Uring)(nil)
)

// UringName is the transport's name in metrics and errors.
const UringName = "io-uring"

// UringBranch is the branch of its keys, as upstream spells it.
const UringBranch = "io_uring"

// UringFactory makes io-uring transports; see transport.Factory.
type UringFactory struct{}

// Name returns "io-uring".
func (UringFactory) Name() string { return UringName }

// Settings returns the struct with the keys as tags; see transport.Configured.
func (UringFactory) Settings() any { return Settings{} }

// Check says why the kernel gives this process no ring. Containers often forbid it; buf-io moves files then.
func (UringFactory) Check() error {
	if err := ring.Probe(); err != nil {
		return errs.New(errs.DeviceNotFound, "io-uring.check", "%v", err).WithScope(errs.ScopeTransport, errs.SideLocal)
	}
	return nil
}

// Open makes the ring and starts its owner. config is Settings, *Settings or nil.
func (UringFactory) Open(_ context.Context, config any, host transport.Host,
	sink transport.Sink) (transport.Transport, error) {
	s, err := settled(config, UringBranch)
	if err != nil {
		return nil, err
	}
	t := newBase(UringName, s, host, sink)
	u, err := newOwner(t)
	if err != nil {
		return nil, errs.New(errs.DeviceNotFound, "io-uring.open", "%v", err).
			WithScope(errs.ScopeTransport, errs.SideLocal)
	}
	t.mover = u
	return &Uring{cached{t}}, nil
}

// owner is the mover of io-uring: one goroutine, locked to its thread, that alone touches the ring. Its round is
//
//	under base.mu   begin: cut operations from the queues, HIGH first, while the ring has room
//	without         copy cached bytes; fill entries for the rest; enter the kernel, sleep there until something ends;
//	                copy bounced bytes
//	under base.mu   land: an ended operation belongs to its item; begin again
//	without         finish the items that are complete
//
// A completion makes the core step, which submits the next slices from this same goroutine: a stream of
// transfers needs no other thread. A caller that submits while it sleeps writes to the eventfd that the ring reads.
type owner struct {
	t    *base
	ring *ring.Ring
	hand *hand

	wakeFd  int
	wakeBuf [8]byte
	wakeVec ring.Iovec
	entered atomic.Uint64 // calls into the kernel, for explain
	armed   bool          // the eventfd's READ is in the ring
	asleep  bool          // guarded by t.mu: write to wakeFd to be heard
	recalls []*item       // guarded by t.mu: withdrawn, with operations in the kernel

	operations []operation
	asking     uint64   // bytes of this round that are looked for in the page cache first
	spare      []uint16 // free operations
	fresh      []uint16 // to be filled in, or again after a short transfer
	bounces    *bounces
	events     []ring.Event
	complete   []*item
	running    sync.WaitGroup
}

// tags of entries that are no operation.
const (
	tagWake   = 1 << 32
	tagCancel = 1 << 33
)

func newOwner(t *base) (*owner, error) {
	depth := t.settings.Depth
	u := &owner{t: t, hand: newHand(), operations: make([]operation, depth), events: make([]ring.Event, 2*depth+2)}
	u.recalls, u.complete = make([]*item, 0, t.settings.Slices), make([]*item, 0, depth)
	for i := range u.operations {
		u.spare = append(u.spare, uint16(depth-1-i))
	}
	u.fresh = make([]uint16, 0, depth)
	var err error
	if u.wakeFd, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
		return nil, err
	}
	if u.bounces, err = newBounces(); err != nil {
		_ = unix.Close(u.wakeFd)
		return nil, err
	}
	u.wakeVec = ring.Iovec{Addr: uintptr(unsafe.Pointer(&u.wakeBuf)), Length: uint64(len(u.wakeBuf))}
	opened := make(chan error)
	u.running.Go(func() { u.own(opened) })
	if err := <-opened; err != nil {
		u.running.Wait()
		return nil, err
	}
	return u, nil
}

// own is the owner's life. The thread ends with it: it stays locked.
func (u *owner) own(opened chan<- error) {
	runtime.LockOSThread()
	defer func() { _ = unix.Close(u.wakeFd) }()
	defer u.bounces.close()
	var err error
	// Twice the depth: each operation may have its cancellation beside it.
	u.ring, err = ring.Open(uint32(2*len(u.operations) + 2))
	opened <- err
	if err != nil {
		return
	}
	defer u.ring.Close()
	for u.round() {
	}
}

// askMost bounds the bytes of a round that may be copied from the page cache, some 100 µs of copying. The ends in the
// ring, and slices of a higher class, wait no longer.
const askMost = 1 << 20

// round is one turn; false ends the owner, when nothing is under way and base.stop was set.
func (u *owner) round() bool {
	t, n, sleeps := u.t, 0, false
	for n == 0 && !sleeps { // until nothing more can begin, or some ended in the page cache
		t.mu.Lock()
		u.asking = 0
		u.begin()
		if t.stop {
			t.mu.Unlock()
			return false
		}
		u.asleep = u.asking == 0 // else it may have to begin more at once
		sleeps = u.asleep
		t.mu.Unlock()
		n = u.submit()
	}
	u.enter(sleeps)
	n += u.ring.Reap(u.events[n:])
	u.copyBack(u.events[:n])
	u.landAll(u.events[:n])
	if len(u.complete) > 0 {
		t.finish(u.complete, u.hand)
		clear(u.complete)
		u.complete = u.complete[:0]
	}
	return true
}

func (u *owner) enter(sleeps bool) {
	u.entered.Add(1)
	if err := u.ring.Enter(sleeps); err != nil {
		// a mistake of ours: it has taken it so far
		panic("io-uring: the kernel refuses to enter the ring: " + err.Error())
	}
}

func (u *owner) landAll(events []ring.Event) {
	u.t.mu.Lock()
	u.asleep = false
	for _, e := range events {
		u.land(e)
	}
	u.t.mu.Unlock()
}

// kick implements mover.
func (u *owner) kick() {
	if !u.asleep {
		return
	}
	u.asleep = false
	one := [8]byte{1}
	_, _ = unix.Write(u.wakeFd, one[:]) // never full: it is written once for each time it is read
}

// recall implements mover.
func (u *owner) recall(it *item) {
	u.recalls = append(u.recalls, it)
	u.kick()
}

func (u *owner) adopt(int, string) (uintptr, *errs.Error) { return 0, nil }
func (u *owner) drop(uintptr)                             {}

// quick implements mover: a WRITE goes past the page cache.
func (u *owner) quick(f *file, op transport.Op) bool {
	return op == transport.Read && f.mayBeQuick(op) && f.looks()
}

func (u *owner) straight() bool { return u.t.settings.Direct == DirectAuto }

// suits leaves files that take no O_DIRECT to buf-io: for bytes in the page cache, threads are faster than a ring. And
// all of FUSE: when its server answers short, io_uring itself goes on, and counts on the file system having moved the
// position, which FUSE's direct ways do not: the rest lands where the operation began (seen on Linux 6.18).
func (u *owner) suits(f *file) *errs.Error {
	switch {
	case f.fuse && !u.t.settings.anyFile:
		return errs.New(errs.NotImplemented, "io-uring.import",
			"%s is of a FUSE file system: the kernel goes on in the wrong place "+
				"after short operations there", f.Path).WithScope(errs.ScopeLink, errs.SideRemote)
	case !u.straight() || f.direct.Load():
		return nil
	}
	return errs.New(errs.NotImplemented, "io-uring.import",
		"%s goes through the page cache (%s), which threads do faster", f.Path,
		*f.refused.Load()).WithScope(errs.ScopeLink, errs.SideRemote)
}

func (u *owner) describe() string {
	return fmt.Sprintf("up to %d operations at once by io_uring, %d calls so far", len(u.operations), u.entered.Load())
}

func (u *owner) wait() { u.running.Wait() }

// begin cuts operations while there is room. The caller holds t.mu.
func (u *owner) begin() {
	for _, it := range u.recalls {
		u.cancel(it)
	}
	clear(u.recalls)
	u.recalls = u.recalls[:0]
	for c := range kit.Classes {
		list := u.t.queue.List(c)
		for it := list.First(); it != nil; it = list.First() {
			if it.at == it.slice.Length {
				u.t.unqueue(it)
				continue
			}
			if !u.t.openable(it) || !u.takesTurn(it) {
				continue
			}
			if len(u.spare) == 0 || !u.cut(it) {
				return
			}
		}
	}
}

// takesTurn reports whether the next operation of an item may begin, see base.inTurn.
func (u *owner) takesTurn(it *item) bool {
	if it.slice.Op == transport.Read {
		return true
	}
	_, _, direct := it.next()
	return u.t.inTurn(it, wayOf(it.slice.Op, direct))
}

// cut begins the next operation of an item. False means that it needs a bounce buffer and none is free, or that this
// round has enough to copy.
func (u *owner) cut(it *item) bool {
	if u.asking >= askMost {
		return false
	}
	ask := !it.blocks && u.quick(it.file, it.slice.Op)
	i := u.spare[len(u.spare)-1]
	o := &u.operations[i]
	if !o.begin(it, u.bounces) {
		return false
	}
	if o.cached = ask; ask {
		u.asking += o.length
	}
	u.spare = u.spare[:len(u.spare)-1]
	u.fresh = append(u.fresh, i)
	u.t.joinTurn(it, o.way)
	it.state = running
	it.at += o.length
	it.flying++
	return true
}

// cancel asks for the operations of a withdrawn item. The disk finishes first those that it has already. The caller
// holds t.mu; nothing but the entry is made.
func (u *owner) cancel(it *item) {
	if it.state == idle || !it.withdrawn.Load() {
		return // ended meanwhile
	}
	for i := range u.operations {
		if o := &u.operations[i]; o.item == it && u.ring.Room() > len(u.fresh)+1 {
			u.ring.Cancel(uint64(i), tagCancel)
		}
	}
}

// atOnce is the most operations that enter the kernel by one call. It prepares all of a longer call before the disk
// gets the first (a plug), and with READs of 4 KiB, ended by the dozen, the disk would idle for a fifth of the time.
const atOnce = 2

// submit carries out new operations that the page cache can serve, and fills in entries for the others. It returns how
// many have ended so; their events are the first ones.
func (u *owner) submit() (ended int) {
	if !u.armed {
		u.armed = true
		u.ring.Transfer(false, u.wakeFd, &u.wakeVec, 1, ^uint64(0), tagWake)
	}
	filled := 0
	for _, i := range u.fresh {
		o := &u.operations[i]
		if o.cached && o.fromCache(u.bounces) {
			u.events[ended] = ring.Event{Tag: uint64(i), Result: int32(o.length)}
			ended++
			continue
		}
		o.cached = false
		o.prepare(u.bounces)
		u.ring.Transfer(o.item.slice.Op == transport.Write, o.fd(), &o.vectors[0], o.count, o.offset, uint64(i))
		if filled++; filled%atOnce == 0 {
			u.enter(false)
		}
	}
	u.fresh = u.fresh[:0]
	return ended
}

// copyBack brings bytes that were READ into bounce buffers to where they belong. Their items have not ended, so the
// memory is theirs.
func (u *owner) copyBack(events []ring.Event) {
	for _, e := range events {
		if e.Tag < tagWake && e.Result > 0 {
			u.operations[e.Tag].copyBack(u.bounces, uint64(e.Result))
		}
	}
}

// land books the end of an operation. The caller holds t.mu.
func (u *owner) land(e ring.Event) {
	switch {
	case e.Tag == tagWake:
		u.armed = false
		return
	case e.Tag >= tagWake:
		return // a cancellation; its operation comes by itself
	}
	o := &u.operations[e.Tag]
	it := o.item
	switch o.land(u.t, e.Result) {
	case opAgain:
		if it.err == nil && !it.withdrawn.Load() {
			u.fresh = append(u.fresh, uint16(e.Tag))
			return
		}
	case opFailed:
		if it.err == nil {
			it.err = o.err
		}
	}
	u.t.endTurn(&it.file.inode.turns, o.way)
	o.end(u.bounces)
	u.spare = append(u.spare, uint16(e.Tag))
	it.flying--
	if it.over() {
		u.t.unqueue(it)
		u.complete = append(u.complete, it)
	}
}

// errnoOf returns the errno in an event's negative result.
func errnoOf(result int32) syscall.Errno { return syscall.Errno(-result) }
