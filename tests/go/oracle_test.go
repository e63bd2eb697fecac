package tests

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/mem"
)

// The byte oracle: the byte at offset i of pattern k is a function of both, so bytes that were swapped, shifted, lost
// or taken from another transfer show. Guard bands around each destination show bytes that were written outside.

const guard = 4096

// pattern fills b with the bytes of pattern k from its byte from on. The race detector leaves it out: fill and same,
// which call it for a piece at a time, touch the bytes under test themselves.
//
//go:norace
func pattern(b []byte, k, from int) {
	for len(b) > 0 {
		x := uint64(k)*0x9e3779b97f4a7c15 + uint64(from/8)*0xbf58476d1ce4e5b9
		x = (x ^ x>>29) * 0x94d049bb133111eb
		x ^= x >> 32
		n := 8
		if from%8 == 0 && len(b) >= 8 {
			binary.LittleEndian.PutUint64(b, x)
		} else {
			n = copy(b, binary.LittleEndian.AppendUint64(nil, x)[from%8:])
		}
		b, from = b[n:], from+n
	}
}

const pieceOfPattern = 16 << 10

// fill writes pattern k into b.
func fill(b []byte, k int) {
	piece := make([]byte, min(len(b), pieceOfPattern))
	for at := 0; at < len(b); at += pieceOfPattern {
		rest := piece[:min(pieceOfPattern, len(b)-at)]
		pattern(rest, k, at)
		copy(b[at:], rest)
	}
}

// same checks that b holds pattern k from its byte from on.
func same(t *testing.T, b []byte, k, from int) {
	t.Helper()
	piece := make([]byte, min(len(b), pieceOfPattern))
	for at := 0; at < len(b); at += pieceOfPattern {
		want, got := piece[:min(pieceOfPattern, len(b)-at)], b[at:min(len(b), at+pieceOfPattern)]
		pattern(want, k, from+at)
		if bytes.Equal(want, got) {
			continue
		}
		for i := range want {
			if got[i] != want[i] {
				require.Failf(t, "wrong byte", "at %d of %d: %#x instead of %#x (pattern %d from %d)", at+i, len(b),
					got[i], want[i], k, from)
			}
		}
	}
}

// paint makes every byte of b the same, with few calls of the race detector.
func paint(b []byte, value byte) {
	b[0] = value
	for done := 1; done < len(b); done *= 2 {
		copy(b[done:], b[:done])
	}
}

// painted reports whether every byte of b is value.
func painted(b []byte, value byte) bool { return bytes.Count(b, []byte{value}) == len(b) }

// guarded is a destination between two guard bands.
type guarded struct{ all, bytes []byte }

func newGuarded(t *testing.T, size int) guarded {
	all := memory(t, size+2*guard)
	paint(all, 0xa5)
	return guarded{all, all[guard : guard+size]}
}

func (g guarded) check(t *testing.T) {
	t.Helper()
	for _, band := range [][]byte{g.all[:guard], g.all[len(g.all)-guard:]} {
		require.True(t, painted(band, 0xa5), "a guard band of the destination was touched")
	}
}

func address(b []byte) uintptr { return mem.AddressOf(b) }
