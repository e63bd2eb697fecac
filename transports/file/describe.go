package file

import "github.com/tent-engine/tent/gocore/transport"

// Describe implements transport.Described.
func (BufferedFactory) Describe() (needs string, like transport.Transport) {
	s, _ := settled(nil, BufferedName) // its defaults are inside their bounds
	return "nothing: every Linux has a page cache", &Buffered{cached{&base{name: BufferedName, settings: s}}}
}

// Describe implements transport.Described.
func (UringFactory) Describe() (needs string, like transport.Transport) {
	s, _ := settled(nil, UringBranch) // its defaults are inside their bounds
	return "a kernel that gives this process an io_uring; containers often forbid it",
		&Uring{cached{&base{name: UringName, settings: s}}}
}
