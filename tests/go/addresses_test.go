package tests

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// A cache in several regions on both sides, with ranges that are known by address.
type cache struct {
	here, there *engine.Engine
	at          engine.SegmentID
	own, theirs []guarded
	offered     []mem.RegionID // theirs
}

const (
	cacheRegions = 5
	cacheSlots   = 64
	slotBytes    = 1024
)

func newCache(t *testing.T, w world) *cache {
	c := &cache{here: w.open(t, nil), there: w.open(t, nil)}
	for range cacheRegions {
		own, theirs := newGuarded(t, cacheSlots*slotBytes), newGuarded(t, cacheSlots*slotBytes)
		offer(t, c.here, own.bytes, "")
		c.offered = append(c.offered, offer(t, c.there, theirs.bytes, string(rune('a'+len(c.theirs)))))
		c.own, c.theirs = append(c.own, own), append(c.theirs, theirs)
	}
	c.at = segment(t, c.here, c.there, "")
	return c
}

// slot is the address of a slot of a side; slots count through its regions.
func slot(side []guarded, i int) int64 {
	return int64(address(side[i/cacheSlots].bytes)) + int64(i%cacheSlots*slotBytes)
}

func content(side []guarded, i, length int) []byte {
	return side[i/cacheSlots].bytes[i%cacheSlots*slotBytes:][:length]
}

// chosen draws n slots of each side at random, none of them twice, and a length for each.
func chosen(random *rand.Rand, n, lengths int) (near, far []int, bytes []int64) {
	near, far = random.Perm(cacheRegions * cacheSlots)[:n], random.Perm(cacheRegions * cacheSlots)[:n]
	for range n {
		bytes = append(bytes, int64(1+random.IntN(lengths)))
	}
	return near, far, bytes
}

// moved checks a transfer of ranges, and that nothing beside them has changed.
func (c *cache) moved(t *testing.T, op transport.Op, near, far []int, bytes []int64, move func()) {
	t.Helper()
	from, to, source, target := near, far, c.own, c.theirs
	if op == transport.Read {
		from, to, source, target = far, near, c.theirs, c.own
	}
	for i := range source {
		fill(source[i].bytes, 100+i)
		fill(target[i].bytes, 200+i)
	}
	move()
	touched := map[int]int{}
	for i, s := range to {
		touched[s] = int(bytes[i])
		same(t, content(target, s, int(bytes[i])), 100+from[i]/cacheSlots, from[i]%cacheSlots*slotBytes)
	}
	for s := range cacheRegions * cacheSlots {
		rest := content(target, s, slotBytes)[touched[s]:]
		same(t, rest, 200+s/cacheSlots, s%cacheSlots*slotBytes+touched[s])
	}
	for i := range target {
		target[i].check(t)
	}
}

func addresses(side []guarded, slots []int) (list []int64) {
	for _, s := range slots {
		list = append(list, slot(side, s))
	}
	return list
}

func TestRangesGoByAddressThroughManyRegions(t *testing.T) {
	const seed = 23
	eachWorld(t, func(t *testing.T, w world) {
		c := newCache(t, w)
		random := rand.New(rand.NewPCG(seed, 0))
		t.Logf("seed %d", seed)
		for round, lengths := range []int{1, 3, slotBytes, 1, 3, slotBytes} {
			op := transport.Write
			if round > 2 {
				op = transport.Read
			}
			near, far, bytes := chosen(random, 200, lengths)
			c.moved(t, op, near, far, bytes, func() {
				id, err := c.here.Ranges(engine.Terms{Op: op}, &engine.Ranges{N: len(near),
					Remote:       engine.Remote{Segment: c.at},
					LocalOffsets: engine.IndexesOf(addresses(c.own, near)), Bytes: engine.IndexesOf(bytes),
					RemoteOffsets: engine.IndexesOf(addresses(c.theirs, far))}, nil)
				require.NoError(t, err)
				require.Equal(t, dispatch.Completed, ended(t, c.here, id).State)
			})
		}
	})
}

