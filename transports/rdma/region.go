package rdma

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
	"github.com/tent-engine/tent/transports/rdma/verbs"
)

// region is memory that is registered with the devices that took it. It is so twice: by local keys, which nobody else
// knows, and by remote ones, if peers may use it. So a revocation ends the remote keys and leaves local use alone.
type region struct {
	mem.Region
	key  transport.LocalKey
	cut  uint64 // bytes of each of its parts but the last
	keys atomic.Pointer[keys]
	door kit.Door // its fences, for guests that learn of it later

	users atomic.Int64 // slices with a local key; below zero once the region ends

	pinning  sync.Mutex    // one change of the keys at a time
	over     bool          // no change any more; guarded by pinning
	replaced atomic.Uint64 // changes that left no remote key of before, counted before peers learn of the new ones

	closing sync.Mutex
	left    []*memory // keys that are of no use any more and did not end; guarded by closing

	mu      sync.Mutex
	guests  map[*guest]bool // links of peers that have learned of the region
	retired []*memory       // local keys of pages that were replaced
	ended   bool            // the remote keys are closed
}

// keys are the registrations of a region by device; nil where the device did not take it.
type keys struct {
	version uint32
	local   []*memory
	remote  []*memory
	why     error  // of the first device that did not
	came    uint64 // guests that had come when the remote ones were made
}

func newKeys(version uint32, devices int) *keys {
	return &keys{version: version, local: make([]*memory, devices), remote: make([]*memory, devices)}
}

// own is the local key of a device, nil if it did not take the region, or came later and has not yet.
func (k *keys) own(device int) *memory {
	if device < len(k.local) {
		return k.local[device]
	}
	return nil
}

// base is the first remote address of a region: the kernel wants the same offset within a page in keys and in memory.
func base(addr uintptr) uint64 { return uint64(addr) & uint64(unix.Getpagesize()-1) }

const prefaultFrom = 1 << 20

// Register pins the memory with all devices side by side.
func (t *Transport) Register(ctx context.Context, m mem.Region) (transport.LocalKey, transport.Descriptor, error) {
	if err := t.checkRegister(&m); err != nil {
		return 0, nil, err
	}
	if !t.enter() {
		return 0, nil, kit.Closed("rdma.register")
	}
	defer t.calls.Done()
	r := &region{Region: m, cut: cutOf(m.Size, t.settings.Cut, len(t.nics())), guests: map[*guest]bool{}}
	if r.cut > t.settings.Cut {
		t.host.Log().Info("rdma: a region has larger registrations than transports/rdma/registration_bytes, since its "+
			"descriptor names those of each device", "bytes", m.Size, "of", r.cut)
	}
	if err := r.keepBuffer(); err != nil {
		return 0, nil, err
	}
	before := t.changes.Load()
	k, err := t.pin(ctx, r, 1)
	if err != nil {
		r.closeBuffer()
		return 0, nil, err
	}
	r.keys.Store(k)
	key := t.regions.Insert(func(key transport.LocalKey) *region { r.key = key; return r })
	if t.changes.Load() != before {
		t.renew(r, nil, false)
	}
	return key, t.describe(r), nil
}

// checkRegister returns why memory cannot be registered with any NIC.
func (t *Transport) checkRegister(m *mem.Region) error {
	asked := *m
	if onDevice(m.Kind) {
		if t.settings.NoGPUDirect {
			return errs.New(errs.NotHere, "rdma.register", "transports/rdma/disable_gpu_direct_rdma is true")
		}
		if m.Landing != nil && m.Landing.Why != nil {
			return errs.Wrap(errs.NotHere, "rdma.register", m.Landing.Why)
		}
		asked.Kind = mem.Host
	}
	if err := kit.CheckRegister("rdma.register", &t.life, &asked); err != nil {
		return err
	}
	return nil
}

