package file

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// file is one imported file. Its descriptors come and go with use; its identity stays.
type file struct {
	card
	key   transport.RemoteKey
	link  *link
	inode *inode

	// Descriptors, -1 while there is none. They come under base.mu, and go only while users is 0, so a goroutine that
	// has a use reads them without a lock.
	plain    atomic.Int32   // through the page cache
	straight atomic.Int32   // O_DIRECT; only where direct
	handle   atomic.Uintptr // of either of them in the mover's library; 0 where it has none
	// aligned ranges may go past the page cache; a file system that refuses after all ends it
	direct atomic.Bool
	// offsets and lengths that go past the page cache are multiples; at least a page, see doc.go
	unit     uint64
	memory   uint64                 // addresses likewise
	refused  atomic.Pointer[string] // why not direct
	fuse     bool                   // it is of a FUSE file system
	resident bool                   // it is in memory: nothing of it waits for a disk
	cache    guess                  // of READs
	blind    atomic.Bool            // the kernel counts no cached pages: see mayHold
	slow     [2]atomic.Bool         // by operation: the file system knows no RWF_NOWAIT, so one cannot know

	// Guarded by base.mu.
	users   int               // slices, synchronisations and a reopening that hold it
	place   kit.Element[file] // in base.unheld
	gone    bool              // its link was detached
	opening bool
	waiting kit.List[item] // items that wait for its descriptors
	sync    struct {
		busy   bool
		now    []func(*errs.Error) // for those the running fdatasync counts
		next   []func(*errs.Error) // for those the next one
		failed *errs.Error         // the failure that has lost bytes; it stays
	}
}

// look finds out how the file can be reached past the page cache. The unit is a page at least, and a block of the file
// system: a page is then either written past the cache as a whole or only through it, and neighbours in one page, in
// this process or in another, cannot lose each other's bytes.
func (f *file) look(fd int, direct bool) {
	f.unit, f.memory = uint64(unix.Getpagesize()), uint64(unix.Getpagesize())
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		f.refuse("its file system cannot be asked: " + err.Error())
		return
	}
	var node unix.Stat_t
	if unix.Fstat(fd, &node) == nil && node.Mode&unix.S_IFMT == unix.S_IFBLK {
		fs = unix.Statfs_t{} // it has the node of the device, and not its bytes
	}
	switch fs.Type {
	case unix.TMPFS_MAGIC, unix.RAMFS_MAGIC, unix.HUGETLBFS_MAGIC: // the first two take O_DIRECT and ignore it
		f.resident = true
		f.refuse("it is in memory")
		return
	}
	if f.fuse = fs.Type == unix.FUSE_SUPER_MAGIC; !direct {
		return
	}
	if f.Cached {
		f.refuse(isCached)
		return
	}
	var st unix.Statx_t
	err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, &st)
	switch {
	case err == nil && st.Mask&unix.STATX_DIOALIGN != 0:
		if st.Dio_offset_align == 0 {
			f.refuse("its file system takes no O_DIRECT")
			return
		}
		f.unit = max(f.unit, uint64(st.Dio_offset_align))
		f.memory = max(1, uint64(st.Dio_mem_align))
	case fs.Type != unix.EXT4_SUPER_MAGIC && fs.Type != unix.XFS_SUPER_MAGIC:
		// Those two took it long before they could say so (Linux 6.1).
		f.refuse("its file system does not say what O_DIRECT wants")
		return
	}
	if fs.Bsize > 0 && fs.Bsize <= 64<<10 && fs.Bsize&(fs.Bsize-1) == 0 {
		f.unit = max(f.unit, uint64(fs.Bsize))
	}
	f.direct.Store(true)
}

// open opens descriptors and makes sure that they are still of the file that was meant. The caller gives them to the
// file, or closes them.
func (f *file) open(by mover, s *Settings) (openEnds, *errs.Error) {
	direct := by.straight()
	flags := unix.O_RDWR
	if f.ReadOnly {
		flags = unix.O_RDONLY
	}
	fd, err := s.open(f.Path, flags, 0)
	if err != nil {
		return nothingOpen, trouble("file.open", f.Path, err)
	}
	if replaced := f.recognise(fd, "file.open"); replaced != nil {
		_ = unix.Close(fd)
		return nothingOpen, replaced.WithScope(errs.ScopeSlice, errs.SideRemote)
	}
	if f.unit == 0 {
		if f.look(fd, direct); f.direct.Load() {
			// Edges of ranges are read singly; pages that readahead brought along would be dirtied page by page later.
			_ = unix.Fadvise(fd, 0, 0, unix.FADV_RANDOM)
		}
	}
	e := openEnds{straight: -1, plain: int32(fd), path: f.Path, at: f.fileSystem()}
	if direct && f.direct.Load() {
		// By descriptor, not by name: it is the same file, also if its name is another's by now.
		straight, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), flags|unix.O_DIRECT|unix.O_CLOEXEC, 0)
		if err != nil {
			f.refuse("its file system takes no O_DIRECT: " + err.Error())
			straight = -1
		}
		e.straight = int32(straight)
	}
	handle, refused := by.adopt(e.best(), f.Path)
	if refused != nil {
		e.closeFiles()
		return nothingOpen, refused
	}
	e.handle = handle
	return e, nil
}

