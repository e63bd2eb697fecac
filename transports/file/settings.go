package file

import (
	"path/filepath"
	"runtime"

	"github.com/tent-engine/tent/gocore/errs"
)

// Settings are the branches transports/file, which both transports share, and transports/io-uring or transports/buf-io.
// The zero value of a field means its default.
type Settings struct {
	Roots       []string // folders that OpenFile takes files from; none: every file that the process may open
	Descriptors int      // files kept open while nobody uses them [256]; io-uring keeps two descriptors a file

	SliceBytes  uint64 // largest slice [1 MiB]: beyond it nothing is gained, and a withdrawal waits for what is under way
	WindowBytes uint64 // proposed to the core as bytes in flight on a file [16 MiB]
	Slices      int    // accepted and not completed, over all files [1024]

	Workers int    // buf-io: threads that read and write [twice the processors, 4 to 16]
	Depth   int    // io-uring: operations in the kernel at once [128]
	anyFile bool   // of tests: io-uring takes files of FUSE as well
	Direct  string // io-uring: "auto": files that take O_DIRECT, the others are left to buf-io; "off": every file, by the page cache
}

func (s Settings) withDefaults() Settings {
	orDefault(&s.Descriptors, 256)
	orDefault(&s.SliceBytes, 1<<20)
	orDefault(&s.WindowBytes, 16<<20)
	orDefault(&s.Slices, 1024)
	orDefault(&s.Workers, min(16, max(4, 2*runtime.NumCPU())))
	orDefault(&s.Depth, 128)
	orDefault(&s.Direct, DirectAuto)
	return s
}

func orDefault[T comparable](v *T, other T) {
	var zero T
	if *v == zero {
		*v = other
	}
}

// Values of Settings.Direct.
const (
	DirectAuto = "auto"
	DirectOff  = "off"
)

// Validate reports the first setting that cannot be used, as an *errs.Error with the key and what it takes.
func (s Settings) Validate(branch string) error {
	s = s.withDefaults()
	for _, root := range s.Roots {
		if !filepath.IsAbs(root) {
			return invalid("file/roots", root, "absolute paths of folders")
		}
	}
	switch {
	case s.Descriptors < 1 || s.Descriptors > 1<<20:
		return invalid("file/descriptors", s.Descriptors, "1 to 1048576")
	case s.SliceBytes < 4096 || s.SliceBytes > 64<<20 || s.SliceBytes%4096 != 0:
		return invalid(branch+"/slice_bytes", s.SliceBytes, "a multiple of 4 KiB up to 64 MiB")
	case s.WindowBytes < s.SliceBytes:
		return invalid(branch+"/window_bytes", s.WindowBytes, "at least slice_bytes")
	case s.Slices < 16 || s.Slices > 1<<16:
		return invalid(branch+"/slices", s.Slices, "16 to 65536")
	case s.Workers < 1 || s.Workers > 256:
		return invalid(branch+"/workers", s.Workers, "1 to 256")
	case s.Depth < 1 || s.Depth > 4096:
		return invalid(branch+"/depth", s.Depth, "1 to 4096")
	case s.Direct != DirectAuto && s.Direct != DirectOff:
		return invalid(branch+"/direct", s.Direct, `"auto" or "off"`)
	}
	return nil
}

func invalid(key string, value any, takes string) error {
	return errs.New(errs.InvalidArgument, "file.settings", "transports/%s is %v, it takes %s", key, value, takes)
}
