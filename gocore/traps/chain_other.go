//go:build !amd64 && !arm64

package traps

func entries() (none [slots]uintptr) { return none }
