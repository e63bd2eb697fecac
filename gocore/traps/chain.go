//go:build amd64 || arm64

package traps

// entries returns the addresses of the entries, one for each slot. The kernel calls them, with the conventions of C.
func entries() [slots]uintptr
