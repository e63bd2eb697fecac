package rdma

import "github.com/tent-engine/tent/gocore/transport"

// Describe implements transport.Described.
func (Factory) Describe() (needs string, like transport.Transport) {
	return "libibverbs of rdma-core 32 or newer, an RDMA NIC with a port that is up, and locked memory", &Transport{}
}
