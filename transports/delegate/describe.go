package delegate

import (
	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/transport"
)

// Describe implements transport.Described.
func (Factory) Describe() (needs string, like transport.Transport) {
	s, _ := config.Settled[Settings](nil, Name) // its defaults are inside their bounds
	return "a peer that reaches our pools in memory of the host by a transport of its own", &delegate{settings: s}
}

// Survey implements transport.Surveyor.
func (Factory) Survey() []string {
	return []string{"memory of a peer's devices: that engine copies it, to and from memory that we lend it"}
}
