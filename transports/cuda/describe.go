package cuda

import "github.com/tent-engine/tent/gocore/transport"

// Describe implements transport.Described.
func (Factory) Describe() (needs string, like transport.Transport) {
	return "a CUDA driver of 11.4 or newer (`libcuda.so.1`), and processes of one host", &nvlink{}
}
