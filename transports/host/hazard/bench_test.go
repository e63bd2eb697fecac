package hazard

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkSlot takes a slot and gives it back, as each piece of a copy does. The target is at most 20 ns.
func BenchmarkSlot(b *testing.B) {
	_, _, v, r := pair(b)
	b.ReportAllocs()
	for b.Loop() {
		s := v.Enter(r, 0, 3)
		if s < 0 {
			b.Fatal(s)
		}
		v.Leave(s)
	}
}

// BenchmarkSlotHint adds the cost of a caller without a number, and the look for the epoch.
func BenchmarkSlotHint(b *testing.B) {
	_, _, v, r := pair(b)
	for b.Loop() {
		s := v.Enter(r, v.Epoch(), Hint())
		if s < 0 {
			b.Fatal(s)
		}
		v.Leave(s)
	}
}

// BenchmarkSlotParallel has a goroutine on each processor.
func BenchmarkSlotParallel(b *testing.B) {
	_, _, v, r := pair(b)
	var next atomic.Uint32
	b.RunParallel(func(pb *testing.PB) {
		hint := next.Add(1)
		for pb.Next() {
			s := v.Enter(r, 0, hint)
			if s < 0 {
				b.Error(s)
				return
			}
			v.Leave(s)
		}
	})
}

func BenchmarkRevoke(b *testing.B) {
	table, _, _, r := pair(b)
	for b.Loop() {
		require.NoError(b, table.Revoke(b.Context(), r, nil, table.next()))
	}
}