// keepBuffer keeps the dma-buf of a region for NICs that come later: the caller closes its own descriptor.
func (r *region) keepBuffer() error {
	if r.DMABuf == nil {
		return nil
	}
	own, err := unix.FcntlInt(uintptr(r.DMABuf.Fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return errs.Wrap(errs.NotHere, "rdma.register", err)
	}
	r.DMABuf = &mem.DMABuf{Fd: own, Offset: r.DMABuf.Offset}
	return nil
}

// closeBuffer gives the dma-buf back; the region is registered with no other NIC from then on.
func (r *region) closeBuffer() {
	r.pinning.Lock()
	defer r.pinning.Unlock()
	r.over = true
	closeDMABuf(r.DMABuf)
	r.DMABuf = nil
}

func closeDMABuf(b *mem.DMABuf) {
	if b != nil {
		_ = unix.Close(b.Fd)
	}
}

// pin registers a region with all devices. The error is NotHere if none takes it, and Timeout if ctx ended before.
func (t *Transport) pin(ctx context.Context, r *region, version uint32) (*keys, error) {
	if r.Size >= prefaultFrom && r.Kind == mem.Host {
		prefault(&r.Region)
	}
	list := t.nics()
	k := newKeys(version, len(list))
	k.came = t.guests.left()
	causes := make([]error, len(list))
	var wait sync.WaitGroup
	for i, d := range list {
		wait.Go(func() { causes[i] = d.pin(ctx, r, k) })
	}
	wait.Wait()
	taken := 0
	for i, err := range causes {
		if err == nil {
			taken++
		} else if k.why == nil {
			k.why = errs.New(errs.NotHere, "rdma.register", "%s: %v", list[i].name, err)
		}
	}
	if err := ctx.Err(); err != nil {
		_ = k.close(true)
		return nil, errs.Wrap(errs.Timeout, "rdma.register", err)
	}
	if taken > 0 {
		return k, nil
	}
	e := errs.New(errs.NotHere, "rdma.register", "no device takes the memory: %v", k.why)
	if errors.Is(causes[0], syscall.ENOMEM) {
		e = e.WithHint("raise the limit of locked memory: ulimit -l, or memlock of the service or container")
	}
	return nil, e
}

// prefault brings the pages in with all processors; pinning would do so one after the other.
func prefault(m *mem.Region) {
	how := unix.MADV_POPULATE_WRITE
	if m.ReadOnly {
		how = unix.MADV_POPULATE_READ
	}
	page := uintptr(unix.Getpagesize())
	first := m.Addr &^ (page - 1)
	end := (m.Addr + uintptr(m.Size) + page - 1) &^ (page - 1)
	_ = unix.Madvise(mem.Bytes(first, int(end-first)), how) // an older kernel cannot: registration then does it
}

func (d *device) pin(ctx context.Context, r *region, k *keys) error {
	access := d.relaxed()
	if !r.ReadOnly {
		access |= verbs.LocalWrite
	}
	own, err := d.register(ctx, r, uint64(r.Addr), access)
	if err != nil {
		return err
	}
	if r.Permission.Allows(false) {
		if k.remote[d.index], err = d.pinForPeers(ctx, r); err != nil {
			_ = own.end()
			return err
		}
	}
	k.local[d.index] = own
	return nil
}

// pinForPeers registers a region that peers may reach by a remote key, which no registration that is there has.
func (d *device) pinForPeers(ctx context.Context, r *region) (*memory, error) {
	access := d.relaxed() | verbs.RemoteRead
	if r.Permission.Allows(true) && !r.ReadOnly {
		access |= verbs.RemoteWrite | verbs.LocalWrite
	}
	return d.register(ctx, r, base(r.Addr), access)
}

// relaxed is the right of a NIC to order its writes as it likes, if the settings give it.
func (d *device) relaxed() verbs.Access {
	if *d.t.settings.Relaxed != 0 {
		return verbs.Relaxed
	}
	return 0
}

// close ends keys: the remote ones alone, or all.
func (k *keys) close(all bool) (failed error) {
	list := k.remote
	if all {
		list = append(list[:len(list):len(list)], k.local...)
	}
	for _, m := range list {
		if err := m.end(); err != nil {
			failed = err
		}
	}
	return failed
}

// endAll ends keys that are of no use any more, and those of before that did not end. It fails while one is left.
func (r *region) endAll(list []*memory) (failed error) {
	r.closing.Lock()
	defer r.closing.Unlock()
	for _, m := range list {
		if !slices.Contains(r.left, m) {
			r.left = append(r.left, m)
		}
	}
	r.left = slices.DeleteFunc(r.left, func(m *memory) bool {
		err := m.end()
		if err != nil {
			failed = err
		}
		return err == nil
	})
	return failed
}

// acquire keeps the local keys for n slices. It fails once the region ends.
func (r *region) acquire(n int64) bool {
	for {
		users := r.users.Load()
		if users < 0 {
			return false
		}
		if r.users.CompareAndSwap(users, users+n) {
			return true
		}
	}
}

const ending = 1 << 40

// release gives them back, and reports whether they were the last ones of a region that has ended: unpin follows.
func (r *region) release(n int64) (last bool) { return r.users.Add(-n) == -ending }

// unpin closes the local keys. Nobody uses them any more.
func (r *region) unpin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.keys.Load()
	for _, m := range append(r.retired, k.local...) {
		_ = m.end()
	}
	r.retired = nil
}

