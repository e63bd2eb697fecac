package cuda

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/cuda/driver"
	"github.com/tent-engine/tent/transports/host/hazard"
	"github.com/tent-engine/tent/transports/kit"
)

// Bounds.
const (
	slicesMax   = 1024      // accepted and not completed, over all links
	windowBytes = 128 << 20 // in flight on a rail: two slices of the longest, and the next ones
	regionsMax  = 1 << 16   // a page of a peer has a word for each; words that are not used cost nothing
)

// Bytes of the longest slices, below the setting slice_bytes. On an H200 each took 3 to 8 µs more than its bytes, which
// go at 2 TB/s inside the device and at 55 GB/s between it and the host. A slice that was begun cannot be taken back,
// so those of LOW stay short.
const (
	sliceMax     = 64 << 20 // between devices: the default of the setting
	sliceLow     = 16 << 20 // of LOW there
	slicePinned  = 8 << 20  // between a device and pinned memory of the host
	sliceThrough = 1 << 20  // through pinned memory of ours; of LOW to pinned memory, too
)

// Pages of the longest slices. A copy engine of an H200 took 4.4 µs for each of 64 KiB, and shorter ones take no less:
// 256 take a millisecond. A kernel needs no such time for each.
const (
	piecesMax      = 256
	piecesByKernel = 1008 // six launches
)

// copier carries slices out by the copy engines of this process, into regions that its links have mapped. Both
// transports are one, and add how peers meet. Any goroutine may call it.
type copier struct {
	kit.Executor[link] // brings Poll and Arm

	name string // of the transport
	host transport.Host
	self transport.Peer
	Copying
	life    kit.Lifecycle
	still   chan struct{}         // closed when links and copies have ended
	letting atomic.Pointer[error] // of Close's first part, once only pinned memory is left
	links   kit.Links[link]
	regions kit.Slots[transport.LocalKey, region]
	room    rooms
	round   driver.Round
	lost    sync.Map              // ends of devices that were told to links, by the driver's error
	unkept  atomic.Pointer[error] // why a region of the host could not be pinned, the latest
	unready atomic.Pointer[error] // why a device has no kernel, the latest
}

// begun makes the copier ready; end ends it.
func (t *copier) begun(name string, host transport.Host, sink transport.Sink, c Copying) error {
	t.name, t.host, t.self, t.Copying, t.still = name, host, host.Self(), c, make(chan struct{})
	return t.StartPosting(slicesMax, sink, (*link).up, t.begin, t.ask)
}

// info has the facts that hold for both transports.
func (t *copier) info() transport.Info {
	info := transport.Info{Name: t.name, Versions: transport.Versions{First: version, Last: version}, Vectors: true,
		Copies: true, Pins: t.HostRegister, Replaces: true, Alignment: 1, SliceMax: t.SliceBytes,
		SliceBest: t.SliceBytes, SlicesMax: slicesMax, PiecesMax: piecesMax}
	if t.CopyKernel {
		info.PiecesMax = piecesByKernel
	}
	info.Pairs[mem.Cuda][mem.Cuda] = true
	info.Pairs[mem.Host][mem.Cuda] = true
	return info
}

// op names an operation of the transport in errors.
func (t *copier) op(what string) string { return t.name + "." + what }

func (t *copier) refused(code errs.Code) *errs.Error {
	return errs.New(code, t.name, "refused, or asked back").WithScope(errs.ScopeSlice, errs.SideUnknown)
}

// replaced is the error of a name that a region had before a Remap.
func (t *copier) replaced() *errs.Error {
	return errs.New(errs.Replaced, t.name, "other memory is behind the region now").
		WithScope(errs.ScopeSlice, errs.SideRemote)
}

// attach enters a link; start begins its life, under the transport's.
func (t *copier) attach(start func(*link)) (transport.Link, error) {
	l := &link{t: t}
	var number transport.Link
	var err error
	open := t.life.Begin(func() {
		if number, err = t.links.Attach(t.op("attach"), func(n transport.Link) *link {
			number = n
			return l
		}); err == nil {
			l.number = number
			start(l)
		}
	})
	if !open {
		return 0, kit.Closed(t.op("attach"))
	}
	return number, err
}

// Detach ends a link. Waiting slices complete at once, those that are being copied by themselves; then the link's
// goroutine closes its mappings.
func (t *copier) Detach(number transport.Link) {
	if l := t.links.Detach(number); l != nil {
		l.Leave()
	}
}

// Stale implements transport.Transport.
func (t *copier) Stale() uint64 { return t.links.Stale() }

// Epoch implements transport.EpochReader.
func (t *copier) Epoch(number transport.Link) transport.Epoch {
	l := t.links.Lookup(number)
	if l == nil || l.Live.Load() == 0 { // it is set behind view
		return 0
	}
	return transport.Epoch(l.view.Epoch())
}

// Submit implements transport.Transport.
func (t *copier) Submit(list []*transport.Slice) int { return t.Accept(list, t.links.Lookup) }

// Withdraw completes waiting slices; one that is being copied completes by itself.
func (t *copier) Withdraw(list []*transport.Slice) {
	t.Drop(t.refused(errs.Withdrawn), func(s *transport.Slice, _ *link) bool { return slices.Contains(list, s) })
}

