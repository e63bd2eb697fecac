package cuda

import "github.com/tent-engine/tent/gocore/transport"

// Describe implements transport.Described.
func (Factory) Describe() (needs string, like transport.Transport) {
	return "a CUDA driver of 11.4 or newer (`libcuda.so.1`), and processes of one host",
		&nvlink{copier: described(Name)}
}

// Describe implements transport.Described.
func (FabricFactory) Describe() (needs string, like transport.Transport) {
	return "a CUDA driver of 12.3 or newer, NVML, GPUs of one NVLink domain over several hosts, and an IMEX channel " +
		"that both processes have", &mnnvl{copier: described(FabricName)}
}

// described is the part of a transport that its Info needs, by the defaults.
func described(name string) copier { return copier{name: name, Copying: Copying{SliceBytes: sliceMax}} }
