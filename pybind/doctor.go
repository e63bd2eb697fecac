package pybind

import (
	"runtime"
	"strings"

	"github.com/tent-engine/tent/gocore/share"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/all"
)

// finding is one part of this machine that the engine uses.
type finding struct {
	Name   string   `json:"name"`
	Found  []string `json:"found"`  // for people, one a line
	Reason string   `json:"reason"` // why it cannot be used; "" when it can
}

// Doctor returns in JSON the versions of the engine, the findings of each transport, and whether processes can share
// memory here. It starts nothing and needs no engine.
func Doctor() (text string, err error) {
	defer guard(&err)
	transports := []finding{}
	for _, factory := range all.Factories() {
		f := finding{Name: factory.Name(), Found: []string{}}
		if reason := factory.Check(); reason != nil {
			f.Reason = reason.Error()
		} else if s, is := factory.(transport.Surveyor); is {
			f.Found = append(f.Found, s.Survey()...)
		}
		transports = append(transports, f)
	}
	shared := ""
	if err := share.Check(); err != nil {
		shared = err.Error()
	}
	return toJSON(map[string]any{"go": strings.TrimPrefix(runtime.Version(), "go"), "wire": Version(),
		"transports": transports, "shared": shared}), nil
}

// ServeMetrics serves an engine's metrics over HTTP at "host:port", and returns the address with the port taken.
func ServeMetrics(id int64, address string) (bound string, err error) {
	defer guard(&err)
	e, err := get(id)
	if err != nil {
		return "", err
	}
	return e.ServeMetrics(address)
}

// StopMetrics ends the server at an address that ServeMetrics returned.
func StopMetrics(id int64, address string) (n int64, err error) {
	defer guard(&err)
	e, err := get(id)
	if err != nil {
		return 0, err
	}
	e.StopMetrics(address)
	return 0, nil
}
