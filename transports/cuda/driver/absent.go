//go:build !cgo

package driver

import (
	"github.com/tent-engine/tent/gocore/device"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
)

// Platform is the CUDA devices of this process. A build without cgo cannot load the driver: Check says so, and no
// method finds a device.
type Platform struct{}

var _ device.Platform = Platform{}

func absent() error {
	return errs.New(errs.DeviceNotFound, "cuda", "this program was built without cgo, which loads the driver")
}

// Name implements device.Platform.
func (Platform) Name() string { return "cuda" }

// Kind implements device.Platform.
func (Platform) Kind() mem.Kind { return mem.Cuda }

// Check implements device.Platform.
func (Platform) Check() error { return absent() }

// Devices implements device.Platform.
func (Platform) Devices() ([]device.Info, error) { return nil, absent() }

// Locate implements device.Platform.
func (Platform) Locate(uintptr, uint64) ([]device.Span, error) { return nil, absent() }

// Allocate implements device.Platform.
func (Platform) Allocate(int, uint64) (uintptr, error) { return 0, absent() }

// Free implements device.Platform.
func (Platform) Free(uintptr, uint64) error { return absent() }

// Copy implements device.Platform.
func (Platform) Copy(uintptr, uintptr, uint64) error { return absent() }

// Copies is ranges that were never posted.
type Copies struct{}

// Finish has nothing to wait for.
func (*Copies) Finish() error { return nil }

// Ended is true: nothing was posted.
func (*Copies) Ended() bool { return true }

// InUse returns -1: there is no device.
func InUse() int { return -1 }

// Lanes is the number of streams for copies that a device has.
const Lanes = 6

// Burst takes no Copies.
type Burst struct{}

// BurstMost bounds the Copies of a Burst.
const BurstMost = 8

// Begin returns the reason.
func (*Burst) Begin(*Copies, int, int) error { return absent() }

// ByKernel does nothing: there is no kernel.
func (*Burst) ByKernel() {}

// Add does nothing: there is no device.
func (*Burst) Add(uintptr, uintptr, uint64) {}

// Post has nothing to post.
func (*Burst) Post() {}

// PrepareKernel returns the reason.
func PrepareKernel(int) error { return absent() }

// Round has nothing to ask about.
type Round struct{}

// RoundMost bounds the Copies of a Round.
const RoundMost = 8 * Lanes

// Add does nothing.
func (*Round) Add(*Copies) {}

// Ask does nothing.
func (*Round) Ask() {}

// Visit has no device.
type Visit struct{}

// Enter returns the reason.
func Enter(int) (Visit, error) { return Visit{}, absent() }

// Leave has nothing to leave.
func (Visit) Leave() {}

// Fetch returns the reason.
func Fetch(int, []byte, uintptr) error { return absent() }

// Lost has no device to speak of.
func Lost(int) *errs.Error { return nil }

// Pin returns the reason.
func Pin(int, uint64) (uintptr, error) { return 0, absent() }

// Keep returns the reason.
func Keep(int, uintptr, uint64) error { return absent() }

// Unkeep returns the reason.
func Unkeep(int, uintptr) error { return absent() }

// Pinned knows of no memory.
func Pinned(uintptr, uint64) bool { return false }

// Unpin returns the reason.
func Unpin(int, uintptr) error { return absent() }

// HandleBytes is the size of a legacy handle.
const HandleBytes = 64

// Block is an allocation of a device as another process opens it.
type Block struct {
	Addr   uintptr
	Size   uint64
	Handle [HandleBytes]byte
	Fd     int
	Fabric bool
}

// Chunk is false.
func (*Block) Chunk() bool { return false }

// Share returns the reason.
func Share(uintptr, uint64, int) ([]Block, error) { return nil, absent() }

// ShareByFabric returns the reason.
func ShareByFabric(uintptr, uint64, int) ([]Block, error) { return nil, absent() }

// Handles are kinds of handles.
type Handles int

// Kinds of handles.
const (
	Descriptors Handles = 1
	FabricToo   Handles = 8
)

// AllocateChunk returns the reason.
func AllocateChunk(int, uint64, Handles) (uintptr, error) { return 0, absent() }

// Domain is the NVLink domain of a device.
type Domain struct {
	device.Fabric
	Why error
}

// Domains returns the reason.
func Domains() ([]Domain, error) { return nil, absent() }

// CloseBlocks has nothing to close.
func CloseBlocks([]Block) {}

// Reach returns the reason.
func Reach(int, int) error { return absent() }

// Join returns the reason.
func Join(int, int) error { return absent() }

// Plain knows of no memory.
func Plain(uintptr, uint64) bool { return false }

// OrdinalOf sees no device.
func OrdinalOf([16]byte) (int, bool) { return 0, false }

// Mapping is memory of another process's device in this one.
type Mapping struct{}

// Map returns the reason.
func Map([]Block, uintptr, [16]byte) (*Mapping, error) { return nil, absent() }

// On returns the reason.
func (*Mapping) On(int) (uintptr, error) { return 0, absent() }

// Close has nothing to give back.
func (*Mapping) Close() error { return nil }
