package tcp

import "github.com/tent-engine/tent/gocore/transport"

// Describe implements transport.Described.
func (Factory) Describe() (needs string, like transport.Transport) {
	s, _ := settled(nil) // its defaults are inside their bounds
	return "a network between the engines, and the port of `transports/tcp/port`", &Transport{settings: s}
}
