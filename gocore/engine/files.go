package engine

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"path"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/segment"
	"github.com/tent-engine/tent/gocore/transport"
)

// A file is a segment like any other: a peer that only transports with Info.Files attach. Its one region of kind File
// has the offsets of the file, so plans, failover, classes, deadlines, cancellation and metrics know nothing of files.
// Each open is a peer of its own, with its own size, permission and durability. All opens of one file share their open
// withdrawals, as the addresses of an engine do. Other processes never reach it.
//
// Batches hold the files that they use: closing the segment lets them end first, and its links are detached after the
// last.

// FileOptions say how OpenFile opens a file. The zero value opens one that is there, for reading and writing.
type FileOptions struct {
	Create     bool               // make it if it is absent, with mode 0600, and grow it to Size; never truncate it
	Truncate   bool               // empty it first
	ReadOnly   bool               // refuse to write, and need no permission for it
	Cached     bool               // go through the page cache, also where the file system takes O_DIRECT
	Durability request.Durability // of every transfer that writes to it
	Size       uint64             // bytes; 0 leaves it as it is; needs Create
}

// file holds the properties of a peer that is a file.
type file struct {
	id         transport.ID // the same for each open of it: the core holds all of them back while bytes may land
	path       string
	readOnly   bool
	durability request.Durability
}

