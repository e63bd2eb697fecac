package rdma

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/rdma/verbs"
)

// TestNoREADSharesAQueuePairWithWRITEsOfSoftRoCE writes and reads in turn over a device that reports such READs as done
// halfway.
func TestNoREADSharesAQueuePairWithWRITEsOfSoftRoCE(t *testing.T) {
	r := newRigOver(t, 1, nil, "soft 1")
	rail := r.c.Rail(t)
	for class := range uint8(3) {
		for _, op := range []transport.Op{transport.Write, transport.Read, transport.Write} {
			from, to := r.local, r.remote.Operand
			if op == transport.Read {
				from, to = to, from
			}
			from.Fill(uint64(10+class), 0, rigSize)
			to.Fill(before, 0, rigSize)
			s := r.c.Slice(op, rail, r.local, 0, r.remote, 0, rigSize)
			s.Class = class
			r.c.Must(t, s)
			require.NoError(t, to.Check(uint64(10+class), 0, 0, rigSize), "%v of class %d", op, class)
		}
	}
	require.Empty(t, r.downs.all())
}

// TestALaneThatIsConnectedAnewHasAnotherQueuePair holds at both ends, so that packets of before find nobody.
func TestALaneThatIsConnectedAnewHasAnotherQueuePair(t *testing.T) {
	r := newRigOver(t, 1, nil)
	numbers := func() (list []uint32) {
		l := r.a.Transport.(*Transport).links.Lookup(r.c.Link)
		rail := l.rail(0)
		rail.mu.Lock()
		for _, each := range rail.lanes {
			list = append(list, each.pair.Number)
		}
		rail.unlock()
		for _, g := range r.b.Transport.(*Transport).guests.all(transport.ID{}) {
			g.mu.Lock()
			for _, each := range g.rails[0].lanes {
				list = append(list, each.pair.Number)
			}
			g.mu.Unlock()
		}
		return list
	}
	first := numbers()
	r.f.Control(t, "event fake0 %d", verbs.PortFailed)
	await(t, "the rail is down", func() bool { return len(r.downs.all()) > 0 })
	r.works(t)
	await(t, "the rail is up again", func() bool { return r.rails() == 1 })
	for _, number := range numbers() {
		require.NotContains(t, first, number)
	}
}

// TestLanesThatHoldSlicesAreMendedFirst breaks a rail of which one lane holds a slice, and looks while the goroutine of
// the rail may not touch queue pairs yet. Later all lanes are others than before.
func TestLanesThatHoldSlicesAreMendedFirst(t *testing.T) {
	r := newRigOver(t, 1, nil)
	rail := r.a.Transport.(*Transport).links.Lookup(r.c.Link).rail(0)
	r.f.Control(t, "silence fake0 1")
	s := r.slice(t, r.c.Rail(t), 0, 4096)
	rail.work.Lock()
	require.Equal(t, 1, r.c.Submit(s))
	rail.mu.Lock()
	holder, pairs := rail.opOf(s).lane, make([]*verbs.Pair, len(rail.lanes))
	for i, l := range rail.lanes {
		pairs[i] = l.pair
	}
	rail.unlock()
	r.f.Control(t, "event fake0 %d", verbs.PortFailed)
	await(t, "the rail is down", func() bool { return len(r.downs.all()) > 0 })
	require.Equal(t, []*lane{holder}, rail.nextBroken())
	require.Len(t, rail.broken(), len(rail.lanes))
	rail.work.Unlock()
	require.Equal(t, errs.Lost, r.c.Wait(t, s)[0].Err.Code)
	r.f.Control(t, "silence fake0 0")
	await(t, "the rail is up again", func() bool { return r.rails() == 1 })
	require.Empty(t, rail.broken())
	rail.mu.Lock()
	for i, l := range rail.lanes {
		require.NotSame(t, pairs[i], l.pair)
	}
	rail.unlock()
	r.works(t)
}

// TestLanesOfAnUnprovedRailHaveOneAddress fails to connect a lane while the address of the others is not proved. The
// next try may take another address, and the proof of one lane would say nothing about the others.
func TestLanesOfAnUnprovedRailHaveOneAddress(t *testing.T) {
	r := newRigOver(t, 1, nil)
	rail := r.a.Transport.(*Transport).links.Lookup(r.c.Link).rail(0)
	rail.work.Lock() // nothing is connected meanwhile
	r.alone.Store(true)
	rail.mu.Lock()
	rail.proving = true
	pair := rail.lanes[0].pair
	rail.lanes[1].failLocked(errs.New(errs.Lost, Name, "test").WithScope(errs.ScopeRail, errs.SidePath))
	rail.mendLocked()
	rail.unlock()
	rail.work.Unlock()
	await(t, "the lane that works is connected anew", func() bool {
		rail.mu.Lock()
		defer rail.unlock()
		return !rail.lanes[0].works
	})
	r.alone.Store(false)
	await(t, "the rail is up again", func() bool { return r.rails() == 1 && len(rail.broken()) == 0 })
	rail.mu.Lock()
	require.NotSame(t, pair, rail.lanes[0].pair)
	require.False(t, rail.proving)
	rail.unlock()
	r.works(t)
}

