package transport

import "fmt"

// Versions are the versions of its own protocol that a transport speaks, from the first to the last. The zero value is
// that of a transport without one.
type Versions struct{ First, Last uint16 }

// Common returns the highest version that both speak, and reports whether there is one.
func (v Versions) Common(peer Versions) (highest uint16, is bool) {
	highest = min(v.Last, peer.Last)
	return highest, highest >= max(v.First, peer.First)
}

// String returns "version 1" or "versions 1 to 3".
func (v Versions) String() string {
	if v.First == v.Last {
		return fmt.Sprintf("version %d", v.First)
	}
	return fmt.Sprintf("versions %d to %d", v.First, v.Last)
}
