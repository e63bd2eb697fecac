package file

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// base is the common part of both transports, all but the part that moves bytes. It has regions, links, open files, the
// queue by class, and the ends of slices.
//
// mu guards everything below it, and is held for moments only: never during a system call, a callback or a copy. No
// lock is taken under it.
type base struct {
	name     string
	settings Settings
	host     transport.Host
	sink     transport.Sink
	mover    mover

	life       kit.Lifecycle
	completing atomic.Int32   // goroutines inside Sink.Complete
	tasks      sync.WaitGroup // goroutines of single files: reopen, synchronise
	openMost   time.Duration  // importMost, which tests shorten

	mu        sync.Mutex
	changed   *sync.Cond // of items and completions, for Close
	regions   kit.Slots[transport.LocalKey, mem.Region]
	files     kit.Slots[transport.RemoteKey, file]
	openFiles int
	unheld    kit.List[file] // open files that nobody holds, the one that was used longest ago first
	doing     map[*doing]struct{}
	rooms     map[fileSystem]*room
	inodes    map[inodeNumber]*inode
	tick      uint64
	links     kit.Links[link]
	queue     kit.ClassQueue[item]
	items     []item
	free      kit.List[item]
	starving  bool // a link is starved
	hands     []*hand
	stop      bool // the mover ends when nothing is under way
}

// mover is the part that moves bytes: threads, a ring, or a library. kick, recall and quick are called with base.mu
// held, adopt and drop without it.
type mover interface {
	// kick says that there are new items in the queues, that items are to be recalled, or that base.stop was set.
	kick()
	// recall asks for the end of the operations of an item that was withdrawn.
	recall(*item)
	// straight reports whether files are to be opened with O_DIRECT as well.
	straight() bool
	// adopt makes an open descriptor of the file at a path known to the mover's library, and returns its handle there.
	// The error says why the file is left to other transports.
	adopt(fd int, path string) (handle uintptr, refused *errs.Error)
	// drop ends a handle, before its descriptor is closed.
	drop(handle uintptr)
	// quick reports whether a caller should try to carry out an operation by itself, through the page cache and without
	// waiting. It is asked once for each try.
	quick(*file, transport.Op) bool
	// suits says why a file is better left to the other transport.
	suits(*file) *errs.Error
	describe() string
	// wait returns when every goroutine of it has ended; after base.stop.
	wait()
}

// hand is the memory with which a goroutine ends slices, so that this allocates nothing.
type hand struct {
	ends  []transport.Completion
	rails []transport.RailInfo // that come up again
	ready []transport.Rail     // that Ready is owed to
	fds   []openEnds
}

const handful = 64

func newHand() *hand { return &hand{ends: make([]transport.Completion, 0, handful)} }

func newBase(name string, s Settings, host transport.Host, sink transport.Sink) *base {
	t := &base{name: name, settings: s, host: host, sink: sink, inodes: map[inodeNumber]*inode{},
		openMost: importMost, doing: map[*doing]struct{}{}, rooms: map[fileSystem]*room{},
		items: make([]item, s.Slices)}
	t.changed = sync.NewCond(&t.mu)
	for i := range t.items {
		it := &t.items[i]
		it.number = uint64(i) + 1
		t.free.PushBack(it, &it.place)
	}
	for range 4 {
		t.hands = append(t.hands, newHand())
	}
	return t
}

// Info implements transport.Transport: any alignment, many pieces a slice.
func (t *base) Info() transport.Info {
	info := transport.Info{Name: t.name, Vectors: true, Files: true, SameHost: true, SliceMax: t.settings.SliceBytes,
		SliceBest: min(t.settings.SliceBytes, 1<<20), Alignment: 1, SlicesMax: t.settings.Slices}
	info.Pairs[mem.Host][mem.File] = true
	return info
}

