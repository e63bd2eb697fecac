package engine

import (
	"encoding/json"

	"github.com/tent-engine/tent/gocore/device"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/topology"
)

// Topology describes this machine and its devices, as JSON in upstream's shape.
func (e *Engine) Topology() (string, error) {
	var groups []topology.Group
	for _, p := range e.platforms.here {
		if g, ok := groupOf(p); ok {
			groups = append(groups, g)
		}
	}
	text, err := json.Marshal(topology.LocalWith(groups))
	return string(text), err
}

// memoryTypes are upstream's numbers by kind of memory.
var memoryTypes = map[mem.Kind]topology.MemoryType{mem.Cuda: topology.CudaMemory, mem.Rocm: topology.ROCmMemory,
	mem.Npu: topology.NPUMemory}

// groupOf asks a platform for its devices and their wiring; false where it has none, which doctor explains.
func groupOf(p device.Platform) (topology.Group, bool) {
	list, err := p.Devices()
	if err != nil {
		return topology.Group{}, false
	}
	g := topology.Group{Type: topology.OtherMemory, Unknown: "the platform does not say"}
	if number, is := memoryTypes[p.Kind()]; is {
		g.Type = number
	}
	wiring := device.Wiring{}
	if wired, is := p.(device.Wired); is {
		g.Unknown = ""
		if wiring, err = wired.Wiring(); err != nil {
			g.Unknown = err.Error()
		}
	}
	g.Ways = wiring.Ways
	for i, info := range list {
		f := topology.Found{Location: device.Place{Platform: p, Ordinal: i}.Location(), Name: info.Name, PCI: info.PCI,
			UUID: info.UUID, Node: info.Node}
		if i < len(wiring.Fabrics) && wiring.Fabrics[i] != nil {
			f.Fabric = &topology.Fabric{Cluster: topology.Dashed(wiring.Fabrics[i].Cluster),
				Clique: wiring.Fabrics[i].Clique}
		}
		if f.Apart = g.Unknown; i < len(wiring.Apart) {
			f.Apart = wiring.Apart[i]
		}
		g.Devices = append(g.Devices, f)
	}
	return g, true
}