// recognise refuses a descriptor of another file, which has got the name of this one.
func (f *file) recognise(fd int, op string) *errs.Error {
	now := card{transport.FileCard{Path: f.Path}}
	if err := now.identify(fd); err != nil || !now.is(&f.card) {
		return errs.New(errs.Stale, op, "%s: another file has got this name since it was opened", f.Path)
	}
	return nil
}

const isCached = "it was opened with cached=True"

// refuse sends everything through the page cache from now on.
func (f *file) refuse(reason string) {
	f.refused.Store(&reason)
	f.direct.Store(false)
}

// mayBeQuick reports whether an operation can be tried without waiting for a disk.
func (f *file) mayBeQuick(op transport.Op) bool { return f.resident || !f.slow[op&1].Load() }

// isOpen is for goroutines that have a use.
func (f *file) isOpen() bool { return f.plain.Load() >= 0 }

// openEnds are descriptors that no file has, and the handle of the library.
type openEnds struct {
	straight, plain int32
	handle          uintptr
	path            string
	at              fileSystem
}

// nothingOpen is the value for none.
var nothingOpen = openEnds{straight: -1, plain: -1}

// best is the descriptor for a library: past the page cache where the file takes that.
func (e *openEnds) best() int {
	if e.straight >= 0 {
		return int(e.straight)
	}
	return int(e.plain)
}

func (e *openEnds) closeFiles() {
	for _, fd := range [...]int32{e.straight, e.plain} {
		if fd >= 0 {
			_ = unix.Close(int(fd))
		}
	}
}

// have gives descriptors to the file.
func (f *file) have(e openEnds) {
	f.straight.Store(e.straight)
	f.handle.Store(e.handle)
	f.plain.Store(e.plain)
}

// give takes the descriptors from the file; the caller closes them. Only while nobody has a use, or before anybody had.
func (f *file) give() openEnds {
	return openEnds{f.straight.Swap(-1), f.plain.Swap(-1), f.handle.Swap(0), f.Path, f.fileSystem()}
}

// openApart opens the descriptors of a file that was imported, apart and within base.openMost.
func (t *base) openApart(what string, f *file) (openEnds, *errs.Error) {
	ctx, cancel := context.WithTimeout(context.Background(), t.openMost)
	defer cancel()
	e := nothingOpen
	err := t.apart(ctx, &doing{what, f.Path, f.fileSystem()}, func() error {
		var bad *errs.Error
		if e, bad = f.open(t.mover, &t.settings); bad != nil {
			return bad
		}
		return nil
	}, func() { t.closeAll(e) })
	if err != nil {
		return nothingOpen, errs.From(t.name, err)
	}
	return e, nil
}

// Import implements transport.Transport: it opens the file that OpenFile described. The link must be of that file, or
// of a folder above it.
func (t *base) Import(number transport.Link, d transport.Descriptor) (transport.RemoteKey, error) {
	read, bad := transport.DecodeFileCard(d)
	if bad != nil {
		return 0, bad
	}
	c := &card{*read}
	f := &file{card: *c}
	f.plain.Store(-1)
	f.straight.Store(-1)
	t.mu.Lock()
	l := t.links.Lookup(number)
	if l == nil || !l.covers(c.Path) {
		t.mu.Unlock()
		return 0, errs.New(errs.Stale, t.name+".import", "link %v has ended or is not one of %s", number, c.Path)
	}
	known := l.find(c)
	t.mu.Unlock()
	if known != nil {
		return known.key, nil
	}
	if f.Cached && t.mover.straight() {
		f.refuse(isCached)
		if err := t.mover.suits(f); err != nil {
			return 0, err // without opening it
		}
	}
	e, err := t.openApart("import", f)
	if err != nil {
		return 0, err
	}
	if err := t.mover.suits(f); err != nil {
		t.closeAll(e)
		return 0, err
	}
	f.have(e)
	return t.enter(f, number)
}