// Register implements transport.Transport. Regions are local operands only, so there is no descriptor.
func (t *base) Register(_ context.Context, m mem.Region) (transport.LocalKey, transport.Descriptor, error) {
	if err := kit.CheckRegister(t.name+".register", &t.life, &m); err != nil {
		return 0, nil, err
	}
	key := t.regions.Insert(func(transport.LocalKey) *mem.Region { return &m })
	if key == 0 {
		return 0, nil, errs.New(errs.TooManyRequests, t.name+".register", "too many regions")
	}
	return key, nil, nil
}

// Revoke implements transport.Transport. Nobody but this engine reaches a region by a file transport, so there is
// nothing to wait for.
func (t *base) Revoke(_ context.Context, key transport.LocalKey, _ *transport.Peer,
	_ transport.Epoch) error {
	if t.regions.Lookup(key) == nil {
		return kit.NoRegion(t.name+".revoke", key)
	}
	return nil
}

// Deregister implements transport.Transport.
func (t *base) Deregister(_ context.Context, key transport.LocalKey) error {
	if t.regions.Delete(key) == nil {
		return kit.NoRegion(t.name+".deregister", key)
	}
	return nil
}

// Serve implements transport.Transport: no peer has anything to ask.
func (t *base) Serve(context.Context, transport.Peer, []byte) ([]byte, error) {
	return nil, errs.New(errs.PermissionDenied, t.name+".serve", "peers do not get at files")
}

// Close implements transport.Transport. Waiting slices end at once, those in the kernel when they come back. When ctx
// ends before, the error names the slices that the kernel has not given back; its memory must stay, and the transport
// ends by itself later.
func (t *base) Close(ctx context.Context) error {
	if err := t.life.Close(ctx, t.end); err != nil {
		return t.stuck(err)
	}
	return nil
}

// end takes back waiting slices, waits for the kernel, then for every goroutine, then gives the descriptors back.
func (t *base) end() error {
	t.mu.Lock()
	ended := t.cutOff(nil, kit.Closed(t.name+".close"))
	t.mu.Unlock()
	t.finish(ended, nil)
	t.mu.Lock()
	for t.free.Len() < len(t.items) || t.completing.Load() > 0 {
		t.changed.Wait()
	}
	t.stop = true
	t.mover.kick()
	t.mu.Unlock()
	t.mover.wait()
	t.tasks.Wait()
	var open []openEnds
	t.mu.Lock()
	for key, f := range t.files.All() {
		open = append(open, f.give())
		t.files.Delete(key)
	}
	for number := range t.links.All() {
		t.links.Detach(number)
	}
	t.mu.Unlock()
	for _, e := range open {
		t.closeAll(e)
	}
	t.mu.Lock()
	for len(t.doing) > 0 {
		t.changed.Wait()
	}
	t.mu.Unlock()
	return nil
}

// stuck names the slices that are still in the kernel.
func (t *base) stuck(cause error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var names []string
	n := 0
	for i := range t.items {
		if it := &t.items[i]; it.state != idle {
			if n++; n <= 4 {
				names = append(names, it.span(it.slice.Remote))
			}
		}
	}
	for _, f := range t.files.All() {
		if f.sync.busy {
			names = append(names, "fdatasync of "+f.Path)
		}
	}
	for d := range t.doing {
		names = append(names, d.what+" of "+d.path)
		break // one file system is enough
	}
	if n > 4 {
		names = append(names, fmt.Sprintf("and %d more", n-4))
	}
	if len(names) == 0 {
		return errs.New(errs.Timeout, t.name+".close",
			"no time was left for it, and the kernel holds nothing of it (%v)", cause).
			WithScope(errs.ScopeTransport, errs.SideLocal)
	}
	return errs.New(errs.Timeout, t.name+".close", "the kernel has not given back: %s (%v)", strings.Join(names, "; "),
		cause).
		WithScope(errs.ScopeTransport, errs.SideRemote).
		WithHint("their memory must stay; look at the disk and the kernel's log")
}