// TestARegionOfManyRegistrationsIsOne moves over their borders, which lie elsewhere at either end, at odd places and in
// pieces. Every byte is looked at, also those beside the ranges.
func TestARegionOfManyRegistrationsIsOne(t *testing.T) {
	ends := 0
	r := newRigOver(t, 1, func(s *Settings) {
		s.Cut, s.Block = []uint64{64 << 10, 96 << 10}[ends%2], 1<<20
		ends++
	})
	owner := r.b.Transport.(*Transport).regions.Lookup(r.remote.Operand.Key).keys.Load()
	require.Len(t, owner.remote[0].parts, 11)
	require.Len(t, r.a.Transport.(*Transport).regions.Lookup(r.local.Key).keys.Load().local[0].parts, 16)
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		from, to := r.local, r.remote.Operand
		if op == transport.Read {
			from, to = to, from
		}
		for _, each := range []struct{ at, bytes uint64 }{{0, rigSize}, {1, rigSize - 2}, {64<<10 - 1, 2},
			{96<<10 - 3, 7}, {190_001, 500_003}, {rigSize - 1, 1}} {
			from.Fill(moved, 0, rigSize)
			to.Fill(before, 0, rigSize)
			r.c.Must(t, r.c.Slice(op, r.c.Rail(t), r.local, each.at, r.remote, each.at, each.bytes))
			require.NoError(t, to.Check(moved, each.at, each.at, each.bytes), "%v of %v", op, each)
			require.NoError(t, to.Check(before, 0, 0, each.at), "before %v", each)
			end := each.at + each.bytes
			require.NoError(t, to.Check(before, end, end, rigSize-end), "behind %v", each)
		}
	}
}

// TestDescriptorsOfTooManyPartsAreRefused has others, too, of which bytes and parts do not fit together.
func TestDescriptorsOfTooManyPartsAreRefused(t *testing.T) {
	r := newRigOver(t, 1, func(s *Settings) { s.Cut = 64 << 10 })
	d := r.remote.Operand.Descriptor
	id := r.b.Transport.(*Transport).self.ID
	whole, bad := decode(d, id)
	require.Nil(t, bad)
	require.Len(t, whole.keys[0].parts, rigSize>>16)
	const size, cut = 1 + 16 + 8 + 4, 1 + 16 + 8 + 4 + 8
	for name, change := range map[string]func(transport.Descriptor){
		"no bytes":       func(d transport.Descriptor) { clear(d[size : size+8]) },
		"parts of 0":     func(d transport.Descriptor) { clear(d[cut : cut+8]) },
		"parts of 1":     func(d transport.Descriptor) { clear(d[cut : cut+8]); d[cut] = 1 },
		"larger parts":   func(d transport.Descriptor) { d[cut+7] = 0x7f },
		"endless region": func(d transport.Descriptor) { copy(d[size:], "\xff\xff\xff\xff\xff\xff\xff\xff") },
		"both are endless": func(d transport.Descriptor) {
			copy(d[size:], "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff")
		},
	} {
		changed := slices.Clone(d)
		change(changed)
		_, bad := decode(changed, id)
		require.NotNil(t, bad, name)
	}
}

// TestADescriptorNamesThePartsOfTwiceTheDevices: of those that are there, and of as many that come later. The parts of
// a region are larger where it would be too long, and never more than a peer takes.
func TestADescriptorNamesThePartsOfTwiceTheDevices(t *testing.T) {
	for devices := 1; devices <= devicesMax; devices++ {
		for _, asked := range []uint64{64 << 10, 2 << 30} {
			for bits := range 63 {
				bytes := uint64(1)<<bits + uint64(devices)
				cut := cutOf(bytes, asked, devices)
				parts := partsOf(bytes, cut)
				require.LessOrEqual(t, parts, uint64(partsMost))
				room := describedHead + min(2*devices, devicesMax)*(1+4*int(parts)+1)
				require.LessOrEqual(t, room, transport.DescriptorMax, "%d bytes in %d parts", bytes, parts)
				require.Zero(t, cut%uint64(unix.Getpagesize()))
				if room := min(max(4, 2*devices), devicesMax); cut > asked {
					more := int(partsOf(bytes, cut-uint64(unix.Getpagesize())))
					longer := describedHead + room*(1+4*more+1)
					require.Greater(t, longer, transport.DescriptorMax, "%d bytes in parts of %d", bytes, cut)
				}
			}
		}
	}
	require.Equal(t, uint64(2<<30), cutOf(1<<40, 2<<30, 8), "a TiB on eight devices")
}

