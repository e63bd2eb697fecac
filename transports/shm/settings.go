package shm

import (
	"runtime"

	"github.com/tent-engine/tent/transports/host/vm"
)

// Settings is the branch transports/shm: each tagged field is a key. The zero value of a field means its default.
// Upstream has this transport switched off, because its copies are not NUMA-aware; here it is the fastest way by far,
// and on.
type Settings struct {
	Trust        string `key:"trust" takes:"same-uid|none" default:"same-uid" help:"Peers that may touch memory directly: those of the same user, or nobody (all then goes by another transport)."`
	CXLMountPath string `key:"cxl_mount_path" takes:"folder" from:"transports seed" help:"Mounted folder of CXL or DAX memory whose files back allocated memory; empty allocates anonymous memory."`
	AnyTracer    bool   `key:"allow_any_tracer" default:"false" help:"Where Yama allows one process to touch memory that tent did not allocate, allow all of the same user."`
	Workers      int    `key:"copy_workers" takes:"1..64" default:"= one less than there are processors, at least 1" help:"Threads that copy what no caller copies."`
	InlineBytes  uint64 `key:"async_memcpy_threshold" takes:"1..1048576" unit:"KiB" default:"256" from:"transports seed" help:"Most that a call copies itself; copiers take the rest from a queue."`

	reach reach     // for tests
	yama  *vm.Scope // the tests' kernel: it has this scope, and refuses us
}

// Compute fills in the defaults that depend on the machine: the caller's processor copies, too.
func (s *Settings) Compute() { s.Workers = max(1, runtime.NumCPU()-1) }

// Values of Trust.
const (
	TrustUID  = "same-uid"
	TrustNone = "none"
)

// reach narrows the ways to a peer's memory for tests.
type reach uint8

const (
	reachAll     reach = iota
	reachOwn           // memory of our own process is copied, also another engine's
	reachMapped        // even our own engine counts as another process
	reachForeign       // the same, and shared memory is moved by the kernel, too
)

// pieceBytes bounds the bytes of a copy between two looks at the queues. HIGH waits for no more, some 50 µs, and Go's
// copy changes to non-temporal stores only where it is told to.
const pieceBytes = 512 << 10
