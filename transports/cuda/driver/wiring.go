//go:build cgo

package driver

import (
	"slices"

	"github.com/tent-engine/tent/gocore/device"
	"github.com/tent-engine/tent/transports/cuda/nvml"
)

var _ device.Wired = Platform{}

// Wiring implements device.Wired. NVML counts in another order than CUDA does and knows GPUs that the process does not
// see, so its GPUs are found by their addresses on the bus.
func (Platform) Wiring() (device.Wiring, error) {
	l := process()
	if l.absent != nil {
		return device.Wiring{}, l.absent
	}
	gpus, err := nvml.Read()
	if err != nil {
		return device.Wiring{}, err
	}
	at := l.indexes(gpus)
	w := device.Wiring{Fabrics: make([]*device.Fabric, len(at)), Apart: make([]string, len(at))}
	for i, from := range at {
		ways := make([]string, len(at))
		for k, to := range at {
			if from >= 0 && to >= 0 {
				ways[k] = gpus[from].Ways[to]
			}
		}
		if w.Ways = append(w.Ways, ways); from >= 0 {
			w.Fabrics[i] = gpus[from].Fabric
		}
		why := l.probe(i)
		if why == nil {
			why = domainOf(i, gpus, from).Why
		}
		if why != nil {
			w.Apart[i] = why.Error()
		}
	}
	return w, nil
}

// indexes returns the places of the process's devices in a list of NVML; -1: it does not have one.
func (l *library) indexes(gpus []nvml.GPU) []int {
	at := make([]int, len(l.devices))
	for i := range l.devices {
		at[i] = slices.IndexFunc(gpus, func(g nvml.GPU) bool { return g.PCI == l.devices[i].PCI })
	}
	return at
}
