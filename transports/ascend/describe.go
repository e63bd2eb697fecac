package ascend

import "github.com/tent-engine/tent/gocore/transport"

// Describe implements transport.Described.
func (Factory) Describe() (needs string, like transport.Transport) {
	return "Ascend NPUs, CANN of 8.5 or newer (`libascendcl.so`, `libmetadef.so`, `libcann_hixl.so`), and the " +
		"shim of `make ascend-shim`; emulated only, never run on an NPU", &ascend{}
}
