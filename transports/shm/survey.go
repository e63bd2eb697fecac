package shm

import (
	"fmt"
	"os"
	"strings"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/host/vm"
)

var _ transport.Surveyor = Factory{}

// Survey describes the ways to the memory of other processes, see transport.Surveyor.
func (Factory) Survey() []string {
	lines := []string{"memory that tent allocates is mapped by both processes (memfd_create)"}
	if line := pagesBy(hugePolicy); line != "" {
		lines = append(lines, line)
	}
	scope := vm.TraceScope()
	if scope <= vm.ScopeClassic {
		return append(lines, "other memory is copied between processes of one user (process_vm_readv and writev)")
	}
	return append(lines, "other memory is copied (process_vm_readv and writev): "+scope.String())
}

// hugePolicy has the kernel's policy about huge pages of shared memory, in brackets among its other choices.
const hugePolicy = "/sys/kernel/mm/transparent_hugepage/shmem_enabled"

// pagesBy describes the pages that a policy gives to allocated memory; "" where there is no policy.
func pagesBy(file string) string {
	text, _ := os.ReadFile(file)
	_, rest, _ := strings.Cut(string(text), "[")
	switch policy, _, _ := strings.Cut(rest, "]"); policy {
	case "":
		return ""
	case "never", "deny":
		return fmt.Sprintf("its pages are small, by the kernel's policy %s: `echo advise > %s` allows huge ones, "+
			"and disks read into these faster", policy, file)
	default:
		return "its pages are huge where the kernel has some, by its policy " + policy
	}
}