// Forget implements transport.Transport: it closes the file when its last slice has ended.
func (t *base) Forget(number transport.Link, key transport.RemoteKey) {
	t.mu.Lock()
	l, f := t.links.Lookup(number), t.files.Lookup(key)
	if l == nil || f == nil || f.link != l {
		t.mu.Unlock()
		return
	}
	l.files = slices.DeleteFunc(l.files, func(other *file) bool { return other == f })
	f.gone = true
	surplus := nothingOpen
	if f.users == 0 {
		surplus = t.forget(f)
	}
	t.mu.Unlock()
	t.closeSoonAll(surplus)
}

// enter puts an open file into the table.
func (t *base) enter(f *file, number transport.Link) (transport.RemoteKey, error) {
	t.mu.Lock()
	l := t.links.Lookup(number)
	if l == nil {
		t.mu.Unlock()
		t.closeAll(f.give())
		return 0, errs.New(errs.Stale, t.name+".import", "link %v has ended", number)
	}
	f.link = l
	if t.files.Insert(func(key transport.RemoteKey) *file { f.key = key; return f }) == 0 {
		t.mu.Unlock()
		t.closeAll(f.give())
		return 0, errs.New(errs.TooManyRequests, t.name+".import", "too many open files")
	}
	l.files = append(l.files, f)
	t.shareInode(f)
	t.openFiles++
	t.unheld.PushBack(f, &f.place)
	surplus := t.evict()
	t.mu.Unlock()
	t.closeAll(surplus)
	return f.key, nil
}

// hold takes a use of a file. The caller holds t.mu.
func (t *base) hold(f *file) {
	f.users++
	f.place.Leave()
}

// release gives a use back and returns descriptors to close, since its link is gone or too many files are open. The
// caller holds t.mu and closes them after letting go.
func (t *base) release(f *file) openEnds {
	f.users--
	switch {
	case f.users > 0:
		return nothingOpen
	case f.gone:
		return t.forget(f)
	case f.isOpen():
		t.unheld.PushBack(f, &f.place)
	}
	return t.evict()
}

// forget removes a file that nobody holds, of a link that is gone. The caller holds t.mu.
func (t *base) forget(f *file) openEnds {
	if t.files.Delete(f.key) == nil {
		return nothingOpen
	}
	t.leaveInode(f)
	f.place.Leave()
	if f.isOpen() {
		t.openFiles--
	}
	return f.give()
}

// evict takes the descriptors of the file that has not been used for longest, if more than Settings.Descriptors are
// open. Files in use stay: there are never more of those than slices. The caller holds t.mu.
func (t *base) evict() openEnds {
	if t.openFiles <= t.settings.Descriptors {
		return nothingOpen
	}
	oldest := t.unheld.PopFront()
	if oldest == nil {
		return nothingOpen
	}
	t.openFiles--
	return oldest.give()
}

// reopen gets the descriptors of a file that lost them, and puts the items that wait for it back into their queues. It
// is a goroutine of its own: a name can be slow to look up, and other files go on meanwhile. It has a use of the file.
func (t *base) reopen(f *file) {
	e, err := t.openApart("open", f)
	var failed []*item
	t.mu.Lock()
	f.opening = false
	evicted := nothingOpen
	if err == nil {
		f.have(e)
		t.openFiles++
		evicted = t.evict()
	}
	for it := f.waiting.PopFront(); it != nil; it = f.waiting.PopFront() {
		if err != nil {
			it.err, it.state = err, running
			failed = append(failed, it)
			continue
		}
		t.enqueue(it)
	}
	unheld := t.release(f)
	t.mover.kick()
	t.mu.Unlock()
	t.closeAll(evicted)
	t.closeAll(unheld)
	t.finish(failed, nil)
}

// describe says how the file is reached, for Explain.
func (f *file) describe() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %d bytes", f.Path, f.Size)
	if f.ReadOnly {
		b.WriteString(", read-only")
	}
	switch {
	case f.direct.Load():
		fmt.Fprintf(&b, ", O_DIRECT in units of %d bytes from memory aligned to %d", f.unit, f.memory)
	case f.refused.Load() != nil:
		b.WriteString(", page cache: " + *f.refused.Load())
	default:
		b.WriteString(", page cache")
	}
	return b.String()
}