// TestARegionOfManyPartsIsReachedOverManyDevices: its descriptor would be too long in the parts that are asked for.
func TestARegionOfManyPartsIsReachedOverManyDevices(t *testing.T) {
	const bytes = 80 << 20
	r := newRigOver(t, 8, func(s *Settings) { s.Cut = 64 << 10 })
	operand := r.b.Register(t, bytes, mem.GlobalReadWrite)
	require.LessOrEqual(t, len(operand.Descriptor), transport.DescriptorMax)
	remote := r.c.Import(t, operand)
	operand.Fill(before, 0, bytes)
	for i, rail := range r.c.Rails() {
		at := uint64(i) * (bytes / 8)
		r.c.Must(t, r.c.Slice(transport.Write, rail, r.local, 0, remote, at, rigSize))
		require.NoError(t, operand.Check(moved, 0, at, rigSize), "over %s", r.over(rail))
	}
}

// TestARegistrationThatFailsInTheMiddleLeavesNothing fails one of many parts; nothing stays pinned.
func TestARegistrationThatFailsInTheMiddleLeavesNothing(t *testing.T) {
	r := newRigOver(t, 1, func(s *Settings) { s.Cut = 64 << 10 })
	before := r.f.Control(t, "objects")
	r.f.Control(t, "register 1")
	own := r.remote.Operand // the same memory another time
	_, _, err := r.b.Transport.Register(t.Context(), mem.Region{ID: 99, Addr: own.Addr, Size: rigSize,
		Location: "cpu:0", Permission: mem.GlobalReadWrite})
	require.ErrorContains(t, err, "no device takes the memory")
	require.Equal(t, before, r.f.Control(t, "objects"), "registrations of the other parts are left")
}

// TestALaneMovesWhenATickSeesThatItDid asks a lane on which some requests came back between two looks.
func TestALaneMovesWhenATickSeesThatItDid(t *testing.T) {
	l := lane{tail: 7}
	for _, step := range []struct {
		tail       uint32
		now, moved clock.Time
	}{{7, 10, 10}, {7, 20, 10}, {9, 30, 30}, {9, 40, 30}} {
		l.tail = step.tail
		require.Equal(t, step.moved, l.movesLocked(step.now))
	}
}

// underWay is a rail that has fallen silent under a slice.
func underWay(t *testing.T) (*rig, *rail, *transport.Slice) {
	r := newRigOver(t, 1, func(s *Settings) { s.Timeout, s.Retries = 14, 6 })
	r.f.Control(t, "silence fake0 1")
	s := r.slice(t, r.c.Rail(t), 0, 4096)
	require.Equal(t, 1, r.c.Submit(s))
	return r, r.first(), s
}

// TestACompletionOfAnEarlierLifeEndsNothing: turns begin anew with each life of a lane, and a NIC may report late.
func TestACompletionOfAnEarlierLifeEndsNothing(t *testing.T) {
	r, rail, s := underWay(t)
	rail.mu.Lock()
	l := rail.opOf(s).lane
	id := uint64(l.number)<<48 | uint64(l.life)<<32 | uint64(l.head-1)
	for _, other := range []uint64{id - 1<<32, id + 1<<32, id - 1 - 1<<32, id + 1} { // of before, or of no request yet
		l.doneLocked(&verbs.WC{ID: other})
	}
	require.NotEqual(t, l.head, l.tail)
	require.True(t, l.works)
	require.Positive(t, rail.opOf(s).out)
	rail.unlock()
	require.Zero(t, r.w.Ended(s))
	r.f.Control(t, "silence fake0 0")
	require.Nil(t, r.c.Wait(t, s)[0].Err)
}

// TestAPostingThatTheDeviceRefusesCostsItsLaneAlone: some of it may be under way, so another queue pair follows.
func TestAPostingThatTheDeviceRefusesCostsItsLaneAlone(t *testing.T) {
	r := newRigOver(t, 1, nil)
	rail := r.c.Rail(t)
	r.f.Control(t, "post 1")
	s := r.slice(t, rail, 0, 4096)
	require.Equal(t, 1, r.c.Submit(s))
	end := r.c.Wait(t, s)[0]
	require.NotNil(t, end.Err)
	require.Equal(t, errs.SideLocal, end.Err.Side)
	r.works(t)
	require.Empty(t, r.first().broken())
}

