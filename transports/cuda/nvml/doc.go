// Package nvml reads how the GPUs of this machine are connected, from NVIDIA's management library. That is by NVLink,
// by PCIe, or through a domain of multi-node NVLink. Nothing is decided by it alone: GPUs that the driver lets reach
// each other do so without it.
//
// # Nothing is linked
//
// go-nvml calls some 400 functions of libnvidia-ml.so.1 and leaves them undefined, for a linker that binds lazily.
// Python opens extensions with RTLD_NOW, so `import tent` would end with an undefined symbol on every machine. So
// trampolines.S defines all of these functions. Each jumps to where its slot points. That is a function that returns
// NVML_ERROR_FUNCTION_NOT_FOUND, until load.c has found the real one. Drivers that are older than go-nvml are served
// the same way: a function that they lack is an error of its call, and the process lives.
//
// names.h has the names, from the pinned version of go-nvml: run `go generate` after a change of the version.
package nvml

//go:generate go run names.go
