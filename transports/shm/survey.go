package shm

import (
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/host/vm"
)

var _ transport.Surveyor = Factory{}

// Survey describes the ways to the memory of other processes, see transport.Surveyor.
func (Factory) Survey() []string {
	lines := []string{"memory that tent allocates is mapped by both processes (memfd_create)"}
	scope := vm.TraceScope()
	if scope <= vm.ScopeClassic {
		return append(lines, "other memory is copied between processes of one user (process_vm_readv and writev)")
	}
	return append(lines, "other memory is copied (process_vm_readv and writev): "+scope.String())
}