// Fence ends the rail's generation. The link goes up again in the next one.
func (t *copier) Fence(rail transport.Rail) {
	if l := t.links.Lookup(rail.Link); l != nil {
		l.Fence(rail, t.refused(errs.Withdrawn))
	}
}

// region is registered memory.
type region struct {
	mem.Region
	ordinal int         // of its device, -1 for the host
	pinned  atomic.Bool // memory of the host that devices reach
	plain   atomic.Bool // see driver.Plain; with the setting copy_kernel
	door    kit.Door    // for peers that attach later; those that are attached see their pages, or are told

	name atomic.Pointer[hazard.Region] // Remap changes it

	unshared atomic.Pointer[error] // why other hosts cannot map it, of mnnvl; nil where they can

	mu     sync.Mutex      // of Remap and Deregister
	old    []hazard.Region // names of before
	kept   bool            // pinned by us, until Deregister
	keeper int             // the device by which it is, for all of them
	theirs bool            // pinned by the program, or for another region; constant
}

// hosts has region.pinned of the regions of the host that nvlink's engines in this process offer. A Remap changes it,
// and peers in the process copy there by themselves.
var hosts sync.Map // of *atomic.Bool by home

// home is where a region of the host is.
type home struct {
	owner transport.ID
	name  hazard.Region
}

// place checks memory that is to be registered.
func (t *copier) place(m *mem.Region) (*region, error) {
	kind, ordinal, _ := m.Location.Parse()
	switch op := t.op("register"); {
	case t.life.Closed():
		return nil, kit.Closed(op)
	case !m.IsRange():
		return nil, kit.NoMemory(op, m)
	case m.Kind == mem.Host:
		ordinal = -1
	case m.Kind != mem.Cuda || kind != mem.Cuda:
		return nil, errs.New(errs.NotHere, op, "%v memory is not CUDA's", m.Kind)
	case ordinal < 0:
		return nil, errs.New(errs.NotHere, op, "the location %q names no device", m.Location)
	}
	return &region{Region: *m, ordinal: ordinal}, nil
}

// prepare loads the kernel for the device of a region, if the settings want one, and looks at the memory. Where the
// driver refuses, copy engines go on, and Explain has the reason.
func (t *copier) prepare(r *region) {
	if !t.CopyKernel || r.ordinal < 0 {
		return
	}
	r.plain.Store(driver.Plain(r.Addr, r.Size))
	if err := driver.PrepareKernel(r.ordinal); err != nil {
		t.unready.Store(&err)
		t.host.Log().Warn("pages of a device are copied one by one", "region", r.Name, "err", err)
	}
}

// keep pins a region of the host, if the settings want that. Where the driver refuses, bytes go through pinned memory
// of ours as without the setting, and Explain has the reason.
func (t *copier) keep(r *region) {
	if !t.HostRegister || r.ordinal >= 0 {
		return
	}
	if r.theirs = driver.Pinned(r.Addr, r.Size); r.theirs {
		r.pinned.Store(true)
		return
	}
	t.pin(r)
}

// pin is keep's call of the driver.
func (t *copier) pin(r *region) {
	r.keeper = max(driver.InUse(), 0)
	err := driver.Keep(r.keeper, r.Addr, r.Size)
	if r.kept = err == nil; err != nil {
		t.unkept.Store(&err)
		t.host.Log().Warn("a region of the host is not pinned", "region", r.Name, "err", err)
	}
	r.pinned.Store(r.kept)
}

// keepAnew pins the pages that are behind a region of the host now, also where the driver refused those of before.
// Those that the program has pinned, or another region, may be the pages of before: the processor copies them from then
// on, by their addresses.
//
// The driver lets pages go behind the work of all streams, those of the program too, and waits for that without a
// limit. So it does so apart: a caller that leaves has no slice that reaches them directly, and the pages of now are
// pinned later.
func (t *copier) keepAnew(ctx context.Context, r *region) error {
	r.pinned.Store(false)
	if !t.HostRegister || r.theirs {
		return nil
	}
	done := make(chan error, 1)
	if !t.life.Go(func() { done <- t.pinAnew(r) }) {
		return kit.Closed(t.op("remap"))
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return errs.New(errs.Timeout, t.op("remap"),
			"the driver lets pinned pages go behind the work of all streams (%v)", ctx.Err()).
			WithScope(errs.ScopeTransport, errs.SideLocal).
			WithHint("a stream of the program may wait for something: end that, and remap the region again")
	}
}

func (t *copier) pinAnew(r *region) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pinned.Store(false) // one of before may have ended just now
	if err := r.unkeep(); err != nil {
		return err
	}
	t.pin(r)
	return nil
}

// unkeep ends the pinning of keep.
func (r *region) unkeep() error {
	if !r.kept {
		return nil
	}
	err := driver.Unkeep(r.keeper, r.Addr)
	r.kept = err != nil
	return err
}

// unpinned says why the setting host_register has no effect on some region.
func (t *copier) unpinned() string {
	if why := t.unkept.Load(); why != nil {
		return "; bytes of a region of the host go through other memory, which is pinned: " + (*why).Error()
	}
	return ""
}

// unprepared says why the setting copy_kernel has no effect on some device.
func (t *copier) unprepared() string {
	if why := t.unready.Load(); why != nil {
		return "; pages of a device are copied one by one: " + (*why).Error()
	}
	return ""
}
