package engine

import (
	"context"
	"math"
	"math/rand"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

func testRegion(addr uintptr, size uint64) *region {
	return &region{engine: new(Engine), Region: mem.Region{Addr: addr, Size: size}}
}

// opened adds a region under the next number.
func (t *regionTable) opened(test testing.TB, addr uintptr, size uint64) *region {
	r := testRegion(addr, size)
	r.ID = t.reserve()
	if err := t.add(r); err != nil {
		test.Fatal(err)
	}
	return r
}

// closed takes a region out, and gives its number back.
func (t *regionTable) closed(test testing.TB, r *region) {
	if t.leave(r.ID) != r || !t.outOfReach(r) {
		test.Fatal("not closed")
	}
	t.giveBack(r.ID)
}

// A look-up that runs beside the registration of an overlapping region sees the table before it or after it. It never
// sees a mix that misses a region which is open all the time.
func TestLookUpBesideARegistrationNeverMissesAnOpenRegion(t *testing.T) {
	var table regionTable
	outer := table.opened(t, 0x10000, 0x10000)
	var registrations atomic.Int64
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			table.closed(t, table.opened(t, 0x12000, 0x1000))
			registrations.Add(1)
		}
	}()
	misses := 0
	for registrations.Load() < 20_000 && misses == 0 {
		for range 1000 {
			if table.find(0x18000, 0x100) != outer {
				misses++
			}
		}
	}
	close(stop)
	<-stopped
	require.Zero(t, misses, "look-ups that missed a region which was open all the time")
}

// find agrees with a plain search over all regions, with and without overlaps.
func TestFindReturnsTheSmallestRegionThatHoldsTheRange(t *testing.T) {
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewSource(seed))
	for range 200 {
		var table regionTable
		var all []*region
		for range 1 + random.Intn(12) {
			r := table.opened(t, uintptr(0x1000+random.Intn(64)*64), uint64(1+random.Intn(512)))
			r.ReadOnly = random.Intn(3) == 0
			all = append(all, r)
		}
		for range 100 {
			addr, length := uintptr(0xf00+random.Intn(80*64)), uint64(1+random.Intn(128))
			op, best := transport.Op(random.Intn(2)), uint64(0)
			for _, r := range all {
				if r.holds(addr, length) && (best == 0 || r.Size < best) && (op == transport.Write || !r.ReadOnly) {
					best = r.Size
				}
			}
			got := table.findFor(op, addr, length)
			if best == 0 {
				require.Nil(t, got)
				continue
			}
			require.NotNil(t, got)
			require.Equal(t, best, got.Size)
			require.True(t, got.holds(addr, length))
			require.False(t, op == transport.Read && got.ReadOnly)
		}
	}
}

// Two regions that are registered beside each other under one name: the second one to be ready leaves no key behind.
func TestARegionWhoseNameIsTakenMeanwhileLeavesNoKey(t *testing.T) {
	w := newWorkshop(t, "hand")
	h := w.hands[0]
	b := make([]byte, 4096)
	late := Memory{Addr: uintptr(unsafe.Pointer(&b[0])), Size: 4096, Name: "kv", Location: "cpu:0"}
	h.enter = func(r mem.Region) error {
		if r.Size == late.Size {
			w.region("kv")
		}
		return nil
	}
	_, err := w.Register(late)
	require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, "in use")
	h.locked(func() { require.Len(t, h.keys, 1) })
	h.enter, late.Name = nil, "other"
	id, err := w.Register(late)
	require.NoError(t, err)
	require.NotNil(t, w.regions.get(id))
	clear(b)
}

// The numbers of a place for regions come again, and none is 0: that stands for an address.
func TestNumbersOfRegionsComeAgain(t *testing.T) {
	table := &regionTable{}
	table.giveBack(table.reserve())
	table.slots[0].generation = math.MaxUint32 - 1
	for _, want := range []mem.RegionID{math.MaxUint32 << 32, 1 << 32, 2 << 32} {
		id := table.reserve()
		require.Equal(t, want, id)
		table.giveBack(id)
	}
}

// unmapper takes memory back in place of the engine, and counts.
type unmapper struct{ regions int }

func (u *unmapper) Free(r mem.Region) error {
	u.regions++
	return unix.MunmapPtr(mem.Pointer(r.Addr), uintptr(r.Size))
}

// Memory that is freed while a transfer reads it stays mapped, with its bytes, until that has ended. Then it goes back.
func TestFreedMemoryGoesBackBehindItsLastTransfer(t *testing.T) {
	w := newWorkshop(t, "hand")
	h, far := w.hands[0], w.region("far")
	id, _, err := w.Allocate(Memory{Size: 1 << 16, Location: "cpu:0"})
	require.NoError(t, err)
	own, back := w.regions.get(id), &unmapper{}
	own.owner = back
	bytes := mem.Bytes(own.Addr, 1<<16)
	for i := range bytes {
		bytes[i] = byte(i % 251)
	}
	request := w.request(own, far)
	batch, err := w.Move(&request)
	require.NoError(t, err)
	require.Error(t, w.FreeMemory(id), "it is open")
	require.NoError(t, w.CloseRegion(t.Context(), id))
	require.NoError(t, w.FreeMemory(id))
	require.Zero(t, back.regions)
	for i := range bytes {
		require.Equal(t, byte(i%251), bytes[i])
	}
	h.complete(nil)
	require.Equal(t, dispatch.Completed, w.Wait(batch, patience))
	require.Empty(t, w.regions.retire.wait(t.Context()))
	require.Equal(t, 1, back.regions)
	require.Equal(t, errs.InvalidEntry, errs.CodeOf(w.FreeMemory(id)), "it is freed once")
}

// A task of before a fence must not find a way over a transport that was late. So that one gets all fences first, also
// those that come while others are repeated.
func TestFencesHoldOnATransportThatRegistersLate(t *testing.T) {
	quick, slow := newHand("quick"), &pinning{newHand("slow"), make(chan struct{}), nil}
	w := newWorkshopOver(t, []*hand{quick, slow.hand}, handFactory{quick}, handFactory{slow})
	w.config.Engine.RegisterWait = time.Millisecond
	r := w.region("kv")
	fence := func() error { return w.FenceRegion(context.Background(), r.ID, "") }
	first := fence()
	usable, second := false, error(nil)
	slow.inside = func() {
		usable = usable || r.key(1) != 0
		if len(quick.revokes) == 1 {
			second = fence()
		}
	}
	close(slow.registers)
	require.NoError(t, r.awaitSettled(t.Context()))
	require.NoError(t, first)
	require.NoError(t, second)
	require.NotZero(t, r.key(1))
	require.Equal(t, []transport.Epoch{1, 2}, quick.revokes)
	require.Equal(t, []transport.Epoch{1, 2}, slow.revokes)
	require.False(t, usable, "it was usable before its fences")
}