// TestASliceIsFoundByItsNumberToo: the core uses the memory of one again.
func TestASliceIsFoundByItsNumberToo(t *testing.T) {
	r, rail, s := underWay(t)
	other := *s
	rail.mu.Lock()
	require.NotNil(t, rail.opOf(s))
	require.Nil(t, rail.opOf(&other))
	s.Id++
	require.Nil(t, rail.opOf(s))
	s.Id--
	rail.unlock()
	r.f.Control(t, "silence fake0 0")
	require.Nil(t, r.c.Wait(t, s)[0].Err)
}

// TestARailThatIsBeingAnnouncedOwesReady for the slices that come before the core has heard of it.
func TestARailThatIsBeingAnnouncedOwesReady(t *testing.T) {
	r := newRigOver(t, 1, nil)
	rail := r.first()
	rail.mu.Lock()
	rail.state = announced
	rail.unlock()
	require.Zero(t, r.a.Transport.Submit([]*transport.Slice{r.slice(t, r.c.Rail(t), 0, 4096)}))
	rail.mu.Lock()
	require.True(t, rail.starved)
	rail.state = up
	rail.unlock()
	r.works(t)
}

// TestARailWithSlicesOutKeepsItsQueuePairs, also where it was asked to leave its place a moment before they came.
func TestARailWithSlicesOutKeepsItsQueuePairs(t *testing.T) {
	r, rail, s := underWay(t)
	rail.mu.Lock()
	rail.leaving = true
	rail.unlock()
	rail.sleep()
	rail.mu.Lock()
	rail.leaving = false
	require.NotNil(t, rail.opOf(s).lane.pair)
	require.True(t, rail.opOf(s).lane.works)
	rail.unlock()
	r.f.Control(t, "silence fake0 0")
	require.Nil(t, r.c.Wait(t, s)[0].Err)
}

// TestASmallWRITEOfMemoryThatIsGoneFailsAlone takes memory away between slices, with bytes that would travel inside of
// work requests. The library reads those by the processor: a fault in C would end the process.
func TestASmallWRITEOfMemoryThatIsGoneFailsAlone(t *testing.T) {
	r := newRigOver(t, 1, nil)
	rail, page := r.c.Rail(t), uint64(unix.Getpagesize())
	gone := r.a.Register(t, 4*page, mem.LocalReadWrite)
	from := (uint64(gone.Addr)+page-1)&^(page-1) - uint64(gone.Addr) // the first byte of a page
	pages := mem.Bytes(gone.Addr+uintptr(from), int(page))
	require.NoError(t, unix.Mprotect(pages, unix.PROT_NONE))
	var list []*transport.Slice
	for at := uint64(0); at < 6*8; at += 16 {
		list = append(list, r.c.Slice(transport.Write, rail, r.local, at, r.remote, at, 8),
			r.c.Slice(transport.Write, rail, gone, from+at, r.remote, at+8, 8))
	}
	pieces := &transport.Pieces{Bytes: 8, LocalAt: []uint64{0, 8, from - 8, from},
		RemoteAt: []uint64{100, 108, 116, 124}}
	half := r.c.Slice(transport.Write, rail, gone, 0, r.remote, 0, 4*8) // three pieces are there
	half.Pieces, half.Local, half.Remote = pieces, gone.Addr, 0
	list = append(list, half, r.c.Slice(transport.Write, rail, r.local, 200, r.remote, 200, 8))
	require.Equal(t, len(list), r.c.Send(list...))
	for i, end := range r.c.Wait(t, list...) {
		if end.Slice.LocalKey != gone.Key {
			require.Nil(t, end.Err, "slice %d", i)
			continue
		}
		require.NotNil(t, end.Err, "slice %d", i)
		require.Equal(t, errs.AddressNotRegistered, end.Err.Code)
		require.Equal(t, errs.ScopeSlice, end.Err.Scope)
		require.Equal(t, errs.SideLocal, end.Err.Side)
		require.Zero(t, end.Bytes)
	}
	require.NoError(t, r.remote.Check(moved, 0, 0, 8))
	require.NoError(t, r.remote.Check(before, 8, 8, 8))
	require.NoError(t, r.remote.Check(moved, 200, 200, 8))
	require.NoError(t, unix.Mprotect(pages, unix.PROT_READ|unix.PROT_WRITE))
	require.Contains(t, r.c.Rails(), rail, "the rail has lived through it")
	require.Empty(t, r.downs.all())
	require.NotZero(t, r.f.Control(t, "inlined"))
}
