package engine

import (
	"context"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/segment"
	"github.com/tent-engine/tent/gocore/transport"
)

func TestCallersShareTheAnswerToAQuestionThatBeganAfterTheyCame(t *testing.T) {
	failed := errs.New(errs.Timeout, "segment", "the peer is silent")
	for name, c := range map[string]struct {
		meanwhile, cut bool // a question of another caller; its context ended it
		asked          uint64
		err            error
	}{
		"nobody has asked since":          {false, false, 1, nil},
		"somebody has asked since":        {true, false, 1, failed},
		"somebody has given up meanwhile": {true, true, 2, nil},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := &peer{file: &file{}, fetch: newDescribing()} // a file answers at once
			d := &p.fetch
			require.NoError(t, d.begin(t.Context()))
			answers := make(chan error, 8)
			for range cap(answers) {
				go func() { answers <- p.refresh(context.Background()) }()
			}
			synctest.Wait()
			if c.meanwhile {
				d.asked.Add(1)
				d.err, d.cut = failed, c.cut
			}
			d.end()
			for range cap(answers) {
				require.Equal(t, c.err, <-answers, name)
			}
			require.Equal(t, c.asked, d.asked.Load(), name)
		})
	}
}

func TestACallerLeavesTheQueueForAnAnswerWhenItsContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &peer{file: &file{}, fetch: newDescribing()}
		require.NoError(t, p.fetch.begin(t.Context()))
		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := errs.From("test", p.refresh(ctx))
		require.Equal(t, errs.Timeout, err.Code)
		require.Equal(t, errs.SideUnknown, err.Side, "silence proves nothing about the peer")
		require.Equal(t, time.Second, time.Since(begin))
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		require.Equal(t, errs.Canceled, errs.CodeOf(p.refresh(cancelled)))
	})
}

// muted is a connection on which nothing comes while the peer is stopped.
type muted struct {
	net.Conn
	stopped chan struct{} // closed: nothing comes from now on
	ended   chan struct{}
	once    *sync.Once
}

func (m muted) Read(b []byte) (int, error) {
	n, err := m.Conn.Read(b)
	select {
	case <-m.stopped:
		<-m.ended
		return 0, net.ErrClosed
	default:
		return n, err
	}
}

func (m muted) Close() error {
	m.once.Do(func() { close(m.ended) })
	return m.Conn.Close()
}

// A request names an address that the peer, which is stopped, has not offered before.
func TestADeadlineHoldsForTheQuestionAboutAnAddress(t *testing.T) {
	there := newWorkshop(t, "hand")
	there.region("kv")
	stopped := make(chan struct{})
	h := newHand("hand")
	e, err := Open(t.Context(), Options{Transports: Plugs(handFactory{h}),
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, network, address)
			return muted{c, stopped, make(chan struct{}), new(sync.Once)}, err
		}})
	require.NoError(t, err)
	defer e.Close(0, true)
	w := &workshop{Engine: e, t: t, hands: []*hand{h}}
	own := w.region("own")
	id, err := e.OpenSegment(t.Context(), there.Address())
	require.NoError(t, err)
	close(stopped)
	const limit = 50 * time.Millisecond
	begin := time.Now()
	var callers sync.WaitGroup
	for range 4 {
		for _, to := range []Remote{{Segment: id, Offset: 12345}, {Segment: id, Region: 12345}} {
			callers.Go(func() {
				_, err := e.Move(&Request{Terms: Terms{Op: transport.Write, Deadline: clock.Now().Add(limit)},
					Source: own.Addr, Remote: to, Length: 64})
				assert.Equal(t, errs.Timeout, errs.CodeOf(err), "%v", err)
			})
		}
		callers.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			_, err := e.Segment(ctx, id, true)
			assert.Equal(t, errs.Timeout, errs.CodeOf(err), "%v", err)
		})
	}
	callers.Wait()
	require.Less(t, time.Since(begin), describeTimeout/2)
}

// counting is a transport that counts its links.
type counting struct {
	*hand
	links    int
	imported int    // keys
	inside   func() // the beginning of Attach
}

func (c *counting) Import(on transport.Link, d transport.Descriptor) (transport.RemoteKey, error) {
	c.locked(func() { c.imported++ })
	return c.hand.Import(on, d)
}

func (c *counting) Attach(p transport.Peer) (transport.Link, error) {
	if c.inside != nil {
		c.inside()
	}
	c.locked(func() { c.links++ })
	return c.hand.Attach(p)
}

func (c *counting) Detach(transport.Link) { c.locked(func() { c.links-- }) }

