package engine

import (
	"errors"
	"fmt"

	"github.com/tent-engine/tent/gocore/device"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
)

// This file finds the device of a region. The platforms say it; a location of the user must agree with them.
//
// Where a build has no platform of its kind, a location such as "tpu:0" is believed: a transport may know such memory
// by itself. Where the build has one that does not work here, the location is refused with that platform's reason.
// A platform that cannot say, since its driver has failed, makes "*" an error: the range may be memory of a device.
// Locations of the host are believed then, and the mappings of the range are looked at behind that (checkMapping).

// platforms are those of the build.
type platforms struct {
	here   []device.Platform
	absent map[mem.Kind]error // why those of other kinds do not work here
}

// addPlatforms keeps the platforms that work here, and the reasons of the others.
func (e *Engine) addPlatforms(list []device.Platform) {
	e.platforms.absent = map[mem.Kind]error{}
	for _, p := range list {
		if reason := p.Check(); reason != nil {
			e.log.Debug("no platform", "platform", p.Name(), "why", reason)
			e.platforms.absent[p.Kind()] = reason
			continue
		}
		e.platforms.here = append(e.platforms.here, p)
		if s, is := p.(device.Streams); is && e.gates.streams == nil {
			e.gates.streams, e.gates.wake = s, make(chan struct{}, 1)
		}
	}
}

// Platforms returns the names of those that are asked about memory.
func (e *Engine) Platforms() []string {
	names := make([]string, len(e.platforms.here))
	for i, p := range e.platforms.here {
		names[i] = p.Name()
	}
	return names
}

// locate sets kind and device of a region, and its location where the user did not give all of it. The location was
// checked.
func (e *Engine) locate(r *region) *errs.Error {
	kind, index, _ := r.Location.Parse()
	if reason := e.platforms.absent[kind]; reason != nil {
		return noDevice("register", r.Location, reason)
	}
	if len(e.platforms.here) == 0 {
		return nil
	}
	open := r.Location == mem.Wildcard || r.Location == ""
	place, err := device.Find(e.platforms.here, r.Addr, r.Size)
	var unsure *device.Unsure
	switch {
	case errors.As(err, &unsure):
		if !open && kind != unsure.Platform.Kind() {
			e.log.Warn("register", "region", r.Name, "err", err)
			return nil
		}
		return errs.Wrap(errs.CodeOf(err), "register", err).
			WithHint(`give location="cpu:0" if it is memory of the host`)
	case err != nil:
		return errs.From("register", err)
	case place.Platform == nil:
		if p := e.platforms.of(kind); p != nil && r.Growable && index >= 0 {
			return e.isOn(r, device.Place{Platform: p, Ordinal: index}) // no page is there yet
		} else if p != nil {
			return errs.New(errs.InvalidArgument, "register",
				"the location is %q, but %d bytes at %#x are not memory of such a device", r.Location, r.Size, r.Addr).
				WithHint(`location="*" finds the memory's place`)
		}
		return nil
	case !open && (kind != place.Platform.Kind() || index >= 0 && index != place.Ordinal):
		return errs.New(errs.InvalidArgument, "register", "the location is %q, but %d bytes at %#x are memory of %s",
			r.Location, r.Size, r.Addr, place.Location()).
			WithHint(`location="%s", or "*", which finds it`, place.Location())
	}
	return e.isOn(r, place)
}

// noDevice is the error of a location that belongs to a platform which does not work here.
func noDevice(operation string, at mem.Location, reason error) *errs.Error {
	return errs.Wrap(errs.DeviceNotFound, operation, fmt.Errorf("memory at %q: %w", at, reason)).
		WithHint("`tent doctor` lists the devices of this machine")
}

// stillOn returns an error for a range with memory of another device than at its registration. A range without pages is
// none's, and none's fault.
func (e *Engine) stillOn(r *region, offset, length uint64) *errs.Error {
	place, err := device.Find(e.platforms.here, r.Addr+uintptr(offset), length)
	if err != nil {
		return errs.From("remap", err)
	}
	if place.Platform != nil && place.Location() != r.Location {
		return errs.New(errs.InvalidArgument, "remap", "memory of %s is behind a region of %s", place.Location(),
			r.Location).WithHint("close the region, and register the memory again")
	}
	return nil
}

// isOn notes the device that has a region.
func (e *Engine) isOn(r *region, place device.Place) *errs.Error {
	list, err := place.Platform.Devices()
	if err == nil && place.Ordinal >= len(list) {
		err = fmt.Errorf("it has %d devices, and this is none of them", len(list))
	}
	if err != nil {
		return errs.Wrap(errs.DeviceNotFound, "register", fmt.Errorf("%s: %w", place.Location(), err))
	}
	r.Kind, r.Location = place.Platform.Kind(), place.Location()
	r.Device = list[place.Ordinal].Device
	r.Device.Allocation = place.Allocation
	if n := list[place.Ordinal].Node; n >= 0 {
		r.node.Store(e.numa.matter(n))
	}
	r.platform, r.managed = place.Platform, place.Managed
	return nil
}

// of returns the platform of a kind of memory, or nil.
func (l *platforms) of(kind mem.Kind) device.Platform {
	for _, p := range l.here {
		if p.Kind() == kind {
			return p
		}
	}
	return nil
}

// mapOnDevice allocates memory of a device, for a region of Allocate.
func (e *Engine) mapOnDevice(m Memory, kind mem.Kind, ordinal int) (*region, error) {
	p := e.platforms.of(kind)
	if reason := e.platforms.absent[kind]; reason != nil {
		return nil, noDevice("allocate", m.Location, reason)
	} else if p == nil {
		return nil, errs.New(errs.DeviceNotFound, "allocate",
			"no transport and no platform of this build allocates memory at %q", m.Location).
			WithHint("allocate it with your framework and register it")
	}
	addr, err := p.Allocate(max(ordinal, 0), m.Size)
	if err != nil {
		return nil, errs.From("allocate", err)
	}
	return &region{Region: mem.Region{Addr: addr, Size: m.Size, Kind: kind, Location: m.Location, Fd: -1},
		owner: ownedBy{p}}, nil
}

// ownedBy gives memory of a device back to its platform.
type ownedBy struct{ device.Platform }

// Free implements freer.
func (o ownedBy) Free(r mem.Region) error { return o.Platform.Free(r.Addr, r.Size) }