// Deregister ends the region. Pages stay pinned until the last slice of ours that uses them has ended.
func (t *Transport) Deregister(ctx context.Context, key transport.LocalKey) error {
	if !t.enter() {
		return kit.Closed("rdma.deregister")
	}
	defer t.calls.Done()
	r := t.regions.Lookup(key)
	if r == nil {
		return kit.NoRegion("rdma.deregister", key)
	}
	if err := t.revoke(ctx, r, nil, transport.ForGood); err != nil {
		return err
	}
	r.closeBuffer()
	if t.regions.Delete(key) != nil && r.users.Add(-ending) == -ending {
		r.unpin()
	}
	return nil
}

// The descriptor of a region:
//
//	version u8 | owner 16 | key u64 | version of the keys u32 | bytes u64 | bytes of a part u64 | base u32
//	| permission u8 | on a device u8 | NICs u8
//	| for each: 1 u8, rkey u32 of each part, or 0 u8 where the device did not take it, or 2 u8 where it is lost
//	| for each, in version 4: how near it is to the memory u8 (transport.Nearest and others)
//
// Version 3 is that of a region for which no NIC is nearer than another, and of older engines. They refuse version 4.
// The parts have no more bytes than a descriptor may have (cutOf).
const (
	describedHead     = 1 + 16 + 8 + 4 + 8 + 8 + 4 + 1 + 1 + 1
	descriptorVersion = 3
	descriptorRanked  = 4
)

func (t *Transport) describe(r *region) transport.Descriptor {
	k := r.keys.Load()
	list := t.nics()
	near, version := t.ranks(r, list[:min(len(k.remote), len(list))]), byte(descriptorRanked)
	if len(near) < len(k.remote) || !differ(near) {
		near, version = nil, descriptorVersion
	}
	d := append(transport.Descriptor{version}, t.self.ID[:]...)
	d = binary.LittleEndian.AppendUint64(d, uint64(r.key))
	d = binary.LittleEndian.AppendUint32(d, k.version)
	d = binary.LittleEndian.AppendUint64(d, r.Size)
	d = binary.LittleEndian.AppendUint64(d, r.cut)
	d = binary.LittleEndian.AppendUint32(d, uint32(base(r.Addr)))
	permission := r.Permission
	if r.ReadOnly {
		permission = min(permission, mem.GlobalReadOnly)
	}
	d = append(kit.AppendBool(append(d, byte(permission)), onDevice(r.Kind)), byte(len(k.remote)))
	for i, m := range k.remote {
		left := transport.DescriptorMax - len(d) - 2*len(k.remote) // beside the states and ranks of all
		switch {
		case m != nil && 4*len(m.parts) <= left: // else more devices have come than there is room for
			d = append(d, keyHas)
			for _, part := range m.parts {
				d = binary.LittleEndian.AppendUint32(d, part.RKey)
			}
		case i < len(list) && list[i].lost.Load():
			d = append(d, keyAway)
		default:
			d = append(d, keyNone)
		}
	}
	return append(d, near...)
}

