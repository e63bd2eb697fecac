// Package pybind is the flat surface that gopy wraps into tent._gotent: integers, addresses and strings only.
package pybind

import _ "github.com/go-python/gopy/gopyh" // keeps gopy a direct requirement, so that its builds leave go.mod alone

// Version is the version of the wire protocol and of this build's surface.
func Version() string { return "1" }
