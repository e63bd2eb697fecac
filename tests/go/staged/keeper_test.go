//go:build cgo

package staged

import (
	"bytes"
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/segment"
	"github.com/tent-engine/tent/gocore/transport"
)

// keeper is an engine that carries orders out. It has a region of a device for each right.
type keeper struct {
	*engine.Engine
	t       *testing.T
	line    *line
	regions map[string]*kept
}

// kept is a region, and the bytes that it and its bands must have.
type kept struct {
	memory
	id   mem.RegionID
	must []byte
}

// newKeeper opens one. Its regions are for all peers, for all to read, for one peer, and for none.
func newKeeper(t *testing.T, friend *asker) *keeper {
	k := &keeper{t: t, regions: make(map[string]*kept)}
	k.Engine, k.line = tapped(t)
	for i, m := range []engine.Memory{{Name: "cache", Permission: mem.GlobalReadWrite},
		{Name: "shown", Permission: mem.GlobalReadOnly},
		{Name: "theirs", Permission: mem.GlobalReadWrite, Peers: []string{friend.name()}},
		{Name: "own"}} {
		r := &kept{must: pattern(uint64(20+i), size+2*band)}
		var err error
		r.memory, err = fill(i%2, uint64(20+i))
		require.NoError(t, err)
		m.Addr, m.Size, m.Location = r.at+band, size, mem.Wildcard
		r.id, err = k.Register(m)
		require.NoError(t, err)
		t.Cleanup(func() { release(t, k.Engine, r.memory, r.id) })
		k.regions[m.Name] = r
	}
	return k
}

// unchanged checks every byte of all regions and their bands.
func (k *keeper) unchanged(why string) {
	k.t.Helper()
	for name, r := range k.regions {
		require.True(k.t, bytes.Equal(r.must, r.mustAll(k.t)()), "%s: the region %q changed", why, name)
	}
}

// settles ends an attack: no slot is held any more, and bytes that come late would show.
func (k *keeper) settles(friend *asker, why string) {
	k.t.Helper()
	awaitSlots(k.t, k.Engine)
	k.unchanged(why)
	k.warm(friend)
	k.unchanged(why + ", afterwards")
}

// warm carries one order out, so that the keeper has its pools.
func (k *keeper) warm(friend *asker) {
	k.t.Helper()
	require.Equal(k.t, errs.OK, friend.gives(k, friend.order(transport.Read, friend.knows(k)["shown"], 4096)))
}

// awaitFree waits until at most a number of the keeper's slots are free.
func (k *keeper) awaitFree(most float64) {
	k.t.Helper()
	for end := time.Now().Add(patience); k.Metrics()["tent_staging_slots_free"] > most; runtime.Gosched() {
		require.Less(k.t, time.Now(), end, "orders hold too few slots")
	}
}

// awaitChange waits until the first bytes of the region are other ones.
func (r *kept) awaitChange(t *testing.T) {
	t.Helper()
	first := make([]byte, 64)
	for end := time.Now().Add(patience); ; runtime.Gosched() {
		require.NoError(t, r.by.bare.Peek(first, r.at+band))
		if !bytes.Equal(first, r.must[band:][:len(first)]) {
			return
		}
		require.Less(t, time.Now(), end, "nothing has landed")
	}
}

func regionsOf(t *testing.T, e *engine.Engine, at engine.SegmentID) []segment.Region {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	info, err := e.Segment(ctx, at, true)
	require.NoError(t, err)
	return info.Regions
}