// fileID makes the ID of a file by its inode: other names of it lead to the same bytes.
func fileID(card *transport.FileCard) (id transport.ID) {
	b := []byte("tent file")
	for _, n := range [...]uint64{card.Device, card.Inode, card.BornNs} {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	sum := sha256.Sum256(b)
	copy(id[:], sum[:])
	return id
}

// id is that of the engine or the file that the peer is.
func (p *peer) id() transport.ID {
	if p.file != nil {
		return p.file.id
	}
	return p.identity.ID
}

const (
	fileScheme              = "file://"
	fileRegion mem.RegionID = 1
)

// OpenFile opens a file of this machine by its absolute path and fails at once if that cannot be done. Errors:
// NotFound, PermissionDenied, InvalidArgument (a wrong option, not a regular file), NoSpace, StorageError.
func (e *Engine) OpenFile(ctx context.Context, name string, o FileOptions) (SegmentID, error) {
	if err := e.usable(); err != nil {
		return 0, err
	}
	if err := o.check(); err != nil {
		return 0, err
	}
	if !strings.HasPrefix(name, "/") {
		return 0, errs.New(errs.InvalidArgument, "open", "%q is not an absolute path", name)
	}
	filer, err := e.filer()
	if err != nil {
		return 0, err
	}
	made, failure := filer.OpenFile(ctx, transport.FileSpec{Path: name, Create: o.Create, Truncate: o.Truncate,
		ReadOnly: o.ReadOnly, Cached: o.Cached, Size: o.Size})
	if failure != nil {
		return 0, failure
	}
	p := e.filePeer(&made, o.Durability)
	if err := p.join(ctx); err != nil {
		e.leavePeer(p)
		return 0, err
	}
	p.importFile(ctx)
	return e.opened(&handle{peer: p, base: fileRegion, name: made.Path}), nil
}

// FileTarget is a file of OpenFiles.
type FileTarget struct {
	Path string
	FileOptions
}

// openersMost is how many files of one call are opened side by side: a name may have to be read from the disk.
const openersMost = 8

// OpenFiles opens files as OpenFile does, all or none. The error is that of one which cannot be opened.
func (e *Engine) OpenFiles(ctx context.Context, targets []FileTarget) ([]SegmentID, error) {
	ids := make([]SegmentID, len(targets))
	places := make([]int, len(targets))
	for i := range places {
		places[i] = i
	}
	var failed atomic.Pointer[error]
	sideBySide(places, openersMost, func(i int) {
		if failed.Load() != nil {
			return
		}
		id, err := e.OpenFile(ctx, targets[i].Path, targets[i].FileOptions)
		if ids[i] = id; err != nil {
			failed.CompareAndSwap(nil, &err)
		}
	})
	if err := failed.Load(); err != nil {
		e.CloseSegments(slices.DeleteFunc(ids, func(id SegmentID) bool { return id == 0 }))
		return nil, *err
	}
	return ids, nil
}

// CloseSegments closes handles as CloseSegment does, those that are open.
func (e *Engine) CloseSegments(ids []SegmentID) {
	sideBySide(ids, openersMost, func(id SegmentID) { _ = e.CloseSegment(id) })
}

func (o *FileOptions) check() *errs.Error {
	switch {
	case o.Size > 1<<62:
		return errs.New(errs.InvalidArgument, "open", "the size %d is beyond 2^62", o.Size)
	case o.Size > 0 && !o.Create:
		return errs.New(errs.InvalidArgument, "open", "size is %d, but a file that is only opened keeps its size",
			o.Size).
			WithHint("create=True makes the file if it is absent and grows it to size")
	case o.ReadOnly && (o.Create || o.Truncate):
		return errs.New(errs.InvalidArgument, "open",
			"a file that is opened for reading only is neither created nor truncated")
	case o.ReadOnly && o.Durability != request.DurabilityNone:
		return errs.New(errs.InvalidArgument, "open",
			"durability is about writing, and the file is opened for reading only")
	}
	return nil
}

// openFileNamed is OpenFile for a name alone: a file that must not be written is opened for reading.
func (e *Engine) openFileNamed(ctx context.Context, name string) (SegmentID, error) {
	id, err := e.OpenFile(ctx, name, FileOptions{})
	if errs.CodeOf(err) != errs.PermissionDenied {
		return id, err
	}
	if id, failure := e.OpenFile(ctx, name, FileOptions{ReadOnly: true}); failure == nil {
		return id, nil
	}
	return 0, err
}

// filer is the preferred transport for files that is open.
func (e *Engine) filer() (transport.Filer, *errs.Error) {
	for _, p := range e.ports {
		if p.filer != nil {
			return p.filer, nil
		}
	}
	why := ""
	for _, p := range e.ports {
		if p.transport == nil {
			why += "; " + p.name + ": " + p.reason
		}
	}
	return nil, errs.New(errs.NotImplemented, "open", "no transport for files is open%s", why)
}

// filePeer makes the peer that is a file, with one handle, and its region. It is not shared yet.
func (e *Engine) filePeer(made *transport.FileCard, durability request.Durability) *peer {
	identity := transport.Peer{Address: fileScheme +
		made.Path, Name: path.Base(made.Path), MachineID: e.machine, ID: transport.NewID()}
	p := newPeer(e, identity)
	p.handles, p.file = 1, &file{fileID(made), made.Path, made.ReadOnly, durability}
	region := segment.Region{ID: fileRegion, Name: made.Path, Size: made.Size, Location: "file", Kind: mem.File,
		Permission: mem.GlobalReadWrite, ReadOnly: made.ReadOnly, Descriptors: map[string]transport.Descriptor{}}
	if made.ReadOnly {
		region.Permission = mem.GlobalReadOnly
	}
	for _, port := range e.ports {
		if port.filer != nil {
			region.Descriptors[port.name] = made.Encode()
		}
	}
	p.learn(&segment.Description{Address: identity.Address, Name: identity.Name, MachineID: e.machine,
		ID: identity.ID, Regions: []segment.Region{region}})
	e.segments.mu.Lock()
	e.segments.enterLocked(p)
	e.segments.mu.Unlock()
	return p
}

// importFile has the transports open the file now, where the caller waits for its disk anyway, and not with the first
// transfer. One that does not take it is not asked again; one that could not is, and so are all others once ctx ended.
func (p *peer) importFile(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	links, remote := *p.links.Load(), p.regions.Load().byID[fileRegion]
	remote.refused = map[int]string{}
	for i, port := range p.engine.ports {
		descriptor := remote.descriptors[port.name]
		if links[i].id == 0 || len(descriptor) == 0 || remote.keys[i] != 0 || ctx.Err() != nil {
			continue
		}
		key, err := port.transport.Import(links[i].link, descriptor)
		if errs.CodeOf(err) == errs.NotImplemented {
			remote.refused[i] = err.Error()
		}
		remote.keys[i] = key
	}
}

// misfit says why a transport has no link to the peer by its nature, or "".
func (p *peer) misfit(info *transport.Info) string {
	switch {
	case p.file != nil && !info.Files:
		return "the segment is a file"
	case p.file == nil && info.Files:
		return "it moves bytes between memory and files"
	}
	return ""
}

// fileUse is a file that a call or a batch moves bytes of.
type fileUse struct {
	peer     *peer
	written  bool
	sync     bool       // its bytes must be on stable storage before the batch ends
	deadline clock.Time // of that
	limit    clock.Time // and where it ends
	ticket   uint64     // of the sync that was asked for, 0 before
	synced   bool
	canceled bool // its batch was, before a sync was asked for
}

// admits returns why the terms are not for a file.
func (f *file) admits(p *peer, t *Terms) *errs.Error {
	if t.Integrity != request.IntegrityNone {
		return errs.New(errs.InvalidArgument, "submit",
			"transfers of files carry no checksums, and integrity was asked for")
	}
	if t.Op == transport.Write && f.readOnly {
		return errs.New(errs.PermissionDenied, "submit", "%s was opened for reading only", f.path).
			OfPeer(p.identity.Address)
	}
	return nil
}

// useFile notes that tasks of the call move bytes of a file.
func (c *Call) useFile(p *peer, tasks []dispatch.TaskSpec) {
	i := slices.IndexFunc(c.files, func(u fileUse) bool { return u.peer == p })
	if i < 0 {
		i = len(c.files)
		c.files = append(c.files, fileUse{peer: p})
	}
	u := &c.files[i]
	for k := range tasks {
		if t := &tasks[k]; t.Op == transport.Write {
			u.written = true
			u.sync = u.sync || max(p.file.durability, t.Durability) == request.DurabilityData
		}
	}
}

// limitSyncs gives the files that are synced at the call's end their limit. It refuses durability for a call that
// writes no file.
func (c *Call) limitSyncs() *errs.Error {
	written := false
	for i := range c.files {
		written = written || c.files[i].written
		c.files[i].deadline = c.due
	}
	if c.durable && !written {
		return errs.New(errs.InvalidArgument, "submit", "durability is asked for, but no file is written").
			WithHint("it is for transfers to segments of open(\"file:///...\")")
	}
	return nil
}

// holdFiles takes a handle of each file for a batch, all or none.
func (e *Engine) holdFiles(uses []fileUse) *errs.Error {
	if len(uses) == 0 {
		return nil
	}
	t := &e.segments
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range uses {
		if p := uses[i].peer; p.handles == 0 {
			for _, held := range uses[:i] {
				held.peer.handles--
			}
			return errs.New(errs.InvalidEntry, "submit", "the segment of %s was closed", p.file.path)
		}
		uses[i].peer.handles++
	}
	return nil
}

// dropFiles gives the handles of a batch back. A file without handles is left by another goroutine, since transports
// must not be called under the engine's mutex, which the caller holds; an engine that closes leaves all files anyway.
func (e *Engine) dropFiles(uses []fileUse) {
	for i := range uses {
		if p := uses[i].peer; e.unhandle(p) && !e.closed.Load() {
			e.routines.start(func() { e.endPeer(p) })
		}
		uses[i] = fileUse{}
	}
}
