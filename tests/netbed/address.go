package netbed

import "github.com/tent-engine/tent/gocore/mem"

func addressOf(b []byte) uintptr { return mem.AddressOf(b) }
