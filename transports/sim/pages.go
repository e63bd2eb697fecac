package sim

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// This file plays a NIC that has pinned pages (Settings.Holds): the pages of a region are mapped a second time, at an
// address that peers reach. When the program maps others at the region's own address, peers still reach the old ones,
// until Remap.

var _ transport.Remapper = (*Transport)(nil)

// pages returns a range of the region in whole pages: offset and length from its first page on.
func (r *region) pages(offset, length uint64) (first, size uintptr) {
	page := uintptr(unix.Getpagesize())
	begin := r.Addr &^ (page - 1)
	first = (r.Addr+uintptr(offset))&^(page-1) - begin
	end := (r.Addr + uintptr(offset+length) - begin + page - 1) &^ (page - 1)
	return first, end - first
}

// hold maps the region's pages once more.
func (r *region) hold() error {
	_, size := r.pages(0, r.Size)
	at, err := unix.MmapPtr(-1, 0, nil, size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return errs.Wrap(errs.OutOfMemory, "sim.register", err)
	}
	r.held = uintptr(at)
	missing, err := r.look(0, size)
	if err != nil || missing {
		r.letGo() // private pages cannot be mapped twice: they are reached by their address
	}
	return err
}

// look holds the pages that are behind a range now, one after the other. Slices that need missing ones fail.
func (r *region) look(first, size uintptr) (missing bool, err error) {
	page := uintptr(unix.Getpagesize())
	begin := r.Addr &^ (page - 1)
	for at := first; at < first+size; at += page {
		// With an old size of 0, mremap(2) maps shared pages a second time.
		_, err = unix.MremapPtr(mem.Pointer(begin+at), 0, mem.Pointer(r.held+at), page,
			unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED)
		if errors.Is(err, unix.EFAULT) || errors.Is(err, unix.EINVAL) { // nothing is there, or it is private
			missing = true
			_, err = unix.MmapPtr(-1, 0, mem.Pointer(r.held+at), page, unix.PROT_NONE,
				unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_FIXED)
		}
		if err != nil {
			return missing, errs.Wrap(errs.Internal, "sim.register", fmt.Errorf("page at %#x: %w", begin+at, err))
		}
	}
	return missing, nil
}

// reached is the address by which peers reach the region's first byte.
func (r *region) reached() uintptr {
	if r.held == 0 {
		return r.Addr
	}
	return r.held + r.Addr&uintptr(unix.Getpagesize()-1)
}

func (r *region) letGo() {
	if r.held != 0 {
		_, size := r.pages(0, r.Size)
		_ = unix.MunmapPtr(mem.Pointer(r.held), size)
		r.held = 0
	}
}

// Remap implements transport.Remapper. Peers get a new descriptor, since a NIC has a new key for new pages.
func (t *Transport) Remap(_ context.Context, key transport.LocalKey, now transport.Remapped) error {
	t.network.mu.Lock()
	defer t.network.leave()
	r := t.regions.Lookup(key)
	switch {
	case r == nil:
		return errs.New(errs.AddressNotRegistered, "sim.remap", "key %d is not registered", key)
	case r.held == 0:
		return nil
	}
	r.version++
	r.oldest = r.version
	t.replaced(r)
	_, err := r.look(r.pages(now.Offset, now.Length))
	return err
}
