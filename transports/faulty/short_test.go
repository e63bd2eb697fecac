package faulty

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// stingy is an inner transport that takes one slice of its first call.
type stingy struct {
	transport.Transport
	full bool
}

func (s *stingy) Submit(list []*transport.Slice) int {
	if !s.full {
		s.full, list = true, list[:1]
	}
	return s.Transport.Submit(list)
}

// TestSlicesAreCountedOnceWhenTheyAreAccepted: those that the inner transport has no room for come again.
func TestSlicesAreCountedOnceWhenTheyAreAccepted(t *testing.T) {
	const n = 8
	for text, want := range map[string][]int{"nth=3 drop": {2}, "every=4 drop": {3, 7}, "drop after_slices=6": {6, 7},
		"drop after_bytes=3kB count=1": {3}} {
		b := newBench(t, text)
		tr := b.a.Transport.(*Transport)
		tr.Transport = &stingy{Transport: tr.Transport}
		list := b.slices(b.c.Rail(t), n)
		require.Equal(t, 1, b.c.Submit(list...))
		require.Equal(t, n-1, b.c.Submit(list[1:]...))
		require.Equal(t, want, b.lost(t, list, want), text)
		require.Equal(t, uint64(len(want)), b.plan.Struck()[0].Hits, text)
		tr.Withdraw(list)
		b.c.Wait(t, list...)
	}
}

// TestASliceBehindAShortSubmitIsCountedOnce also where a fault has made it short. That fault alone knows the slice when
// it comes again.
func TestASliceBehindAShortSubmitIsCountedOnce(t *testing.T) {
	for text, want := range map[string][]int{"short nth=2; drop nth=4": {3}, "short every=3; drop every=4": {3, 7},
		"short nth=2; short nth=2; drop after_slices=6": {6, 7}} {
		b := newBench(t, text)
		list := b.slices(b.c.Rail(t), 8)
		require.Equal(t, 8, b.c.Send(list...))
		require.Equal(t, want, b.lost(t, list, want), text)
		for _, fault := range b.plan.Struck() {
			require.NotZero(t, fault.Hits, "%q of %q", fault.Text, text)
		}
		b.a.Transport.Withdraw(list)
		b.c.Wait(t, list...)
	}
}

// TestAShortSubmitTakesNoCallBack: rules about calls do not count slices.
func TestAShortSubmitTakesNoCallBack(t *testing.T) {
	b := newBench(t, "nth=1000 drop")
	b.apply(t, "fail_register after_slices=2")
	tr := b.a.Transport.(*Transport)
	tr.Transport = &stingy{Transport: tr.Transport}
	register := func(id mem.RegionID) error {
		_, _, err := tr.Register(t.Context(), mem.Region{ID: id, Addr: b.local.Addr, Size: 100, Fd: -1})
		return err
	}
	require.NoError(t, register(98))
	require.NoError(t, register(99))
	list := b.slices(b.c.Rail(t), 8)
	require.Equal(t, 1, b.c.Submit(list...))
	require.Error(t, register(100), "the third call")
	require.Equal(t, 7, b.c.Submit(list[1:]...))
	b.c.Wait(t, list...)
}