// The first range lies in a region that was closed and registered again in part. The second has the owner asked, and
// that region is another one behind it.
func TestARangeWhoseRegionGoesWhileItsCallAsksIsLookedUpAgain(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		c := newCache(t, w)
		later := newGuarded(t, slotBytes)
		require.NoError(t, c.there.CloseRegion(t.Context(), c.offered[1]))
		offer(t, c.there, c.theirs[1].bytes[:cacheSlots*slotBytes/2], "part")
		offer(t, c.there, later.bytes, "later")
		fill(c.own[0].bytes, 100)
		to := []int64{slot(c.theirs, cacheSlots+3), int64(address(later.bytes))}
		id, err := c.here.Ranges(engine.Terms{Op: transport.Write}, &engine.Ranges{N: 2,
			Remote:       engine.Remote{Segment: c.at},
			LocalOffsets: engine.IndexesOf([]int64{slot(c.own, 0), slot(c.own, 1)}),
			Bytes:        engine.IndexesOf([]int64{slotBytes, slotBytes}), RemoteOffsets: engine.IndexesOf(to)}, nil)
		require.NoError(t, err)
		require.Equal(t, dispatch.Completed, ended(t, c.here, id).State)
		same(t, content(c.theirs, cacheSlots+3, slotBytes), 100, 0)
		same(t, later.bytes, 100, slotBytes)
		c.theirs[1].check(t)
		later.check(t)
	})
}

// prepare makes address lists of all slots on both sides, with the same lengths.
func (c *cache) prepare(t testing.TB, bytes []int64) (near, far engine.GridID) {
	all := make([]int, cacheRegions*cacheSlots)
	for i := range all {
		all[i] = i
	}
	lengths := engine.IndexesOf(bytes)
	if len(bytes) == 1 {
		lengths.Stride = 0
	}
	near, err := c.here.NewAddresses(engine.OwnMemory, len(all), engine.IndexesOf(addresses(c.own, all)), lengths)
	require.NoError(t, err)
	far, err = c.here.NewAddresses(c.at, len(all), engine.IndexesOf(addresses(c.theirs, all)), lengths)
	require.NoError(t, err)
	n, err := c.here.GridPages(far)
	require.NoError(t, err)
	require.Equal(t, len(all), n)
	return near, far
}

func wide(list []int) (out []int64) {
	for _, v := range list {
		out = append(out, int64(v))
	}
	return out
}

func TestAnAddressListIsPostedByIndexes(t *testing.T) {
	const seed = 29
	eachWorld(t, func(t *testing.T, w world) {
		c := newCache(t, w)
		near, far := c.prepare(t, []int64{slotBytes})
		random := rand.New(rand.NewPCG(seed, 0))
		t.Logf("seed %d", seed)
		for _, op := range []transport.Op{transport.Write, transport.Read} {
			from, to, bytes := chosen(random, 150, 1)
			for i := range bytes {
				bytes[i] = slotBytes
			}
			c.moved(t, op, from, to, bytes, func() {
				id, err := c.here.Pages(engine.Terms{Op: op}, &engine.Pages{Local: near, Remote: far, N: len(from),
					Src: engine.IndexesOf(wide(from)), Dst: engine.IndexesOf(wide(to))}, nil)
				require.NoError(t, err)
				sum := ended(t, c.here, id)
				require.Equal(t, dispatch.Completed, sum.State)
				require.LessOrEqual(t, sum.Tasks, cacheRegions*cacheRegions, "ranges of a pair of regions are one task")
			})
		}
	})
}

