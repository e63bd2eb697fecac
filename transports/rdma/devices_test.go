package rdma

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

func TestTheIthDevicesMatchAndTheOthersAreAlternates(t *testing.T) {
	require.Equal(t, []pairing{{0, 0, false}, {1, 1, false}, {0, 1, true}, {1, 0, true}}, pairings(2, 2))
	require.Equal(t, []pairing{{0, 0, false}, {0, 1, false}, {0, 2, false}}, pairings(1, 3))
	for n := 1; n <= 9; n++ {
		for m := 1; m <= 9; m++ {
			list := pairings(n, m)
			require.Len(t, list, min(n*m, railsMax))
			seen := map[[2]int]bool{}
			for _, p := range list {
				require.False(t, seen[[2]int{p.here, p.there}], "%d and %d devices: %v comes twice", n, m, p)
				seen[[2]int{p.here, p.there}] = true
			}
		}
	}
}

// often looks for devices as often as a test likes.
func often(s *Settings) { s.Scan = 5 * time.Millisecond }

// upOver reports whether a rail from a device here is up.
func (r *rig) upOver(name string) bool {
	return slices.ContainsFunc(r.c.Rails(), func(rail transport.Rail) bool { return r.over(rail) == name })
}

func (r *rig) over(rail transport.Rail) string {
	return r.a.Transport.(*Transport).links.Lookup(r.c.Link).rail(rail.Index).device.name
}

// again imports the region of the peer as it is described now.
func (r *rig) again(t *testing.T) {
	t.Helper()
	b := r.b.Transport.(*Transport)
	operand := *r.remote.Operand
	operand.Descriptor = b.describe(b.regions.Lookup(operand.Key))
	r.remote = r.c.Import(t, &operand)
}

// passes requires that slices pass over all rails of a device here. One that has just come may go down once more, where
// the other end is slower to find its device again.
func (r *rig) passes(t *testing.T, device string, tag uint64) {
	t.Helper()
	r.local.Fill(tag, 0, rigSize)
	await(t, "slices that pass over "+device, func() bool {
		passed := 0
		for _, rail := range r.c.Rails() {
			if r.over(rail) != device {
				continue
			}
			s := r.slice(t, rail, 0, rigSize)
			if r.c.Submit(s) == 0 || r.c.Wait(t, s)[0].Err != nil {
				return false
			}
			passed++
		}
		return passed > 0
	})
	require.NoError(t, r.remote.Check(tag, 0, 0, rigSize))
}

// TestADeviceThatComesLaterIsUsed begins with one device. Regions of before are registered with the second one.
func TestADeviceThatComesLaterIsUsed(t *testing.T) {
	r := newRigOver(t, 1, often)
	require.False(t, r.upOver("fake1"))
	r.f.Control(t, "devices 2")
	await(t, "a rail of the new device", func() bool { return r.upOver("fake1") })
	await(t, "the descriptor of the peer", func() bool { return r.keysThere(1) })
	r.again(t)
	r.passes(t, "fake1", after)
	r.passes(t, "fake0", moved)
}

// keysThere reports whether the regions of both ends are registered with a device.
func (r *rig) keysThere(device int) bool {
	a, b := r.a.Transport.(*Transport), r.b.Transport.(*Transport)
	here := a.regions.Lookup(r.local.Key).keys.Load().own(device)
	there := b.regions.Lookup(r.remote.Operand.Key).keys.Load().own(device)
	return here != nil && there != nil && !here.device.lost.Load() && !there.device.lost.Load()
}

// TestADeviceThatReturnsServesNoKeyOfBefore takes a device out and brings it back, where it gives the same keys again.
// Slices by the descriptor of before move nothing.
func TestADeviceThatReturnsServesNoKeyOfBefore(t *testing.T) {
	r := newRig(t, often)
	r.f.Control(t, "reuse 1")
	a, b := r.a.Transport.(*Transport), r.b.Transport.(*Transport)
	for round := range 3 {
		objects := r.f.Control(t, "objects")
		first, theirs := a.nics()[1], b.nics()[1]
		r.f.Control(t, "dead fake1 1")
		await(t, "both ends to give the device back", func() bool {
			return a.nics()[1].given.Load() && b.nics()[1].given.Load()
		})
		require.Less(t, r.f.Control(t, "objects"), objects, "queue pairs and keys of the device are gone")
		r.works(t)
		r.f.Control(t, "dead fake1 0")
		await(t, "the device to be back", func() bool {
			return a.nics()[1] != first && b.nics()[1] != theirs && r.keysThere(1) && r.upOver("fake1")
		})
		r.local.Fill(uint64(10+round), 0, rigSize)
		r.remote.Fill(before, 0, rigSize)
		for _, rail := range r.c.Rails() {
			s := r.slice(t, rail, 0, 4096)
			if r.c.Submit(s) == 1 {
				end := r.c.Wait(t, s)[0]
				require.NotNil(t, end.Err, "a slice by a key of before, over %s", r.over(rail))
				require.Equal(t, errs.Replaced, end.Err.Code, "%v", end.Err)
			}
		}
		require.NoError(t, r.remote.Check(before, 0, 0, rigSize))
		r.again(t)
		r.passes(t, "fake1", uint64(20+round))
		r.local.Fill(moved, 0, rigSize)
	}
}

