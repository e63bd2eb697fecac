package rdma

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAQueueThatHasNotRungIsNotArmedAgain counts what sleepers ask of NICs on which nothing moves.
func TestAQueueThatHasNotRungIsNotArmedAgain(t *testing.T) {
	r := newRig(t, nil)
	tr := r.a.Transport.(*Transport)
	tr.Arm()
	before := r.f.Control(t, "arms")
	for range 20 {
		list := tr.Watch(nil)
		require.Len(t, list, 2)
		tr.Arm()
		tr.Woken(list)
		tr.Arm()
	}
	require.Equal(t, before, r.f.Control(t, "arms"))
}

// TestARingThatNoSleeperSawIsAnswered: the goroutine leaves a ring to a sleeper, which something else has woken. What
// rings later is heard all the same.
func TestARingThatNoSleeperSawIsAnswered(t *testing.T) {
	r := newRig(t, overOne)
	tr := r.a.Transport.(*Transport)
	for range 3 {
		list := tr.Watch(nil)
		tr.Arm()
		first := r.slice(t, r.c.Rail(t), 0, 4096)
		require.Equal(t, 1, r.c.Send(first))
		await(t, "the ring is left to the sleeper", tr.nics()[0].bells[0].missed.Load)
		tr.Woken(list) // no descriptor is ready for it
		tr.Arm()
		second := r.slice(t, r.c.Rail(t), 4096, 4096)
		require.Equal(t, 1, r.c.Send(second))
		for _, end := range r.c.Wait(t, first, second) {
			require.Nil(t, end.Err)
		}
	}
}