func TestAListOfManyLengthsIsPostedToo(t *testing.T) {
	const slots = 5 // regions of the small cache below
	c := newCache(t, worlds()[0])
	lengths := make([]int64, cacheRegions*cacheSlots)
	for i := range lengths {
		lengths[i] = int64(i + 1) // more pairs than are gathered: each range is a task
	}
	near, far := c.prepare(t, lengths)
	all := make([]int, slots*cacheSlots)
	for i := range all {
		all[i] = len(all) - 1 - i
	}
	bytes := make([]int64, len(all))
	for i, s := range all {
		bytes[i] = lengths[s]
	}
	c.moved(t, transport.Write, all, all, bytes, func() {
		indexes := engine.IndexesOf(wide(all))
		id, err := c.here.Pages(engine.Terms{Op: transport.Write}, &engine.Pages{Local: near, Remote: far, N: len(all),
			Src: indexes, Dst: indexes}, nil)
		require.NoError(t, err)
		require.Equal(t, dispatch.Completed, ended(t, c.here, id).State)
	})
}

func TestFailedRangesOfAListAreNamedInTheOrderOfTheCall(t *testing.T) {
	c := newCache(t, worlds()[2])
	near, far := c.prepare(t, []int64{slotBytes})
	// The peer takes region "c" back; this side does not know it yet.
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(t, c.there.CloseRegion(ctx, c.offered[2]))
	from, to := []int{0, 1, 2, 3, 4, 5, 6, 7}, []int{0, 2*cacheSlots + 1, 70, 2*cacheSlots + 3, 4*cacheSlots + 2, 9,
		2*cacheSlots + 2, 300}
	id, err := c.here.Pages(engine.Terms{Op: transport.Write}, &engine.Pages{Local: near, Remote: far, N: len(from),
		Src: engine.IndexesOf(wide(from)), Dst: engine.IndexesOf(wide(to))}, nil)
	if err != nil { // it knows it: the call names the range
		require.ErrorContains(t, err, "[1]")
		return
	}
	require.True(t, c.here.Wait(id, patience).Terminal())
	out := make([]uint64, 8)
	n := c.here.Failed(id, out)
	require.Equal(t, []uint64{1, 3, 6}, out[:n])
	require.NoError(t, c.here.FreeBatch(id))
}

func TestWrongAddressesAreRefusedByIndex(t *testing.T) {
	c := newCache(t, worlds()[0])
	size := engine.IndexesOf([]int64{slotBytes})
	size.Stride = 0
	good := addresses(c.own, []int{0, 1, 2})
	near, err := c.here.NewAddresses(engine.OwnMemory, 3, engine.IndexesOf(good), size)
	require.NoError(t, err)
	for at, side := range map[engine.SegmentID][]guarded{engine.OwnMemory: c.own, c.at: c.theirs} {
		first := slot(side, 0)
		for wrong, list := range map[string][]int64{
			"[2]": {first, first + slotBytes, first - guard},
			"[1]": {first, first + cacheSlots*slotBytes - 1, first}, // leaves its region at the end
			"[0]": {-8, first, first},
		} {
			_, err := c.here.NewAddresses(at, 3, engine.IndexesOf(list), size)
			require.ErrorContains(t, err, wrong)
		}
	}
	_, err = c.here.NewAddresses(engine.OwnMemory, 0, engine.Indexes{Width: 8}, size)
	require.ErrorContains(t, err, "1 to 16777216 ranges")
	_, err = c.here.NewAddresses(c.at+1, 3, engine.IndexesOf(good), size)
	require.Equal(t, errs.InvalidEntry, errs.CodeOf(err), "%v", err)

	half := engine.IndexesOf([]int64{slotBytes / 2})
	half.Stride = 0
	far, err := c.here.NewAddresses(c.at, 3, engine.IndexesOf(addresses(c.theirs, []int{5, 6, 7})), half)
	require.NoError(t, err)
	both := engine.IndexesOf([]int64{1})
	_, err = c.here.Pages(engine.Terms{}, &engine.Pages{Local: near, Remote: far, N: 1, Src: both, Dst: both}, nil)
	require.ErrorContains(t, err, "has 1024 bytes here and 512 bytes there")
	beyond := engine.IndexesOf([]int64{3})
	_, err = c.here.Pages(engine.Terms{}, &engine.Pages{Local: near, Remote: far, N: 1, Src: beyond, Dst: both}, nil)
	require.ErrorContains(t, err, "source index [0] is 3, the grid has pages 0 to 2")
	pages, _, err := c.here.NewGrid(c.at, []engine.GridRegion{{Offset: uint64(slot(c.theirs, 0)), Size: slotBytes}},
		engine.Layout{PageBytes: slotBytes})
	require.NoError(t, err)
	_, err = c.here.Pages(engine.Terms{}, &engine.Pages{Local: near, Remote: pages, N: 1, Src: both, Dst: both}, nil)
	require.ErrorContains(t, err, "an address list goes with an address list")

	c.here.CloseGrid(near)
	_, err = c.here.Pages(engine.Terms{}, &engine.Pages{Local: near, Remote: far, N: 1, Src: both, Dst: both}, nil)
	require.Equal(t, errs.InvalidEntry, errs.CodeOf(err), "%v", err)
}

