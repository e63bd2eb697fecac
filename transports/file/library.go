package file

import (
	"context"
	"sync"
	"time"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// Library moves bytes between files and memory of devices by itself, as a vendor's does. A transport of its own brings
// it, and package file does the rest: roots, names and sizes of files, links, classes, withdrawals, durability.
//
// Post and Collect are called by one goroutine, the others by any.
type Library interface {
	// Kind is the memory that it moves, beside files.
	Kind() mem.Kind
	// Adopt makes an open descriptor known and returns its handle, never 0. The error is the reason why the file is
	// left to other transports.
	Adopt(fd int) (handle uintptr, err error)
	// Drop ends a handle with which nothing is under way. The descriptor is closed afterwards.
	Drop(handle uintptr)
	// Keep makes a region known, until Unkeep. The error is the reason why its memory goes by other transports.
	Keep(region *mem.Region) error
	// Unkeep ends Keep. Nothing is under way with the region.
	Unkeep(region *mem.Region)
	// Renew makes the pages known that are behind a kept region now. Nothing is under way with the region. It may be
	// used also where they are refused, with the reason. After an error the pages of before may be known.
	Renew(region *mem.Region) (refused, err error)

	// Carry carries out a run, and returns when nothing of it is under way any more. Fewer bytes than the run has are
	// no error: it was cut short.
	Carry(run *Run) (moved uint64, err error)
	// Depth is the number of runs that Post takes at once; 0: it takes none, and threads call Carry.
	Depth() int
	// Post begins a run and does not wait for it. Its tag is below Depth, and that of no run under way. After an error
	// nothing of it is under way, and no byte of it moves.
	Post(run *Run, tag int) error
	// Collect returns runs of Post that have ended, each once. It waits for the first one, until a limit.
	Collect(into []Ended, limit time.Duration) int
	// Fetch copies the bytes of a run from the run's memory to the host.
	Fetch(into []byte, run *Run) error

	// RunMost is the largest run in bytes.
	RunMost() uint64
	// Bounces reports whether the library copies through memory of the host itself.
	Bounces() bool
	// Describe says for people how the library works here.
	Describe() string
	// Close gives back everything that is not kept for the process. Nothing is under way.
	Close()
}

// Run is bytes that lie side by side in a file and in memory.
type Run struct {
	Op     transport.Op
	Handle uintptr
	Region *mem.Region // that has the bytes
	Addr   uintptr
	Offset uint64 // in the file
	Bytes  uint64
}

// Ended is the end of a run that was posted.
type Ended struct {
	Tag   int
	Moved uint64
	Err   error
}

// Carried is a transport of files with a library that moves the bytes. All methods may be called from any goroutine.
type Carried struct {
	*base
	library Library
	clerk   *clerk
	keeping sync.Mutex // of Renew and Unkeep
}

// carriers are the transports of this process that are open. A library keeps a range once, for all of them.
var carriers struct {
	sync.Mutex
	open map[*Carried]bool
}

var (
	_ transport.Transport = (*Carried)(nil)
	_ transport.Filer     = (*Carried)(nil)
	_ transport.Explainer = (*Carried)(nil)
	_ transport.Remapper  = (*Carried)(nil)
)

// Settled completes and checks the settings of a transport with a library: Settings, *Settings or nil.
func Settled(config any, branch string) (Settings, error) { return settled(config, branch) }

// OpenBy opens a transport by its name, with settings of Settled. It closes the library.
func OpenBy(name string, s Settings, library Library, host transport.Host, sink transport.Sink) *Carried {
	t := &Carried{base: newBase(name, s, host, sink), library: library}
	t.clerk = newClerk(t.base, library)
	t.mover = t.clerk
	t.clerk.start()
	carriers.Lock()
	defer carriers.Unlock()
	if carriers.open == nil {
		carriers.open = map[*Carried]bool{}
	}
	carriers.open[t] = true
	return t
}

// DescribeBy returns a transport that is not open, for transport.Described.
func DescribeBy(name string, library Library) transport.Transport {
	s, _ := settled(nil, name) // its defaults are inside their bounds
	return &Carried{base: &base{name: name, settings: s}, library: library}
}

// Info implements transport.Transport: memory of a device and files.
func (t *Carried) Info() transport.Info {
	info := t.base.Info()
	info.Pairs = [mem.KindCount][mem.KindCount]bool{}
	info.Pairs[t.library.Kind()][mem.File] = true
	info.Pins, info.Bounces = true, t.library.Bounces()
	info.SliceBest = info.SliceMax
	return info
}

// Register implements transport.Transport. A region that the library does not take is NotHere, with its reason.
func (t *Carried) Register(_ context.Context, m mem.Region) (transport.LocalKey, transport.Descriptor, error) {
	if err := t.takes(&m); err != nil {
		return 0, nil, err
	}
	if err := t.library.Keep(&m); err != nil {
		return 0, nil, errs.New(errs.NotHere, t.name+".register", "%v", err)
	}
	key := t.regions.Insert(func(transport.LocalKey) *mem.Region { return &m })
	if key == 0 {
		t.library.Unkeep(&m)
		return 0, nil, errs.New(errs.TooManyRequests, t.name+".register", "too many regions")
	}
	return key, nil, nil
}

// takes says why a region is not for this transport.
func (t *Carried) takes(m *mem.Region) error {
	switch {
	case t.life.Closed():
		return kit.Closed(t.name + ".register")
	case !m.IsRange():
		return kit.NoMemory(t.name+".register", m)
	case m.Kind != t.library.Kind():
		return errs.New(errs.NotHere, t.name+".register", "%v memory cannot be moved by this transport, only %v memory",
			m.Kind, t.library.Kind())
	}
	return nil
}

// Deregister implements transport.Transport.
func (t *Carried) Deregister(_ context.Context, key transport.LocalKey) error {
	if !t.unkeep(key) {
		return kit.NoRegion(t.name+".deregister", key)
	}
	return nil
}

// unkeep forgets a region, and reports whether it was there.
func (t *Carried) unkeep(key transport.LocalKey) bool {
	t.keeping.Lock()
	defer t.keeping.Unlock()
	m := t.regions.Delete(key)
	if m != nil {
		t.library.Unkeep(m)
	}
	return m != nil
}

// remapLimit bounds how long a Remap waits for runs to end.
const remapLimit = 5 * time.Second

// sharing returns the transports of this process with memory of a region, this one too.
func (t *Carried) sharing(m *mem.Region) (list []*Carried) {
	carriers.Lock()
	defer carriers.Unlock()
	for other := range carriers.open {
		if other == t || other.library.Kind() == t.library.Kind() && other.keeps(m) {
			list = append(list, other)
		}
	}
	return list
}

// keeps reports whether the library keeps memory of a region for the transport.
func (t *Carried) keeps(m *mem.Region) bool {
	for _, r := range t.regions.All() {
		if overlap(r, m) {
			return true
		}
	}
	return false
}

// Remap implements transport.Remapper: the library has pinned the pages of before. No run of this process is under way
// with them meanwhile, and none begins; slices wait.
func (t *Carried) Remap(ctx context.Context, key transport.LocalKey, _ transport.Remapped) error {
	ctx, cancel := context.WithTimeout(ctx, remapLimit)
	defer cancel()
	m := t.regions.Lookup(key)
	if m == nil {
		return kit.NoRegion(t.name+".remap", key)
	}
	for _, each := range t.sharing(m) {
		defer each.clerk.resume()
		if err := each.clerk.pause(ctx, m); err != nil {
			return err
		}
	}
	t.keeping.Lock()
	defer t.keeping.Unlock()
	if t.regions.Lookup(key) == nil { // it was forgotten meanwhile
		return kit.NoRegion(t.name+".remap", key)
	}
	refused, err := t.library.Renew(m)
	if refused != nil {
		t.host.Log().Warn("the library does not pin the new pages of a region", "region", m.Name, "err", refused)
	}
	return err
}

// Close implements transport.Transport.
func (t *Carried) Close(ctx context.Context) error {
	err := t.life.Close(ctx, func() error {
		err := t.end()
		carriers.Lock()
		delete(carriers.open, t)
		carriers.Unlock()
		for key := range t.regions.All() {
			t.unkeep(key)
		}
		t.library.Close()
		return err
	})
	if err != nil {
		return t.stuck(err)
	}
	return nil
}
