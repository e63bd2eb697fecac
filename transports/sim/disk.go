package sim

import (
	"context"
	"slices"
	"strings"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// FileScheme begins the address of a peer that is a file.
const FileScheme = "file://"

// Disk holds the files of a network. Transports with Settings.Files share them, under any name and engine, as the
// transports of one machine do. Written bytes are seen by every reader at once and survives Crash only once it was
// synced. The network's mutex guards it.
type Disk struct {
	network *Network
	files   []*file // by inode, removed ones too: transports that have them open still reach them
	names   map[string]*file
	holding bool
	held    []*syncing
	synced  int
}

// file is the bytes that readers see, and those that a crash leaves.
type file struct {
	inode           uint64
	bytes, durable  []byte
	readOnlyForever bool // not even its owner may open it for writing
}

// syncing is a sync that was asked for and has not been answered.
type syncing struct {
	by   *Transport
	file *file
	done func(*errs.Error)
}

// Disk is the network's one.
func (n *Network) Disk() *Disk {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.theDisk()
}

func (n *Network) theDisk() *Disk {
	if n.disk == nil {
		n.disk = &Disk{network: n, names: map[string]*file{}}
	}
	return n.disk
}

// Bytes returns a copy of the bytes that readers of a file see, nil if no file has that name.
func (d *Disk) Bytes(path string) []byte {
	return d.copy(path, func(f *file) []byte { return f.bytes })
}

// Durable returns a copy of the bytes that a crash would leave of a file.
func (d *Disk) Durable(path string) []byte {
	return d.copy(path, func(f *file) []byte { return f.durable })
}

func (d *Disk) copy(path string, of func(*file) []byte) []byte {
	d.network.mu.Lock()
	defer d.network.mu.Unlock()
	if f := d.names[path]; f != nil {
		return slices.Clone(of(f))
	}
	return nil
}

// Crash takes back unsynced bytes.
func (d *Disk) Crash() {
	d.network.mu.Lock()
	defer d.network.mu.Unlock()
	for _, f := range d.files {
		f.bytes = slices.Clone(f.durable)
	}
}

// Truncate changes the size of a file behind everybody's back.
func (d *Disk) Truncate(path string, size int) {
	d.network.mu.Lock()
	defer d.network.mu.Unlock()
	d.names[path].resize(size)
}

// Remove takes a file's name away.
func (d *Disk) Remove(path string) {
	d.network.mu.Lock()
	defer d.network.mu.Unlock()
	delete(d.names, path)
}

// Hold keeps syncs unanswered from now on, until Release.
func (d *Disk) Hold() {
	d.network.mu.Lock()
	defer d.network.mu.Unlock()
	d.holding = true
}

// Held is how many syncs wait for Release; Synced how many were carried out.
func (d *Disk) Held() int {
	d.network.mu.Lock()
	defer d.network.mu.Unlock()
	return len(d.held)
}

// Synced is how many syncs were carried out.
func (d *Disk) Synced() int {
	d.network.mu.Lock()
	defer d.network.mu.Unlock()
	return d.synced
}

// Release answers the syncs that Hold kept: nil carries them out, an error is the kernel's answer instead.
func (d *Disk) Release(err *errs.Error) {
	d.network.mu.Lock()
	defer d.network.leave()
	held := d.held
	d.holding, d.held = false, nil
	for _, s := range held {
		d.answer(s, err)
	}
}

// answer carries a sync out, or fails it.
func (d *Disk) answer(s *syncing, err *errs.Error) {
	if err == nil {
		d.synced++
		s.file.durable = slices.Clone(s.file.bytes)
	}
	s.by.emit(delivery{news: called, do: func() { s.done(err) }})
}

// abandon answers the syncs of a transport that closes.
func (d *Disk) abandon(t *Transport) {
	d.held = slices.DeleteFunc(d.held, func(s *syncing) bool {
		if s.by == t {
			d.answer(s, kit.Closed("sim.sync"))
		}
		return s.by == t
	})
}

func (f *file) resize(size int) {
	if size <= len(f.bytes) {
		f.bytes = f.bytes[:size]
		return
	}
	f.bytes = append(f.bytes, make([]byte, size-len(f.bytes))...)
}

// place is where the bytes of a file lie now.
func (f *file) place() (uintptr, uint64) {
	return mem.AddressOf(f.bytes), uint64(len(f.bytes))
}

// OpenFile implements transport.Filer. A path is any text; there are no folders.
func (t *Transport) OpenFile(_ context.Context, spec transport.FileSpec) (transport.FileCard, error) {
	t.network.mu.Lock()
	defer t.network.leave()
	d := t.network.theDisk()
	f := d.names[spec.Path]
	switch {
	case !t.open:
		return transport.FileCard{}, kit.Closed("sim.open")
	case f == nil && !spec.Create:
		return transport.FileCard{}, errs.New(errs.NotFound, "sim.open", "there is no file %s", spec.Path)
	case f == nil:
		f = &file{inode: uint64(len(d.files) + 1)}
		d.files, d.names[spec.Path] = append(d.files, f), f
	case f.readOnlyForever && !spec.ReadOnly:
		return transport.FileCard{}, errs.New(errs.PermissionDenied, "sim.open", "%s may only be read", spec.Path)
	}
	if spec.Truncate {
		f.bytes = nil
	}
	if spec.Create && spec.Size > uint64(len(f.bytes)) {
		f.resize(int(spec.Size))
	}
	return transport.FileCard{Path: spec.Path, Inode: f.inode, Size: uint64(len(f.bytes)), ReadOnly: spec.ReadOnly,
		Cached: spec.Cached}, nil
}

// Protect lets nobody open a file for writing from now on.
func (d *Disk) Protect(path string) {
	d.network.mu.Lock()
	defer d.network.mu.Unlock()
	d.names[path].readOnlyForever = true
}

// Sync implements transport.Filer.
func (t *Transport) Sync(id transport.Link, key transport.RemoteKey, done func(*errs.Error)) {
	t.network.mu.Lock()
	defer t.network.leave()
	var f *file
	if l := t.links.Lookup(id); l != nil {
		if r := t.regions.Lookup(l.imported(key).key); r != nil {
			f = r.file
		}
	}
	if f == nil {
		err := errs.New(errs.Stale, "sim.sync", "key %d of link %v is not an open file", key, id)
		t.emit(delivery{news: called, do: func() { done(err) }})
		return
	}
	d, s := t.network.theDisk(), &syncing{by: t, file: f, done: done}
	if d.holding {
		d.held = append(d.held, s)
		return
	}
	d.answer(s, nil)
}

// openFile finds the file of a descriptor and makes it a region of this transport, once for each descriptor.
func (l *link) openFile(d transport.Descriptor) (transport.LocalKey, *errs.Error) {
	t := l.owner
	card, err := transport.DecodeFileCard(d)
	if err != nil {
		return 0, err
	}
	inode, readOnly := card.Inode, card.ReadOnly
	files := t.network.theDisk().files
	if inode == 0 || inode > uint64(len(files)) {
		return 0, errs.New(errs.NotFound, "sim.import", "there is no file number %d", inode)
	}
	f := files[inode-1]
	for _, r := range t.regions.All() {
		if r.file == f && r.ReadOnly == readOnly {
			return r.key, nil
		}
	}
	return t.keep(&region{Region: mem.Region{Kind: mem.File, Permission: mem.GlobalReadWrite, ReadOnly: readOnly,
		Fd: -1}, file: f}).key, nil
}

// isFile reports whether a peer is a file.
func isFile(p transport.Peer) bool { return strings.HasPrefix(p.Address, FileScheme) }
