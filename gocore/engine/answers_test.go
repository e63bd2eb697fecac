package engine

import (
	"bytes"
	"context"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/control"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/security"
	"github.com/tent-engine/tent/gocore/segment"
	"github.com/tent-engine/tent/gocore/transport"
)

// Peers that ask for the description get the bytes that were made for the first of them, until the regions change. One
// that knows the epoch costs nothing.
func TestADescriptionIsEncodedOncePerEpoch(t *testing.T) {
	own, err := security.Open(security.Settings{})
	require.NoError(t, err)
	e := &Engine{credentials: own, changes: newChanges(nil)}
	describe := func(known uint64) *control.Offer {
		offer, err := (*answers)(e).Describe(context.Background(), transport.Peer{}, known, false)
		require.NoError(t, err)
		return offer
	}
	require.Nil(t, describe(e.describedEpoch()))
	require.Nil(t, e.offers.made, "nothing was made for a peer that knows all")
	first := describe(0)
	require.Same(t, first, describe(0))
	told, err := segment.Decode(first.Encoded)
	require.NoError(t, err)
	require.Equal(t, own.ID(), told.ID)
	require.Nil(t, describe(told.Epoch))
	e.fences.Add(1)
	fenced, err := segment.Decode(describe(0).Encoded)
	require.NoError(t, err)
	require.EqualValues(t, 1, fenced.Fences, "a peer that opens us now begins behind the fence")
	e.regions.touch(1)
	changed, err := segment.Decode(describe(told.Epoch).Encoded)
	require.NoError(t, err)
	require.Greater(t, changed.Epoch, told.Epoch)
	require.Len(t, e.offers.made, 1)
}

// Regions that peers may not touch are in no description, so peers that know it have nothing to ask for.
func TestALocalRegionChangesNoDescription(t *testing.T) {
	e := &Engine{}
	register := func(allows mem.Permission) *region {
		r := testRegion(0x1000, 64)
		r.ID, r.Permission = e.regions.reserve(), allows
		require.Nil(t, e.regions.add(r))
		return r
	}
	known := e.describedEpoch()
	local := register(mem.LocalReadWrite)
	require.Equal(t, known, e.describedEpoch())
	offered := register(mem.GlobalReadOnly)
	require.Greater(t, e.describedEpoch(), known)
	known = e.describedEpoch()
	e.regions.leave(local.ID)
	require.Equal(t, known, e.describedEpoch())
	e.regions.leave(offered.ID)
	require.Greater(t, e.describedEpoch(), known)
}

// A peer that takes updates knows the same as one that asks for everything, after any changes and however many of them
// it has missed.
func TestUpdatesAddUpToTheWholeDescription(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	own, err := security.Open(security.Settings{})
	require.NoError(t, err)
	e := &Engine{credentials: own}
	var open []*region
	change := func() {
		switch do := random.IntN(4); {
		case do > 1 || len(open) == 0:
			r := testRegion(uintptr(0x1000+random.IntN(1<<20)*64), uint64(64+random.IntN(4)*64))
			r.ID, r.Permission = e.regions.reserve(), mem.Permission(random.IntN(3))
			require.Nil(t, e.regions.add(r))
			open = append(open, r)
		case do == 1:
			e.regions.touch(open[random.IntN(len(open))].ID)
		default:
			i := random.IntN(len(open))
			closed := e.regions.leave(open[i].ID)
			require.True(t, e.regions.outOfReach(closed))
			e.regions.giveBack(closed.ID)
			open = slices.Delete(open, i, i+1)
		}
	}
	decode := func(offer *control.Offer) *segment.Description {
		d, err := segment.Decode(offer.Encoded)
		require.NoError(t, err)
		return d
	}
	known, updates := decode(e.offer("", 0, true)), 0
	for range 2000 {
		for range random.IntN(8) {
			change()
		}
		offer := e.offer("", known.Epoch, true)
		if offer == nil {
			require.Equal(t, e.describedEpoch(), known.Epoch)
			continue
		}
		fresh := decode(offer)
		if offer.Since != 0 {
			require.Equal(t, known.Epoch, offer.Since)
			var closed []uint64
			for _, id := range offer.Closed {
				closed = append(closed, uint64(id))
			}
			fresh, err = known.Updated(fresh, closed)
			require.NoError(t, err)
			updates++
		}
		known = fresh
		require.True(t, bytes.Equal(segment.Encode(e.description(rights("").sees), true), segment.Encode(known, true)))
	}
	require.Greater(t, updates, 100, "else this test has tested nothing")
}

// A change of one region among thousands sends that region alone, to every peer that knew the description before it.
func TestAChangeSendsTheChangedRegionAlone(t *testing.T) {
	own, err := security.Open(security.Settings{})
	require.NoError(t, err)
	e := &Engine{credentials: own}
	var first *region
	for i := range 5000 {
		r := testRegion(uintptr(0x1000+i*64), 64)
		r.ID, r.Permission = e.regions.reserve(), mem.GlobalReadWrite
		require.Nil(t, e.regions.add(r))
		if first == nil {
			first = r
		}
	}
	whole, known := e.offer("", 0, true), e.describedEpoch()
	require.Zero(t, whole.Since)
	e.regions.touch(first.ID)
	update := e.offer("", known, true)
	require.Same(t, update, e.offer("", known, true), "made once for all")
	require.Equal(t, known, update.Since)
	require.Empty(t, update.Closed)
	require.Less(t, len(update.Encoded), 512)
	require.Greater(t, len(whole.Encoded), 5000*5)
	require.Zero(t, e.offer("", known, false).Since, "a peer of an older version gets all regions")
	e.regions.leave(first.ID)
	require.Equal(t, []mem.RegionID{first.ID}, e.offer("", known, true).Closed)
}

// The log of changes has a bound. A peer that comes after a long time gets all regions.
func TestTheLogOfChangesForgetsTheOldest(t *testing.T) {
	var l regionLog
	const count = 5 * regionLogMax
	for i := range count {
		l.add(mem.RegionID(i + 1))
		require.LessOrEqual(t, len(l.ids), 2*regionLogMax)
	}
	ids, complete := l.since(count - 3)
	require.True(t, complete)
	require.Equal(t, []mem.RegionID{count - 2, count - 1, count}, ids)
	_, complete = l.since(0)
	require.False(t, complete)
	_, complete = l.since(count + 1)
	require.False(t, complete, "a number of another engine")
	ids, complete = l.since(count)
	require.True(t, complete)
	require.Empty(t, ids)
}