// A segment of a blob asks its peer at its first use. One that is closed meanwhile, alone or with its engine, keeps no
// link.
func TestAPeerThatIsLeftDuringItsFirstUseKeepsNoLink(t *testing.T) {
	there := newWorkshop(t, "hand")
	there.region("kv")
	blob, err := there.Export(nil)
	require.NoError(t, err)
	for code, leave := range map[errs.Code]func(*Engine, SegmentID){
		errs.InvalidEntry: func(e *Engine, id SegmentID) { require.NoError(t, e.CloseSegment(id)) },
		errs.EngineClosed: func(e *Engine, _ SegmentID) { e.closed.Store(true) }, // the first step of Close
		errs.OK:           func(*Engine, SegmentID) {},
	} {
		c := &counting{hand: newHand("hand")}
		asks, goOn := make(chan struct{}, 1), make(chan struct{})
		e, err := Open(t.Context(), Options{Transports: Plugs(handFactory{c}),
			Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
				select {
				case asks <- struct{}{}:
				default:
				}
				<-goOn
				return new(net.Dialer).DialContext(ctx, network, address)
			}})
		require.NoError(t, err)
		id, err := e.OpenBlob(blob)
		require.NoError(t, err)
		h, failure := e.segments.get(id)
		require.Nil(t, failure)
		used := make(chan error)
		go func() { used <- h.peer.join(context.Background()) }()
		<-asks
		leave(e, id)
		close(goOn)
		require.Equal(t, code, errs.CodeOf(<-used))
		if code != errs.OK {
			require.Zero(t, c.links)
		}
		e.closed.Store(false)
		require.Empty(t, e.Close(patience, true))
		require.Zero(t, c.links)
	}
}

// Another thread asks the peer while this one opens it, and has no answer yet. The region that is known was closed.
func TestOpeningAPeerWaitsForTheAnswerToAQuestionUnderWay(t *testing.T) {
	there, c := newWorkshop(t, "hand"), &counting{hand: newHand("hand")}
	here := newWorkshopOver(t, []*hand{c.hand}, handFactory{c})
	old := there.region("kv")
	blob, err := there.Export(nil)
	require.NoError(t, err)
	id, err := here.OpenBlob(blob)
	require.NoError(t, err)
	h, failure := here.segments.get(id)
	require.Nil(t, failure)
	p := h.peer
	require.NoError(t, p.refresh(t.Context())) // and no link is attached yet
	require.NoError(t, there.CloseRegion(t.Context(), old.ID))
	now := there.region("kv")
	asked := make(chan error, 1)
	c.inside = func() { // the caller has p.mu, so that no answer is taken over until it goes on
		d := &p.fetch
		require.NoError(t, d.begin(t.Context()))
		d.asked.Add(1)
		go func() {
			d.err, d.cut = p.describe(t.Context()), false
			asked <- d.err
			d.end()
		}()
	}
	id, err = here.OpenSegment(t.Context(), there.Address()+"/kv")
	require.NoError(t, err)
	h, failure = here.segments.get(id)
	require.Nil(t, failure)
	require.Equal(t, now.ID, h.base, "not %v, which was closed", old.ID)
	require.NoError(t, <-asked)
}

// A thread asks a silent peer. Others open blobs of the peer meanwhile, and wait for nobody.
func TestABlobIsOpenedBesideAQuestionToItsPeer(t *testing.T) {
	there, here := newWorkshop(t, "hand"), newWorkshop(t, "hand")
	there.region("kv")
	blob, err := there.Export(nil)
	require.NoError(t, err)
	for _, known := range []bool{false, true} {
		p := here.peer(there.Self())
		require.Equal(t, known, p.regions.Load() != nil)
		require.NoError(t, p.fetch.begin(t.Context()))
		opened := make(chan SegmentID)
		go func() {
			id, err := here.OpenBlob(blob)
			assert.NoError(t, err)
			opened <- id
		}()
		select {
		case id := <-opened:
			p.fetch.end()
			info, err := here.Segment(t.Context(), id, false)
			require.NoError(t, err)
			require.Len(t, info.Regions, 1)
		case <-time.After(patience):
			require.Fail(t, "it waits for the answer")
		}
	}
}

// Regions that are for nobody else count too.
func TestOurOwnRegionsAreDescribedAgainWhereTheyHaveChanged(t *testing.T) {
	w := newWorkshop(t, "hand")
	kv := w.region("kv")
	private, failure := w.segments.get(Local)
	require.Nil(t, failure)
	p := private.peer
	described := func() *segment.Description {
		require.NoError(t, p.refresh(t.Context()))
		return p.regions.Load().description
	}
	before := described()
	for what, change := range map[string]func(){
		"a region for nobody else": func() {
			b := make([]byte, 4096)
			t.Cleanup(func() { clear(b) })
			_, err := w.Register(Memory{Addr: uintptr(unsafe.Pointer(&b[0])), Size: 4096, Location: "cpu:0",
				Permission: mem.LocalReadWrite})
			require.NoError(t, err)
		},
		"another descriptor": func() { w.ports[0].Describe(kv.key(0), transport.Descriptor("replaced")) },
		"a closed region":    func() { require.NoError(t, w.CloseRegion(t.Context(), w.region("old").ID)) },
	} {
		require.Same(t, before, described())
		change()
		now := described()
		require.NotSame(t, before, now, what)
		before = now
	}
}
