package pybind

import (
	"fmt"
	"runtime"
	"strings"

	"github.com/tent-engine/tent/gocore/device"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/share"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/all"
)

// finding is one part of this machine that the engine uses.
type finding struct {
	Name   string   `json:"name"`
	Found  []string `json:"found"`  // for people, one a line
	Reason string   `json:"reason"` // why it cannot be used; "" when it can
	Parts  []part   `json:"parts"`  // that speed and reach depend on
}

// part is transport.Part in JSON.
type part struct {
	Name    string   `json:"name"`
	Found   []string `json:"found"`
	Reason  string   `json:"reason"`
	Matters string   `json:"matters"`
}

// Doctor returns in JSON the versions of the engine, the findings of each transport and platform, and whether processes
// can share memory here. It starts nothing and needs no engine. The libraries of drivers, and the plug-ins that the
// environment's settings name, stay in the process. environment is that of Open.
func Doctor(environment string) (text string, err error) {
	defer guard(&err)
	_, paths, err := sourcesOf(environment)
	if err != nil {
		return "", err
	}
	transports := []finding{}
	for _, factory := range all.Factories(all.PlugIns(paths)...) {
		transports = append(transports, findingOf(factory))
	}
	platforms := []finding{}
	for _, p := range all.Platforms(paths...) {
		platforms = append(platforms, devicesOf(p))
	}
	shared := ""
	if err := share.Check(); err != nil {
		shared = err.Error()
	}
	return toJSON(map[string]any{"go": strings.TrimPrefix(runtime.Version(), "go"), "wire": Version(),
		"transports": transports, "platforms": platforms, "shared": shared}), nil
}

func findingOf(factory transport.Factory) finding {
	f := finding{Name: factory.Name(), Found: []string{}, Parts: []part{}}
	if reason := factory.Check(); reason != nil {
		f.Reason = reason.Error()
		return f
	}
	if s, is := factory.(transport.Surveyor); is {
		f.Found = append(f.Found, s.Survey()...)
	}
	if e, is := factory.(transport.Examiner); is {
		for _, p := range e.Examine() {
			f.Parts = append(f.Parts, part(p))
		}
	}
	return f
}

// devicesOf lists the devices of a platform, or the reason why there are none.
func devicesOf(p device.Platform) finding {
	f := finding{Name: p.Name(), Found: []string{}}
	list, err := p.Devices()
	if reason := p.Check(); reason != nil {
		err = reason
	}
	if err != nil {
		f.Reason = err.Error()
		return f
	}
	for i, d := range list {
		line := fmt.Sprintf("%s: %s, PCI %s", device.Place{Platform: p, Ordinal: i}.Location(), d.Name, d.PCI)
		if d.Node >= 0 {
			line += fmt.Sprintf(", NUMA node %d", d.Node)
		}
		if d.Lost != nil {
			line += ", lost: " + d.Lost.Error()
		}
		f.Found = append(f.Found, line)
	}
	return f
}

// ServeMetrics serves an engine's metrics over HTTP at "host:port", and returns the address with the port taken.
func ServeMetrics(id int64, address string) (string, error) {
	return on(id, func(e *engine.Engine) (string, error) {
		return e.ServeMetrics(address)
	})
}

// StopMetrics ends the server at an address that ServeMetrics returned.
func StopMetrics(id int64, address string) (int64, error) {
	return on(id, func(e *engine.Engine) (int64, error) {
		e.StopMetrics(address)
		return 0, nil
	})
}