// BenchmarkPostOf16384Ranges measures the cost of posting for the caller: 64 layers of 256 blocks, layer by layer and
// block by block. It leaves out the wait.
func BenchmarkPostOf16384Ranges(b *testing.B) {
	const layers, blocks, bytes = 64, 256, 4096
	here, there := openTCP(b, nil), openTCP(b, nil)
	var near, far []int64
	for layer := range layers {
		own, theirs := memory(b, blocks*bytes), memory(b, blocks*bytes)
		offer(b, here, own, "")
		offer(b, there, theirs, "layer"+string(rune('A'+layer)))
		for block := range blocks {
			near = append(near, int64(address(own))+int64(block*bytes))
			far = append(far, int64(address(theirs))+int64(block*bytes))
		}
	}
	at := segment(b, here, there, "")
	size := engine.IndexesOf([]int64{bytes})
	size.Stride = 0
	local, err := here.NewAddresses(engine.OwnMemory, len(near), engine.IndexesOf(near), size)
	require.NoError(b, err)
	remote, err := here.NewAddresses(at, len(far), engine.IndexesOf(far), size)
	require.NoError(b, err)
	byLayer, byBlock := make([]int64, len(near)), make([]int64, len(near))
	for i := range byLayer {
		byLayer[i] = int64(i)
		byBlock[i] = int64(i%layers*blocks + i/layers)
	}
	for name, order := range map[string][]int64{"by layer": byLayer, "by block": byBlock} {
		shape := engine.Pages{Local: local, Remote: remote, N: len(near), Src: engine.IndexesOf(order),
			Dst: engine.IndexesOf(order)}
		b.Run("prepared, "+name, func(b *testing.B) {
			posted(b, here, func() (dispatch.BatchID, error) { return here.Pages(engine.Terms{}, &shape, nil) })
		})
	}
	ranges := engine.Ranges{N: len(near), Remote: engine.Remote{Segment: at}, LocalOffsets: engine.IndexesOf(near),
		RemoteOffsets: engine.IndexesOf(far), Bytes: size}
	b.Run("by address", func(b *testing.B) {
		posted(b, here, func() (dispatch.BatchID, error) { return here.Ranges(engine.Terms{}, &ranges, nil) })
	})
}

// posted times the post of a transfer without its course: the median, and the least.
func posted(b *testing.B, e *engine.Engine, post func() (dispatch.BatchID, error)) {
	var took []time.Duration
	for b.Loop() {
		begin := time.Now()
		id, err := post()
		took = append(took, time.Since(begin))
		require.NoError(b, err)
		require.Equal(b, dispatch.Completed, e.Wait(id, patience))
		require.NoError(b, e.FreeBatch(id))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "us/post")
	b.ReportMetric(float64(took[0].Microseconds()), "us/post-least")
}