// TestAListThatFailsLosesNoDevice: looks at the list fail where the process has no descriptor left.
func TestAListThatFailsLosesNoDevice(t *testing.T) {
	r := newRig(t, often)
	registrations, looks := r.f.Control(t, "registrations"), r.f.Control(t, "looks")
	r.f.Control(t, "list 8")
	await(t, "more looks than those that fail", func() bool { return r.f.Control(t, "looks") > looks+12 })
	for _, tr := range []transport.Transport{r.a.Transport, r.b.Transport} {
		for _, d := range tr.(*Transport).nics() {
			require.False(t, d.lost.Load(), d.name)
		}
	}
	require.Empty(t, r.downs.all())
	require.Equal(t, registrations, r.f.Control(t, "registrations"))
	r.works(t)
}

// TestADeviceThatTwoLooksLackIsLost although its open context works, as that of one that was renamed.
func TestADeviceThatTwoLooksLackIsLost(t *testing.T) {
	r := newRig(t, often)
	here, there := r.a.Transport.(*Transport).nics()[1], r.b.Transport.(*Transport).nics()[1]
	r.f.Control(t, "devices 1")
	await(t, "the device to be given back by both", func() bool { return here.given.Load() && there.given.Load() })
	r.f.Control(t, "devices 2")
	await(t, "the device to be back", func() bool { return r.keysThere(1) && r.upOver("fake1") })
	r.again(t)
	r.passes(t, "fake1", after)
}

// TestOneLookThatLacksADeviceLosesNone: it may have another name in the next moment. A look that failed says nothing.
func TestOneLookThatLacksADeviceLosesNone(t *testing.T) {
	r := newRigOver(t, 1, func(s *Settings) { s.Scan = time.Hour })
	d := r.first().device
	failed := errors.New("no descriptor is left")
	for _, look := range []struct {
		listed bool
		failed error
		gone   bool
	}{{false, nil, false}, {true, nil, false}, {false, nil, false}, {false, failed, false}, {false, nil, false},
		{false, nil, true}} {
		require.Equal(t, look.gone, d.gone(look.listed, look.failed))
	}
}

// TestADeviceThatWasPulledComesBack: the kernel has ended all that it had, so calls that end something fail from then
// on, and its bells ring for good. Waiters sleep beside it.
func TestADeviceThatWasPulledComesBack(t *testing.T) {
	r := newRig(t, often)
	a, b := r.a.Transport.(*Transport), r.b.Transport.(*Transport)
	first, theirs := a.nics()[1], b.nics()[1]
	tags := a.Watch(nil, 0)
	require.Len(t, tags, 2)
	require.True(t, first.use(), "so that it is not given back before a look at its bells")
	r.f.Control(t, "pull fake1 1")
	await(t, "both ends to lose it", func() bool { return first.lost.Load() && theirs.lost.Load() })
	bells := a.Watch(nil, 0)
	require.Len(t, bells, 1, "of the device that is there")
	require.Equal(t, tags[0].Tag, bells[0].Tag)
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Close(epoll)) }()
	require.ErrorIs(t, a.Hang(epoll, tags[1]), unix.ENOENT, "a waiter that asked before")
	first.unuse()
	await(t, "both ends to give it back", func() bool { return first.given.Load() && theirs.given.Load() })
	r.works(t)
	r.f.Control(t, "pull fake1 0")
	await(t, "the device to be back", func() bool {
		return a.nics()[1] != first && b.nics()[1] != theirs && r.keysThere(1) && r.upOver("fake1")
	})
	require.Len(t, a.Watch(nil, 0), 2)
	r.again(t)
	r.passes(t, "fake1", after)
}

// TestAlternatesComeWhenAnEndIsToBlame silences one device here: its peer is reached from the other.
func TestAlternatesComeWhenAnEndIsToBlame(t *testing.T) {
	r := newRig(t, nil)
	require.Zero(t, r.count(true), "while all is well, the matching is enough")
	link := r.a.Transport.(*Transport).links.Lookup(r.c.Link)
	for i := range uint16(2) {
		require.Equal(t, link.rail(i).far, link.rail(i).device.index)
		require.False(t, link.rail(i).alternate)
	}
	link.rail(0).down(errs.New(errs.Lost, Name, "blamed by the test").WithScope(errs.ScopeRail, errs.SideRemote))
	await(t, "the alternates", func() bool { return r.rails() == 2 && r.count(true) == 2 })
	require.NotEqual(t, link.rail(2).far, link.rail(2).device.index)
	for _, rail := range r.c.Rails() {
		r.c.Must(t, r.slice(t, rail, 0, 4096))
	}
}
