package engine

import (
	"encoding/binary"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/transport"
)

// reach has two engines: one moves bytes to regions of the other.
type reach struct {
	*workshop
	c     *counting
	there *workshop
	own   *region
}

func newReach(t *testing.T) *reach {
	there, c := newWorkshop(t, "hand"), &counting{hand: newHand("hand")}
	r := &reach{workshop: newWorkshopOver(t, []*hand{c.hand}, handFactory{c}), c: c, there: there}
	r.own = r.region("own")
	return r
}

func (r *reach) open(to *workshop) (SegmentID, *peer) {
	r.t.Helper()
	id, err := r.OpenSegment(r.t.Context(), to.Address())
	require.NoError(r.t, err)
	h, failure := r.segments.get(id)
	require.Nil(r.t, failure)
	return id, h.peer
}

func (r *reach) move(id SegmentID, to *region) {
	r.t.Helper()
	request := r.request(r.own, to)
	request.Remote.Segment = id
	batch, err := r.Move(&request)
	require.NoError(r.t, err)
	r.c.complete(nil)
	require.Equal(r.t, dispatch.Completed, r.Wait(batch, patience))
	require.NoError(r.t, r.FreeBatch(batch))
}

// The key of a region is imported once. It is forgotten when the peer does not offer the region any more, and those of
// other regions are not.
func TestTheKeyOfARegionThatWentIsForgotten(t *testing.T) {
	r := newReach(t)
	kept, goes := r.there.region("kept"), r.there.region("goes")
	id, p := r.open(r.there)
	for range 3 {
		r.move(id, kept)
		r.move(id, goes)
	}
	require.Equal(t, 2, r.c.imported)
	gone := p.regions.Load().byID[goes.ID].keys[0]
	require.NotZero(t, gone)
	require.NoError(t, r.there.CloseRegion(t.Context(), goes.ID))
	_, err := r.Segment(t.Context(), id, true)
	require.NoError(t, err)
	r.c.await(t, "the end of the key", func() bool { return len(r.c.forgot) > 0 })
	r.move(id, kept)
	r.renewals.running.Wait()
	require.Equal(t, []transport.RemoteKey{gone}, r.c.forgot)
	require.Equal(t, 2, r.c.imported)
}

// A key that an import has returned again is in use, and one of a link that has ended went with that.
func TestNoKeyIsForgottenThatIsInUse(t *testing.T) {
	r := newReach(t)
	kept := r.there.region("kept")
	id, p := r.open(r.there)
	r.move(id, kept)
	key := p.regions.Load().byID[kept.ID].keys[0]
	const other = transport.RemoteKey(1 << 40)
	p.forgetKeys([]dispatch.Retired{
		{Link: handLink, Key: key},
		{Link: handLink + 1, Key: other},
		{Link: handLink, Key: other + 1},
	})
	require.Equal(t, []transport.RemoteKey{other + 1}, r.c.forgot)
}

