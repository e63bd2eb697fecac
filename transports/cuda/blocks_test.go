//go:build cgo

package cuda

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/transports/cuda/driver"
)

// An owner's answer is not believed. Blocks with a gap between them would be mapped side by side, and a range that they
// do not hold would lie in memory of nobody.
func TestBlocksHoldTheirRegionWithoutAGap(t *testing.T) {
	block := func(addr uintptr, size uint64) driver.Block { return driver.Block{Addr: addr, Size: size, Fd: 5} }
	legacy := driver.Block{Addr: 1 << 20, Size: 4096, Fd: -1}
	for name, c := range map[string]struct {
		blocks []driver.Block
		addr   uintptr
		size   uint64
		is     bool
	}{
		"one":              {[]driver.Block{legacy}, 1 << 20, 4096, true},
		"side by side":     {[]driver.Block{block(4096, 4096), block(8192, 8192)}, 6000, 10000, true},
		"a gap":            {[]driver.Block{block(4096, 4096), block(12288, 4096)}, 4096, 12288, false},
		"twice":            {[]driver.Block{block(4096, 4096), block(4096, 4096)}, 4096, 4096, false},
		"several legacy":   {[]driver.Block{legacy, {Addr: 1<<20 + 4096, Size: 4096, Fd: -1}}, 1 << 20, 8192, false},
		"none":             {nil, 4096, 4096, false},
		"begins earlier":   {[]driver.Block{block(8192, 8192)}, 4096, 8192, false},
		"ends later":       {[]driver.Block{block(4096, 4096)}, 4096, 8192, false},
		"no bytes":         {[]driver.Block{block(4096, 0)}, 4096, 0, false},
		"beyond all there": {[]driver.Block{block(4096, ^uint64(0))}, 4096, 4096, false},
	} {
		require.Equal(t, c.is, sound(c.blocks, c.addr, c.size) == nil, name)
	}
}
