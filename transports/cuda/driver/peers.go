//go:build cgo

package driver

/*
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"slices"
	"sync"

	"github.com/tent-engine/tent/gocore/device"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
)

// Reach returns why the copy engines of a device do not reach memory of another one, nil if they do. NotHere: the
// driver gives no peer access between the two. The first question about a pair asks the driver, the next ones cost a
// look.
func Reach(by, of int) error { return process().peers.ask(pair{by, of, false}) }

// Join is Reach for memory of this process, both ways: copies between the two devices go straight from then on. The
// driver would carry them through memory of the host by itself before that, and where it gives no access. Both devices
// have memory that is in use: their contexts are made.
func Join(one, other int) error {
	if err := process().peers.ask(pair{one, other, true}); err != nil {
		return err
	}
	return process().peers.ask(pair{other, one, true})
}

// Plain reports whether Join opens a range to kernels of the other device. It lies in one allocation of cuMemAlloc
// then, or in a chunk of Allocate. Other chunks, and pools, are open to the devices that the program has listed.
func Plain(addr uintptr, size uint64) bool {
	var place C.tc_place
	if r := C.tc_locate(C.uint64_t(addr), &place); r.code != 0 || place._type != C.TC_MEMORYTYPE_DEVICE {
		return false
	}
	base := uintptr(place.base)
	if addr < base || !mem.Contains(uint64(place.bytes), uint64(addr-base), size) {
		return false
	}
	return allocations.Begins(base) || place.legacy != 0
}

// OrdinalOf returns the ordinal of a device in this process: CUDA_VISIBLE_DEVICES differs between processes. False: the
// process does not see it, or its driver has no UUIDs, which are zero then.
func OrdinalOf(uuid [16]byte) (int, bool) {
	i := slices.IndexFunc(process().devices, func(d device.Info) bool { return d.UUID == uuid })
	return i, i >= 0 && uuid != [16]byte{}
}

// pair is one direction between two devices.
type pair struct {
	by, of int
	join   bool
}

// peers remembers the driver's answers about pairs.
type peers struct {
	mu    sync.Mutex
	known map[pair]error
}

func (p *peers) ask(q pair) error {
	if q.by == q.of {
		return nil
	}
	l := process()
	if err := l.usable("cuda.reach", q.by); err != nil {
		return err
	}
	if err := l.seen("cuda.reach", q.of); err != nil { // lost here, its memory of other processes may be well
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	err, known := p.known[q]
	if known {
		return err
	}
	r := C.tc_reach(C.int(q.by), C.int(q.of))
	if q.join && r.code == 0 {
		r = C.tc_join(C.int(q.by), C.int(q.of))
	}
	if err = l.unreached("cuda.reach", q.by, l.nameOf(q.of), r); err == nil || refusal(r) {
		if p.known == nil {
			p.known = map[pair]error{}
		}
		p.known[q] = err
	}
	return err
}

// refusal reports whether a result means that two devices have no peer access.
func refusal(r C.tc_result) bool {
	return r.code == C.TC_APART || r.code == C.TC_PEER_ACCESS_UNSUPPORTED || r.code == C.TC_TOO_MANY_PEERS
}

// unreached makes the error of a call by which a device was to reach memory of another one.
func (l *library) unreached(op string, by int, of string, r C.tc_result) error {
	if !refusal(r) {
		return l.failed(op, by, r)
	}
	return errs.New(errs.NotHere, op, "%s has no peer access to %s: %s", l.nameOf(by), of, words(r)).
		WithHint("with staging/enable their bytes go through memory of the host; peer access needs NVLink, or one " +
			"PCIe root without ACS, an IOMMU or MIG in between (nvidia-smi topo -p2p r)")
}

// nameOf names a device of this process to people. Its address on the bus is the same in every order of counting.
func (l *library) nameOf(ordinal int) string {
	return fmt.Sprintf("%s (PCI %s)", location(ordinal), l.devices[ordinal].PCI)
}

// strangerOf names a device that this process does not see, as nvidia-smi -L does.
func strangerOf(uuid [16]byte) string {
	if uuid == [16]byte{} {
		return "the peer's GPU"
	}
	return fmt.Sprintf("the peer's GPU-%x-%x-%x-%x-%x", uuid[:4], uuid[4:6], uuid[6:8], uuid[8:10], uuid[10:])
}
