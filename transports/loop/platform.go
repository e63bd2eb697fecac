package loop

import (
	"context"

	"github.com/tent-engine/tent/gocore/device"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// OnPlatform makes loop transports for memory of a platform that has no transport of its own inside of a process. The
// platform copies between its memory and the host's, and pools of the host carry the bytes on.
type OnPlatform struct {
	device.Platform
	Needs string // on a machine, for transport.Described
}

// Settings implements transport.Configured: there are none.
func (p OnPlatform) Settings() any { return struct{}{} }

// Describe implements transport.Described.
func (p OnPlatform) Describe() (needs string, like transport.Transport) {
	return p.Needs, &loop{reach: reach{p.Name(), p.Platform}}
}

// Open starts the worker. Name and Check are the platform's.
func (p OnPlatform) Open(_ context.Context, _ any, host transport.Host, sink transport.Sink) (transport.Transport,
	error) {
	return open(reach{p.Name(), p.Platform}, host, sink), nil
}

// reach is the memory that a transport copies.
type reach struct {
	name     string
	platform device.Platform // nil: memory of the host
}

// open starts the worker of a transport.
func open(r reach, host transport.Host, sink transport.Sink) *loop {
	t := &loop{reach: r, sink: sink, self: host.Self()}
	t.Start(slicesMax, sink, (*link).up, t.carry)
	t.number = here.Insert(func(uint64) *loop { return t })
	return t
}

// Lacks implements transport.Selective: beside a platform it allocates nothing. Memory of the host is the engine's,
// in pages of its own and near its node; that of a device is the platform's.
func (t *loop) Lacks(optional any) bool {
	_, allocator := optional.(*transport.Allocator)
	return allocator && t.platform != nil
}

// fill adds the facts that hang on the memory.
func (r *reach) fill(info transport.Info) transport.Info {
	info.Name, info.Checksums = r.name, r.platform == nil
	if r.platform == nil {
		info.Pairs[mem.Host][mem.Host] = true
		return info
	}
	kind := r.platform.Kind()
	info.Pairs[kind][kind], info.Pairs[kind][mem.Host], info.Pairs[mem.Host][kind] = true, true, true
	return info
}

// asHost returns a region for the checks of memory of the host: those of the platform's are the same.
func (r *reach) asHost(m *mem.Region) *mem.Region {
	looked := *m
	if r.platform != nil && m.Kind == r.platform.Kind() {
		looked.Kind = mem.Host
	}
	return &looked
}

// copies lets the platform copy the parts of a slice.
func (r *reach) copies(s *transport.Slice, remote uintptr) (failed *errs.Error) {
	kit.EachPart(s, func(local uintptr, offset, n uint64) {
		to, from := local, remote+uintptr(offset)
		if s.Op == transport.Write {
			to, from = from, to
		}
		if failed != nil {
			return
		}
		if err := r.platform.Copy(to, from, n); err != nil {
			cause := errs.From(r.name, err)
			failed = errs.New(cause.Code, r.name, "%s", cause.Cause).WithScope(errs.ScopeSlice, cause.Side)
		}
	})
	return failed
}
