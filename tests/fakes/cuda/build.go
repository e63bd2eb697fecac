package cuda

import (
	"fmt"
	"testing"

	"github.com/tent-engine/tent/tests/fakes/compiled"
)

// Settings of the library in a process, by the names of its environment variables without TENT_FAKECUDA_.
//
//	DEVICES   2
//	DELAY_US  0: the longest delay of a piece of work; SEED of the delays, 1
//	DMABUF    1: dma-bufs are exported
//	IMEX      0: the process has no IMEX channel; else its number
//	FABRIC    1: attribute 128, and fabric handles; 0: the device gives none
//	RDMA_VMM  0: attribute 110
//	CAN_FLUSH 0: attribute 98, and waits for a word that flush
//	BYTES     4 GiB of each device
//	APART     "0-1,0-2": pairs without a link, "all"
//	HOSTPTR   1: attribute 91; 0: copies do not find registered memory by its address of the host
//	KERNELS   1: kernels are loaded; 0: their PTX is refused
//	FREE      0: as 1, copies end with the call that queues them, and move nothing; to measure the rest
//	OWN       0: as 1, a process opens its own legacy handles, which no driver does; for two engines in one process
type Settings map[string]string

// Environment is that of a child which is to load a library with settings.
func (s Settings) Environment(library string) []string {
	list := []string{"TENT_LIBCUDA=" + library}
	for name, value := range s {
		list = append(list, "TENT_FAKECUDA_"+name+"="+value)
	}
	return list
}

// Driver is a library to build.
type Driver struct {
	Version int      // 13000 for CUDA 13.0, which 0 is, too
	Absent  []string // symbols that it does not export
}

// Library builds a driver and returns its path.
func Library(t testing.TB, d Driver) string {
	if d.Version == 0 {
		d.Version = 13000
	}
	l := compiled.Fake("cuda", "libcuda.so.1", fmt.Sprintf("-DFAKE_DRIVER=%d", d.Version))
	l.Absent = d.Absent
	l.Headers = append(l.Headers, "transports/cuda/driver/copy.h") // the kernel
	return l.Build(t)
}
