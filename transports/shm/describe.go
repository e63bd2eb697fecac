package shm

import "github.com/tent-engine/tent/gocore/transport"

// Describe implements transport.Described.
func (Factory) Describe() (needs string, like transport.Transport) {
	return "Linux 5.10 or newer, `/proc`, and processes of one host", &Transport{}
}
