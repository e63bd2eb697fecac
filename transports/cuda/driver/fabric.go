//go:build cgo

package driver

/*
#include "shim.h"
*/
import "C"

import (
	"os"
	"path/filepath"

	"github.com/tent-engine/tent/gocore/device"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/transports/cuda/nvml"
)

// Handles are the kinds of handles by which others may map memory, as bits: CUmemAllocationHandleType.
type Handles int

// Kinds of handles.
const (
	Descriptors Handles = C.TC_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR // of this host
	FabricToo   Handles = C.TC_MEM_HANDLE_TYPE_FABRIC                // of hosts in the same NVLink domain
)

// AllocateChunk allocates zeroed memory of the VMM that others may map. Platform.Free takes it back, and the driver
// keeps its pages until the last process has unmapped them. The size is rounded up, to 2 MiB on today's devices.
// NotHere: the driver gives no such memory.
func AllocateChunk(ordinal int, size uint64, handles Handles) (uintptr, error) {
	l := process()
	if err := l.usable("cuda.allocate", ordinal); err != nil {
		return 0, err
	}
	var addr, mapped C.uint64_t
	r := C.tc_allocate_chunk(C.int(ordinal), C.uint64_t(size), C.int(handles), &addr, &mapped)
	switch err := l.failed("cuda.allocate", ordinal, r); {
	case err == nil:
		allocations.Add(uintptr(addr), size, allocation{ordinal, uint64(mapped)})
		return uintptr(addr), nil
	case r.code == outOfMemory || sticky(int(r.code)):
		return 0, err
	default:
		e := *errs.From("cuda.allocate", err)
		e.Code = errs.NotHere
		return 0, &e
	}
}

// Domain is the NVLink domain over several hosts of a device.
type Domain struct {
	device.Fabric
	Why error // why memory of the device cannot be given to other hosts, nil if it can
}

// Domains returns those of the process's devices, by ordinal. It tries a handle of each device, and asks NVML for the
// domains of those that pass: its start takes a while, and most hosts have no IMEX. Nothing is left behind.
func Domains() ([]Domain, error) {
	l := process()
	if l.absent != nil {
		return nil, l.absent
	}
	list, pass := make([]Domain, len(l.devices)), false
	for i := range list {
		list[i].Why = l.probe(i)
		pass = pass || list[i].Why == nil
	}
	if !pass {
		return list, nil
	}
	gpus, err := nvml.Read()
	if err != nil {
		return nil, err
	}
	for i, at := range l.indexes(gpus) {
		if list[i].Why == nil {
			list[i] = domainOf(i, gpus, at)
		}
	}
	return list, nil
}

// domainOf finds the domain of a device, which NVML knows by an index; -1: it does not.
func domainOf(ordinal int, gpus []nvml.GPU, at int) Domain {
	switch {
	case at < 0:
		return Domain{Why: apart(ordinal, "NVML does not know it")}
	case gpus[at].Fabric == nil:
		return Domain{Why: apart(ordinal, gpus[at].Apart)}
	}
	return Domain{*gpus[at].Fabric, nil}
}

// probe returns why a device gives no fabric handles, nil if it does.
func (l *library) probe(ordinal int) error {
	if err := l.usable("cuda.fabric", ordinal); err != nil {
		return err
	}
	r := C.tc_probe_fabric(C.int(ordinal))
	err := l.failed("cuda.fabric", ordinal, r)
	if err == nil {
		return nil
	}
	e := *errs.From("cuda.fabric", err)
	e.Code = errs.DeviceNotFound
	if r.code == notPermitted {
		e.Cause += "; " + lacking(channels())
	}
	return &e
}

func apart(ordinal int, why string) error {
	return errs.New(errs.DeviceNotFound, "cuda.fabric", "%s: it is in no NVLink domain: %s", location(ordinal), why)
}

// channels is the folder of the IMEX channels, which the driver makes as device files.
func channels() string {
	return C.GoString(C.tc_channels())
}

// lacking says why the driver permits no fabric handles. Processes need a channel, and peers the same one.
func lacking(folder string) string {
	list, _ := filepath.Glob(filepath.Join(folder, "channel*")) // the pattern is good
	if len(list) == 0 {
		return "this process has no IMEX channel: " + folder + " is empty or not there"
	}
	for _, path := range list {
		file, err := os.OpenFile(path, os.O_RDWR, 0)
		if err == nil {
			_ = file.Close()
			return "the IMEX channel " + path + " is there, so the IMEX daemon has not joined the domain"
		}
	}
	return "this process may not open an IMEX channel of " + folder
}