// differ reports whether some ranks are not the same.
func differ(near []uint8) bool { return len(near) > 0 && slices.Min(near) != slices.Max(near) }

// devicesMax bounds the devices of an engine.
const devicesMax = 64

// decode reads a descriptor of a peer.
func decode(d transport.Descriptor, owner transport.ID) (*remote, *errs.Error) {
	r := kit.NewReader(d)
	version, id := r.U8(), r.ID()
	m := &remote{region: r.U64(), version: r.U32(), size: r.U64(), cut: r.U64(), base: uint64(r.U32())}
	m.permission, m.onDevice = mem.Permission(r.U8()), r.Bool()
	n := int(r.U8())
	cut := m.size > 0 && m.cut > 0 && m.size-1 <= math.MaxUint64-m.cut && partsOf(m.size, m.cut) <= partsMost
	for range min(n, devicesMax) {
		key := remoteKey{state: r.U8()}
		for i := uint64(0); key.state == keyHas && cut && !r.Short() && i < partsOf(m.size, m.cut); i++ {
			key.parts = append(key.parts, r.U32())
		}
		m.keys = append(m.keys, key)
	}
	known := version == descriptorVersion
	if version == descriptorRanked && n <= devicesMax {
		m.near = slices.Clone(r.Bytes(n))
		known = n > 0 && slices.Max(m.near) <= transport.Farthest
	}
	switch {
	case !r.Whole() || !cut || !known || m.permission > mem.GlobalReadWrite || n > devicesMax:
		return nil, errs.New(errs.InvalidArgument, "rdma.import", "not a descriptor of this transport: %d bytes",
			len(d))
	case id != owner:
		return nil, errs.New(errs.InvalidArgument, "rdma.import", "the descriptor is another engine's")
	}
	return m, nil
}

// Remap implements transport.Remapper: the pages that are there now are registered, and peers get the new keys. Those
// of a device are in another dma-buf: the one of before keeps the old pages alive.
func (t *Transport) Remap(ctx context.Context, key transport.LocalKey, now transport.Remapped) error {
	if !t.enter() {
		return kit.Closed("rdma.remap")
	}
	defer t.calls.Done()
	r := t.regions.Lookup(key)
	if r == nil {
		return kit.NoRegion("rdma.remap", key)
	}
	r.pinning.Lock()
	defer r.pinning.Unlock()
	if r.over {
		return kit.NoRegion("rdma.remap", key)
	}
	old := r.keys.Load()
	k, err := t.pinExchanged(ctx, r, now.DMABuf, old.version+1)
	if err != nil {
		return err
	}
	r.mu.Lock()
	if r.ended {
		r.mu.Unlock()
		_ = k.close(true)
		return kit.NoRegion("rdma.remap", key)
	}
	r.replaced.Add(1)
	r.keys.Store(k)
	r.retired = append(r.retired, old.local...)
	r.mu.Unlock()
	_ = t.tell(ctx, r, nil, news{region: uint64(r.key), version: k.version}) // its keys end
	err = r.endAll(old.remote)
	t.host.Describe(key, t.describe(r))
	return err
}

// pinExchanged registers the pages that are in a dma-buf now. After an error the region is as it was.
func (t *Transport) pinExchanged(ctx context.Context, r *region, now *mem.DMABuf, version uint32) (*keys, error) {
	was := r.DMABuf
	r.DMABuf = now
	if err := r.keepBuffer(); err != nil {
		r.DMABuf = was
		return nil, err
	}
	k, err := t.pin(ctx, r, version)
	if err != nil {
		r.DMABuf, was = was, r.DMABuf
	}
	closeDMABuf(was)
	return k, err
}
