package shm

import (
	"path/filepath"
	"runtime"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/transports/shm/vm"
)

// Settings is the branch transports/shm. The zero value of a field means its default; DefaultSettings shows them.
type Settings struct {
	Trust        string // TrustUID: processes of our own user may touch memory that we register; TrustNone: nobody
	CXLMountPath string // folder whose files back allocated memory, of CXL or DAX memory; "" allocates memfds
	AnyTracer    bool   // under Yama's scope 1, let every process of our user read and write our memory, not just one peer
	Workers      int    // goroutines that copy what no caller is copying
	InlineBytes  uint64 // most bytes that one call copies on its caller's thread

	reach reach     // what the tests allow
	yama  *vm.Scope // the tests' kernel: it has this scope, and refuses us
}

// Values of Trust.
const (
	TrustUID  = "same-uid"
	TrustNone = "none"
)

// reach narrows the ways to a peer's memory for tests: every test process can reach itself by all of them.
type reach uint8

const (
	reachAll     reach = iota
	reachMapped        // even our own process's memory is mapped, or moved by the kernel
	reachForeign       // even shared memory is moved by the kernel
)

// pieceBytes bounds what is copied between two looks at the queues: HIGH waits for no more than this, some 50 µs, and Go's
// copy changes to non-temporal stores only where it is told to.
const pieceBytes = 512 << 10

// DefaultSettings returns the settings of an engine that was told nothing.
func DefaultSettings() Settings { return Settings{}.withDefaults() }

func (s Settings) withDefaults() Settings {
	if s.Trust == "" {
		s.Trust = TrustUID
	}
	if s.Workers == 0 {
		s.Workers = max(1, runtime.NumCPU()-1) // the caller's core copies, too
	}
	if s.InlineBytes == 0 {
		s.InlineBytes = 256 << 10
	}
	return s
}

// Validate reports the first setting that cannot be used, as an *errs.Error with the key and what it takes.
func (s Settings) Validate() error {
	s = s.withDefaults()
	switch {
	case s.Trust != TrustUID && s.Trust != TrustNone:
		return invalid("trust", s.Trust, `"same-uid" or "none"`)
	case s.CXLMountPath != "" && !filepath.IsAbs(s.CXLMountPath):
		return invalid("cxl_mount_path", s.CXLMountPath, "the absolute path of a folder")
	case s.Workers < 1 || s.Workers > workersMax:
		return invalid("copy_workers", s.Workers, "1 to 64")
	case s.InlineBytes > 1<<30:
		return invalid("async_memcpy_threshold", s.InlineBytes, "at most 1 GiB")
	}
	return nil
}

const workersMax = 64

func invalid(key string, value any, takes string) error {
	return errs.New(errs.InvalidArgument, "shm.settings", "transports/shm/%s is %v, it takes %s", key, value, takes)
}
