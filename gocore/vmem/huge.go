package vmem

import (
	"fmt"

	"github.com/tent-engine/tent/gocore/errs"
)

// HugePages is the kernel's pool of huge pages of the default size.
type HugePages struct {
	Size uint64 // bytes of one
	Free uint64 // bytes of those that nobody has and nobody was promised
}

// usualHugePage stands for the size where the kernel names none: it then has no such pages, and says so at the mmap.
const usualHugePage = 2 << 20

// HugePages reads the pool. Others may take of it at any time; the kernel reserves the pages of an mmap in the call.
func (read Files) HugePages() HugePages {
	f := read.fields("/proc/meminfo", 1)
	size := f["Hugepagesize:"] << 10
	if size == 0 {
		return HugePages{Size: usualHugePage}
	}
	free := f["HugePages_Free:"]
	return HugePages{Size: size, Free: (free - min(free, f["HugePages_Rsvd:"])) * size}
}

// NoHugePages makes the error of huge pages for size bytes that the kernel has refused.
func (read Files) NoHugePages(size uint64, cause error) *errs.Error {
	p := read.HugePages()
	pages := (size + p.Size - 1) / p.Size
	return errs.Wrap(errs.OutOfMemory, "allocate", fmt.Errorf(
		"%d bytes take %d huge pages of %d bytes, and %d are free: %w", size, pages, p.Size, p.Free/p.Size, cause)).
		WithHint("raise vm.nr_hugepages by %d, or the cgroup's hugetlb limit; or allocate without huge pages",
			pages-min(pages, p.Free/p.Size))
}
