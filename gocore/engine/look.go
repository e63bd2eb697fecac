package engine

import (
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/vmem"
)

// look returns why memory of the host cannot be used. A range that the kernel maps for reading only makes a region that
// is read-only. Memory of a device is not looked at: its transports know its addresses.
func look(r *region) *errs.Error {
	if r.Kind != mem.Host {
		return nil
	}
	const cure = "register memory that is there, and keep it until its region is closed, or register it as growable"
	use, at := vmem.Range(r.Addr, r.Size)
	switch {
	case r.Growable && use < vmem.ReadOnly: // a transfer that needs bytes without pages fails
		return nil
	case use == vmem.Unmapped:
		return errs.New(errs.InvalidArgument, "register", "%d bytes at %#x are not all mapped: nothing is at %#x",
			r.Size, r.Addr, at).WithHint(cure)
	case use == vmem.NoAccess:
		return errs.New(errs.InvalidArgument, "register",
			"%d bytes at %#x cannot all be read by this process, not at %#x", r.Size, r.Addr, at).
			WithHint("%s; memory of a device needs its location, such as cuda:0", cure)
	case use == vmem.ReadOnly && r.Permission == mem.GlobalReadWrite:
		return errs.New(errs.PermissionDenied, "register",
			"%d bytes at %#x are mapped for reading only at %#x, so peers cannot be allowed to write to them", r.Size,
			r.Addr, at).WithHint("permission=Permission.GLOBAL_READ_ONLY, or writable memory")
	}
	r.ReadOnly = r.ReadOnly || use == vmem.ReadOnly
	return nil
}
