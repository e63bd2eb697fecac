package tests

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// The byte oracle: the byte at offset i of pattern k is a function of both, so bytes that were swapped, shifted, lost
// or taken from another transfer show. Guard bands around each destination show bytes that were written outside.

const guard = 4096

func pattern(k, i int) byte {
	x := uint64(k)*0x9e3779b97f4a7c15 + uint64(i)*0xbf58476d1ce4e5b9
	x ^= x >> 29
	x *= 0x94d049bb133111eb
	return byte(x >> 56)
}

func fill(b []byte, k int) {
	for i := range b {
		b[i] = pattern(k, i)
	}
}

// same checks that b holds pattern k from its byte from on.
func same(t *testing.T, b []byte, k, from int) {
	t.Helper()
	for i := range b {
		if b[i] != pattern(k, from+i) {
			require.Failf(t, "wrong byte", "at %d of %d: %#x instead of %#x (pattern %d from %d)", i, len(b), b[i],
				pattern(k, from+i), k, from)
		}
	}
}

// guarded is a destination between two guard bands.
type guarded struct{ all, bytes []byte }

func newGuarded(t *testing.T, size int) guarded {
	all := memory(t, size+2*guard)
	for i := range all {
		all[i] = 0xa5
	}
	return guarded{all, all[guard : guard+size]}
}

func (g guarded) check(t *testing.T) {
	t.Helper()
	for i, b := range g.all {
		if (i < guard || i >= len(g.all)-guard) && b != 0xa5 {
			require.Failf(t, "guard band touched", "at offset %d of the destination", i-guard)
		}
	}
}

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
