//go:build cgo

package staged

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/cuda"
)

// quiet shows that nothing lands in a region any more. Copies that were under way would, until their slots are free.
func (k *keeper) quiet(friend *asker, name, why string) {
	k.t.Helper()
	r := k.regions[name]
	r.must = r.mustAll(k.t)()
	awaitSlots(k.t, k.Engine)
	k.warm(friend)
	k.unchanged(why)
}

// late makes copies of a driver take long enough to be seen behind the end of their order.
var late = fake.Settings{"DELAY_US": "20000"}

// Orders are given and cancelled in quick alternation, by several lanes at once. Each has ended when that is said: its
// bytes change no more. The slots are those of before, and all are free.
func TestAStormOfCancelsLeavesNothingBehind(t *testing.T) {
	const rounds, side = 8, 4
	fake.Run(t, fake.Driver{}, late, func(t *testing.T, _ *fake.Loaded) {
		friend, storm := newAsker(t), newAsker(t)
		k := newKeeper(t, friend)
		key := storm.knows(k)["cache"]
		require.Equal(t, errs.OK, storm.gives(k, storm.order(transport.Read, key, 4096)))
		slots := k.Metrics()["tent_staging_slots"]
		for round := range rounds {
			require.NoError(t, storm.stage.poke(0, pattern(uint64(100+round), size+2*band)))
			var lanes sync.WaitGroup
			var cancels []order
			for lane := range side {
				o := storm.order(transport.Op(lane%2), key, size)
				o.lane, o.bytes = uint64(1+lane), size/side
				o.places, o.offset = []uint64{uint64(lane) * o.bytes}, uint64(lane)*o.bytes
				lanes.Go(func() { says(t, storm.line.Call, k, o) })
				cancels = append(cancels, o.as(cancel))
			}
			if round%2 == 0 { // else some overtake their orders
				k.awaitFree(1)
				for range rand.IntN(1000) {
					runtime.Gosched()
				}
			}
			for _, o := range cancels {
				lanes.Go(func() { storm.gives(k, o) })
			}
			lanes.Wait()
			k.quiet(friend, "cache", "behind the end of all cancelled orders")
		}
		require.Equal(t, slots, k.Metrics()["tent_staging_slots"], "pools that were there before")
		k.settles(friend, "cancelled orders")
	})
}

// A program starts transfers and cancels them at once, again and again. The slots of both engines come back, and the
// next transfer passes.
func TestTransfersAreStartedAndCancelled(t *testing.T) {
	const rounds = 40
	fake.Run(t, fake.Driver{}, slow(t), func(t *testing.T, _ *fake.Loaded) {
		friend := newAsker(t)
		k := newKeeper(t, friend)
		m, region, err := give(friend.Engine, 1, "", 5)
		require.NoError(t, err)
		to := open(t, friend.Engine, k.Address())
		first := moved(t, friend.Engine, request(transport.Read, m, to, 0, 4096))
		require.Equal(t, dispatch.Completed, first.State, "%v", first.Err)
		slots := [2]float64{friend.Metrics()["tent_staging_slots"], k.Metrics()["tent_staging_slots"]}
		for round := range rounds {
			id, err := friend.Move(request(transport.Op(round%2), m, to, 0, size))
			require.NoError(t, err)
			for range rand.IntN(200) {
				runtime.Gosched()
			}
			_, err = friend.Cancel(id, -1)
			require.NoError(t, err)
			finish(t, friend.Engine, id)
		}
		awaitSlots(t, friend.Engine)
		awaitSlots(t, k.Engine)
		require.Equal(t, slots, [2]float64{friend.Metrics()["tent_staging_slots"], k.Metrics()["tent_staging_slots"]})
		k.quiet(friend, "cache", "behind all cancelled transfers")
		last := moved(t, friend.Engine, request(transport.Write, m, to, 0, size))
		require.Equal(t, dispatch.Completed, last.State, "%v", last.Err)
		copy(k.regions["cache"].must[band:], m.mustAll(t)()[band:band+size])
		k.settles(friend, "cancelled transfers")
		release(t, friend.Engine, m, region)
	})
}

// takings end the right to a region in which an order is under way.
var takings = map[string]func(k *keeper, a *asker) error{
	"fence of its peer": func(k *keeper, a *asker) error {
		return k.FenceRegion(k.t.Context(), k.regions["cache"].id, a.Address())
	},
	"disconnect": func(k *keeper, a *asker) error {
		_, err := k.Disconnect(k.t.Context(), a.Self().ID.String())
		return err
	},
	"close": func(k *keeper, _ *asker) error { return k.CloseRegion(k.t.Context(), k.regions["cache"].id) },
}

// Orders that are under way end when their region is fenced or closed, or their peer is disconnected. Nothing of them
// lands behind the return of that, and no order of before begins afterwards.
func TestNothingLandsBehindAFence(t *testing.T) {
	for name, takes := range takings {
		t.Run(name, func(t *testing.T) {
			fake.Run(t, fake.Driver{}, late, func(t *testing.T, _ *fake.Loaded) {
				friend, a := newAsker(t), newAsker(t)
				k := newKeeper(t, friend)
				key, cache := a.knows(k)["cache"], k.regions["cache"]
				friend.knows(k)
				o := a.order(transport.Write, key, size)
				var under sync.WaitGroup
				under.Go(func() { says(t, a.line.Call, k, o) })
				cache.awaitChange(t)
				require.NoError(t, takes(k, a))
				cache.must = cache.mustAll(t)()
				under.Wait()
				a.gives(k, o.as(ask))                        // it may have been done before the fence was
				again := a.order(transport.Write, key, size) // in the epoch of before
				require.NotEqual(t, errs.OK, a.gives(k, again))
				k.settles(friend, name)
			})
		})
	}
}