// A plan is made once for a pair of regions and the terms, and again behind a change of links or keys.
func TestAPlanIsForItsRegionsAndItsTerms(t *testing.T) {
	r := newReach(t)
	far, another := r.there.region("far"), r.region("another")
	id, p := r.open(r.there)
	r.move(id, far)
	remote := p.regions.Load().byID[far.ID]
	made := func(local *region, op transport.Op) *plan.Plan {
		it, err := p.planFor(local, remote, &Terms{Op: op}, plan.NoPolicy)
		require.Nil(t, err)
		return it
	}
	first := made(r.own, transport.Write)
	require.Same(t, first, made(r.own, transport.Write))
	read, beside := made(r.own, transport.Read), made(another, transport.Write)
	require.NotSame(t, first, read)
	require.NotSame(t, first, beside)
	require.Equal(t, r.own.ID, first.Own)
	require.Equal(t, another.ID, beside.Own)
	require.Same(t, first, made(r.own, transport.Write), "beside other plans")
	other, _ := r.open(newWorkshop(t, "hand"))
	require.Same(t, first, made(r.own, transport.Write), "another peer was opened")
	require.NoError(t, r.CloseSegment(other))
	require.Same(t, first, made(r.own, transport.Write), "and closed")
	require.Equal(t, 1, r.c.imported, "they have one key")
	news := *p.regions.Load().description
	news.Regions = slices.Clone(news.Regions)
	news.Regions[0].Descriptors = map[string]transport.Descriptor{"hand": binary.LittleEndian.AppendUint64(nil, 77)}
	p.fetch.ifFree(func() { p.learn(&news) })
	require.EqualValues(t, 77, made(r.own, transport.Write).Routes[0].Hops[0].RemoteKey, "of the new descriptor")
	r.planEpoch.Add(1)
	again := made(r.own, transport.Write)
	require.NotSame(t, first, again)
	require.Len(t, *remote.plans.Load(), 1, "plans of before a change are of no use")
	_, err := p.planFor(r.own, remote, &Terms{Op: transport.Write, Hint: 200}, plan.NoPolicy)
	require.NotNil(t, err)
	require.Equal(t, errs.InvalidArgument, err.Code, "a hint of no transport")
}

// A plan is made while the peer is left. Its keys are imported on links that are there: a transport that has detached
// the link would count a stale call, or map memory that nobody unmaps.
func TestAPlanBesideTheEndOfItsPeerImportsNothing(t *testing.T) {
	r := newReach(t)
	far := r.there.region("far")
	id, p := r.open(r.there)
	remote := p.regions.Load().byID[far.ID]
	p.mu.Lock() // as for another plan
	planned := make(chan *errs.Error)
	go func() {
		_, err := p.planFor(r.own, remote, &Terms{Op: transport.Write}, plan.NoPolicy)
		planned <- err
	}()
	for stacks := make([]byte, 1<<20); ; runtime.Gosched() {
		if all := string(stacks[:runtime.Stack(stacks, true)]); strings.Contains(all, "(*peer).candidates(") {
			break // the plan waits for its turn, or is about to
		}
	}
	links := *p.links.Load()
	none := make([]attachment, len(links))
	p.links.Store(&none) // as detach does
	p.mu.Unlock()
	require.NotNil(t, <-planned)
	r.c.locked(func() { require.Zero(t, r.c.imported) })
	p.links.Store(&links)
	require.NoError(t, r.CloseSegment(id))
}

// A link that was left is out of the core's tables, and its place is free.
func TestALinkThatWasLeftIsForgotten(t *testing.T) {
	r := newReach(t)
	for range 3 {
		id, p := r.open(r.there)
		link := (*p.links.Load())[0].id
		r.mu.Lock()
		of := r.links.port(link)
		r.unlockAndDrain()
		require.Same(t, r.ports[0], of)
		require.NoError(t, r.CloseSegment(id))
		r.mu.Lock()
		leaving, left, places := len(r.links.leaving), r.links.port(link), len(r.links.bySlot)
		r.unlockAndDrain()
		require.Zero(t, leaving)
		require.Nil(t, left)
		require.Equal(t, 2, places, "the place of the last one is taken again")
		require.Zero(t, r.c.links)
	}
}

// A peer that calls without end has its description asked for ten times a second. One that replaces descriptors now and
// then waits for nothing but the least pause.
func TestAPeerThatCallsWithoutEndIsAskedAtAPace(t *testing.T) {
	for every, most := range map[time.Duration]int{
		time.Millisecond:       renewBurst + 60*10 + 1,
		200 * time.Millisecond: 60*5 + 1,
	} {
		var pace askPace
		asked, longest := 0, time.Duration(0)
		begun := clock.Now()
		for now := begun; now < begun.Add(time.Minute); {
			pause := pace.pause(now)
			longest = max(longest, pause)
			now = now.Add(max(pause, every))
			asked++
		}
		require.LessOrEqual(t, asked, most)
		require.Greater(t, asked, most*9/10, "those that wait are asked in the end")
		require.Equal(t, every > renewRefill, longest == renewEvery)
	}
}
