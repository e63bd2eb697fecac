package file

import (
	"path/filepath"
	"runtime"
	"sync/atomic"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/errs"
)

// Settings is the branch of either transport, transports/io_uring or transports/buf-io, and transports/file, which both
// share. Each tagged field is a key; "of" names the transport that has it. The zero value of a field means its default.
type Settings struct {
	config.Rail

	Roots       []string `key:"../file/roots" takes:"folders" help:"Folders that files are opened from; empty: every file that the process may open. Peers never open files."`
	Descriptors int      `key:"../file/descriptors" takes:"1..1048576" default:"256" help:"Files kept open while no transfer uses them; io_uring keeps two descriptors a file."`
	SliceBytes  uint64   `key:"slice_bytes" takes:"4KiB..64MiB, a multiple of 4096" unit:"B" default:"1MiB" atmost:"window_bytes" help:"Most bytes of a slice; beyond the default nothing is gained, and a withdrawal waits longer."`
	WindowBytes uint64   `key:"window_bytes" takes:"4KiB..1GiB" unit:"B" default:"16MiB" help:"Bytes in flight on a file."`
	Workers     int      `key:"workers" of:"buf-io" takes:"1..256" default:"= two a processor, 4 to 16" help:"Threads that read and write."`
	Depth       int      `key:"depth" of:"io_uring" takes:"1..4096" default:"128" help:"Operations in the kernel at once."`
	Direct      string   `key:"direct" of:"io_uring" takes:"auto|off" default:"auto" help:"auto takes the files that can be read and written past the page cache and leaves others to buf-io; off takes every file, through the page cache."`
	BatchDepth  int      `key:"io_batch_depth" of:"gds" takes:"1..4096" default:"32" from:"upstream" help:"Runs in cuFile batches at once. The engines of a process share 48; one that gets none uses threads."`
	Threads     int      `key:"threads" of:"gds" takes:"1..64" default:"4" help:"Threads for the ends of a WRITE that are no whole units, and for all runs where the library has no batches."`

	Slices  int  // accepted and not completed, over all files, 16 to 65536; 0: 1024
	anyFile bool // of tests: io-uring takes files of FUSE as well
	roots   []*root
}

// root is a folder of Settings.Roots. A path may begin with its name, or with the folder that was there when the
// transport opened, or first since: the kernel names open files by that.
type root struct {
	name string
	real atomic.Pointer[string]
}

func rootOf(name string) *root {
	r := &root{name: filepath.Clean(name)}
	r.folder()
	return r
}

// folder returns the folder behind the links of the name, or the name while there is none.
func (r *root) folder() string {
	if r.real.Load() == nil {
		if real, err := filepath.EvalSymlinks(r.name); err == nil {
			r.real.CompareAndSwap(nil, &real)
		}
	}
	if real := r.real.Load(); real != nil {
		return *real
	}
	return r.name
}

// Values of Settings.Direct.
const (
	DirectAuto = "auto"
	DirectOff  = "off"
)

// Compute fills in the defaults that depend on the machine.
func (s *Settings) Compute() { s.Workers = min(16, max(4, 2*runtime.NumCPU())) }

// settled completes and checks the settings that Open was given, for the transport that has a branch.
func settled(given any, branch string) (Settings, error) {
	s, err := config.Settled[Settings](given, branch)
	if err != nil {
		return s, err
	}
	for _, name := range s.Roots {
		s.roots = append(s.roots, rootOf(name))
	}
	if s.Slices == 0 {
		s.Slices = 1024
	}
	if s.Slices < 16 || s.Slices > 1<<16 {
		return s, errs.New(errs.InvalidArgument, branch+".settings", "Slices is %d, it takes 16 to 65536", s.Slices)
	}
	return s, nil
}
