package plugin

/*
#include "port.h"
*/
import "C"

import (
	"context"
	"path/filepath"
	"unsafe"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// OpenFile implements transport.Filer.
func (p *port) OpenFile(_ context.Context, spec transport.FileSpec) (transport.FileCard, error) {
	op := p.op("open")
	if err := p.usable("open"); err != nil {
		return transport.FileCard{}, err
	}
	switch {
	case !filepath.IsAbs(spec.Path) || len(spec.Path) >= C.TENT_PATH_MAX:
		return transport.FileCard{}, errs.New(errs.InvalidArgument, op, "%q is no absolute path of at most 4095 bytes",
			spec.Path).WithScope(errs.ScopeSlice, errs.SideLocal)
	case !p.enter():
		return transport.FileCard{}, kit.Closed(op)
	}
	defer p.leave()
	var texts arena
	defer texts.free()
	s := &C.tent_file_spec{size: C.uint32_t(unsafe.Sizeof(C.tent_file_spec{})), create: asFlag(spec.Create),
		truncate: asFlag(spec.Truncate), read_only: asFlag(spec.ReadOnly), bytes: C.uint64_t(spec.Size),
		path: texts.text(spec.Path)}
	file := &C.tent_file{size: C.uint32_t(unsafe.Sizeof(C.tent_file{}))}
	var e C.tent_error
	if r := C.tp_open_file(p.api, p.t, s, file, &e); r != 0 {
		return transport.FileCard{}, p.failed("open", r, &e)
	}
	made := transport.FileCard{Path: C.GoString(&file.path[0]), Device: uint64(file.device), Inode: uint64(file.inode),
		Size: uint64(file.bytes), ReadOnly: file.read_only != 0}
	if file.path[C.TENT_PATH_MAX-1] != 0 || !filepath.IsAbs(made.Path) || made.Size < spec.Size ||
		made.ReadOnly != spec.ReadOnly {
		return transport.FileCard{}, p.senseless("open_file gave %q with %d bytes, which is not what was asked for",
			made.Path, made.Size)
	}
	return made, nil
}

// importFile opens the file of a card on a link.
func (p *port) importFile(number transport.Link, d transport.Descriptor) (transport.RemoteKey, error) {
	card, failed := transport.DecodeFileCard(d)
	if failed != nil {
		return 0, failed
	}
	if len(card.Path) >= C.TENT_PATH_MAX {
		return 0, errs.New(errs.InvalidArgument, p.op("import"), "the path has %d bytes", len(card.Path))
	}
	if !p.enter() {
		return 0, kit.Closed(p.op("import"))
	}
	defer p.leave()
	file := &C.tent_file{size: C.uint32_t(unsafe.Sizeof(C.tent_file{})), read_only: C.uint32_t(asFlag(card.ReadOnly)),
		device: C.uint64_t(card.Device), inode: C.uint64_t(card.Inode), bytes: C.uint64_t(card.Size)}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&file.path[0])), len(file.path)-1), card.Path)
	var key C.uint64_t
	var e C.tent_error
	r := C.tp_import_file(p.api, p.t, C.uint64_t(number), file, &key, &e)
	return p.imported(r, key, &e)
}

// Sync implements transport.Filer. It ends by the plug-in's call of done, or when the link ends.
func (p *port) Sync(number transport.Link, key transport.RemoteKey, done func(*errs.Error)) {
	if p.links.Lookup(number) == nil || !p.enter() {
		done(kit.StaleLink(p.op("sync"), number))
		return
	}
	token := p.pending.Insert(func(uint64) *pending {
		return &pending{func(_ uint64, err *errs.Error) { done(err) }}
	})
	if token != 0 {
		C.tp_sync(p.api, p.t, C.uint64_t(number), C.uint64_t(key), C.uint64_t(token))
	}
	p.leave()
	if token == 0 {
		done(errs.New(errs.TooManyRequests, p.op("sync"), "too many calls wait").
			WithScope(errs.ScopeSlice, errs.SideLocal))
	}
}
