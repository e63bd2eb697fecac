package cufile

import (
	"fmt"
	"syscall"
	"time"

	"github.com/tent-engine/tent/gocore/errs"
)

// Facts are properties of the library and its driver, which stay.
type Facts struct {
	Version int    // 1090 for 1.9, 0 if the library does not say
	Native  bool   // nvidia-fs is loaded
	Compat  bool   // without it the library may copy through memory of the host
	Batches bool   // it has the calls for many runs at once
	RunMost uint64 // bytes of a run
}

// String returns the facts for people.
func (f *Facts) String() string {
	version := "cuFile"
	if f.Version > 0 {
		version += fmt.Sprintf(" %d.%d", f.Version/1000, f.Version%1000/10)
	}
	if f.Native {
		return version + " with nvidia-fs: devices and disks exchange bytes themselves"
	}
	return version + " in compat mode, without nvidia-fs: it copies through memory of the host"
}

// Run is bytes that lie side by side in a file and in memory of a device.
type Run struct {
	Write   bool
	File    uintptr // handle of Adopt
	Ordinal int     // of the device
	Base    uintptr // of memory that was given to Keep
	Into    uint64  // from there
	Offset  uint64  // in the file
	Bytes   uint64
}

// Ended is the end of a run that was posted. Bytes may be fewer than the run's, also without an error: it was cut short
// then.
type Ended struct {
	Tag   int
	Bytes uint64
	Err   error
}

// runMost bounds a run, for a library that gives no bound.
const runMost = 16 << 20

// again is the pause where the library answers no question for the events of batches.
const again = time.Millisecond

// Codes of CUfileOpError that have a sentence here. Their source is the cuFile API reference guide.
var sentences = map[int]string{
	5001: "the nvidia-fs driver is not loaded, and compat mode is not allowed",
	5007: "the platform is not supported",
	5008: "the file system or its options are not supported",
	5011: "an error of the CUDA driver",
	5020: "the file was not opened with O_DIRECT",
	5022: "an invalid value",
	5023: "the memory is registered already, or cannot be",
	5024: "the memory is not registered",
	5027: "the handle is not valid; on an H200 cuFile 1.15 said so of a file of ext4 where there was no /run/udev",
	5028: "the descriptor is registered already",
	5030: "an internal error; files of a file system that cuFile does not know, as tmpfs, end so, and so do those of " +
		"disks that /run/udev does not describe",
	5033: "its driver cannot be set up; it needs libcuda",
	5035: "the batch was not accepted",
	5036: "the memory cannot be pinned",
	5037: "the batch is full",
}

// sentence describes a code of the library, and of the CUDA driver where that was the cause.
func sentence(call string, code, cuda int) string {
	switch told := sentences[code]; {
	case code == forked:
		return call + ": the process was forked after it had loaded cuFile, which cannot be used then"
	case code == endless:
		return call + ": it would never return: it reads /proc/modules, which this kernel or container does not show"
	case cuda != 0:
		return fmt.Sprintf("%s: %s (%d, CUresult %d)", call, told, code, cuda)
	case told != "":
		return fmt.Sprintf("%s: %s (%d)", call, told, code)
	}
	return fmt.Sprintf("%s: error %d", call, code)
}

// forked is CF_FORKED, and endless CF_ENDLESS.
const (
	forked  = -1
	endless = -2
)

// failed makes the error of a call. It is the library's own, so another way to the file may work: the scope is the
// link's.
func failed(call string, code, cuda int) *errs.Error {
	return errs.New(errs.StorageError, "cufile", "%s", sentence(call, code, cuda)).
		WithScope(errs.ScopeLink, errs.SideLocal)
}

// ended makes the error of a run from its negative result: an errno, or a code of the library.
func ended(call string, result int64) *errs.Error {
	code := int(-result)
	if code >= 5000 {
		return failed(call, code, 0)
	}
	errno := syscall.Errno(code)
	if errno == syscall.ECHILD {
		return failed(call, forked, 0)
	}
	return errs.New(errs.StorageError, "cufile", "%s: %v", call, errno).WithScope(errs.ScopeLink, errs.SideLocal)
}
