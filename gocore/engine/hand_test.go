package engine

import (
	"context"
	"encoding/binary"
	"runtime"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// hand is a transport that the test works by hand: it keeps slices and messages until the test completes them. It is
// for engines that move bytes between their own regions.
type hand struct {
	name   string
	self   transport.Peer
	sink   transport.Sink
	inline func() bool // the answer of Inline; nil: it carries nothing out
	stays  bool        // it replaces no descriptors

	mu      sync.Mutex
	news    sync.Cond
	slices  []*transport.Slice // accepted and not completed
	epochs  []transport.Epoch  // of all that were accepted
	notes   []handNote         // under way
	keys    map[transport.LocalKey]mem.Region
	last    transport.LocalKey
	revokes []transport.Epoch
	revoke  error                  // the answer of Revoke
	inside  func()                 // the beginning of Revoke
	enter   func(mem.Region) error // the beginning of Register
	forgot  []transport.RemoteKey
	held    transport.LocalKey
	revoked map[transport.LocalKey]int // how often; a peer is inside the one that is held
}

const handLink = transport.Link(1<<32 | 1)

type handNote struct {
	message []byte
	done    func(*errs.Error)
}

type handFactory struct{ made handed }

// handed is a hand, or a transport that is one but for some calls.
type handed interface {
	transport.Transport
	inner() *hand
}

func (h *hand) inner() *hand { return h }

func (f handFactory) Name() string { return f.made.inner().name }
func (handFactory) Check() error   { return nil }

func (f handFactory) Open(_ context.Context, _ any, host transport.Host, sink transport.Sink) (transport.Transport,
	error) {
	h := f.made.inner()
	h.self, h.sink = host.Self(), sink
	return f.made, nil
}

func newHand(name string) *hand {
	h := &hand{name: name, keys: map[transport.LocalKey]mem.Region{}, revoked: map[transport.LocalKey]int{}}
	h.news.L = &h.mu
	return h
}

func (h *hand) Info() transport.Info {
	info := transport.Info{Name: h.name, SameHost: true, Replaces: !h.stays, SliceMax: 1 << 20, SliceBest: 1 << 20,
		Alignment: 1, SlicesMax: 64}
	info.Pairs[mem.Host][mem.Host] = true
	return info
}

func (h *hand) Register(_ context.Context, r mem.Region) (transport.LocalKey, transport.Descriptor, error) {
	if h.enter != nil {
		if err := h.enter(r); err != nil {
			return 0, nil, err
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last++
	h.keys[h.last] = r
	return h.last, binary.LittleEndian.AppendUint64(nil, uint64(h.last)), nil
}

func (h *hand) Revoke(_ context.Context, key transport.LocalKey, _ *transport.Peer, epoch transport.Epoch) error {
	if h.inside != nil {
		h.inside()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.revokes = append(h.revokes, epoch)
	h.news.Broadcast()
	if _, there := h.keys[key]; !there {
		return errs.New(errs.AddressNotRegistered, "revoke", "no region with key %#x", uint64(key))
	}
	if key == h.held {
		return errs.New(errs.Timeout, "revoke", "a peer is inside")
	}
	h.revoked[key]++
	return h.revoke
}

func (h *hand) Deregister(_ context.Context, key transport.LocalKey) error {
	h.locked(func() { delete(h.keys, key) })
	return nil
}

func (h *hand) Attach(transport.Peer) (transport.Link, error) {
	h.sink.RailUp(transport.RailInfo{Rail: transport.Rail{Link: handLink, Generation: 1}, Local: "a", Remote: "b",
		Node: -1})
	return handLink, nil
}

func (h *hand) Import(_ transport.Link, d transport.Descriptor) (transport.RemoteKey, error) {
	return transport.RemoteKey(binary.LittleEndian.Uint64(d)), nil
}

func (h *hand) Forget(_ transport.Link, key transport.RemoteKey) {
	h.locked(func() { h.forgot = append(h.forgot, key) })
}

func (h *hand) Detach(transport.Link) {}
func (h *hand) Stale() uint64         { return 0 }
func (h *hand) Fence(transport.Rail)  {}

func (h *hand) Submit(list []*transport.Slice) int {
	h.locked(func() {
		h.slices = append(h.slices, list...)
		for _, s := range list {
			h.epochs = append(h.epochs, s.Epoch)
		}
	})
	return len(list)
}

// Withdraw completes the slices that the test has kept.
func (h *hand) Withdraw([]*transport.Slice) {
	h.complete(errs.New(errs.Withdrawn, h.name, "withdrawn").WithScope(errs.ScopeSlice, errs.SideLocal))
}

func (h *hand) Serve(context.Context, transport.Peer, []byte) ([]byte, error) { return nil, nil }
func (h *hand) Close(context.Context) error                                   { return nil }

func (h *hand) Notify(_ transport.Link, message []byte, done func(*errs.Error)) bool {
	h.locked(func() { h.notes = append(h.notes, handNote{append([]byte(nil), message...), done}) })
	return true
}

func (h *hand) Inline([]*transport.Slice) bool { return h.inline != nil && h.inline() }

func (h *hand) locked(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
	h.news.Broadcast()
}

// complete ends every slice that is kept.
func (h *hand) complete(err *errs.Error) {
	var list []transport.Completion
	h.locked(func() {
		for _, s := range h.slices {
			c := transport.Completion{Slice: s, Id: s.Id, Err: err}
			if err == nil {
				c.Bytes = s.Length
			}
			list = append(list, c)
		}
		h.slices = nil
	})
	h.sink.Complete(list)
}

// await waits until cond, which is called with the transport locked, is true.
func (h *hand) await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	expired := false
	timer := time.AfterFunc(patience, func() { h.locked(func() { expired = true }) })
	defer timer.Stop()
	h.mu.Lock()
	defer h.mu.Unlock()
	for !cond() && !expired {
		h.news.Wait()
	}
	require.True(t, cond(), "waited in vain for: "+what)
}

// patience is far beyond the time of any step of a test on a busy machine; a longer one hangs.
const patience = 20 * time.Second

// workshop is an engine with transports that the test works by hand.
type workshop struct {
	*Engine
	t     *testing.T
	hands []*hand
}

func newWorkshop(t *testing.T, names ...string) *workshop {
	hands := make([]*hand, len(names))
	for i, name := range names {
		hands[i] = newHand(name)
	}
	return newWorkshopOf(t, hands...)
}

func newWorkshopOf(t *testing.T, hands ...*hand) *workshop {
	var plugs []transport.Factory
	for _, h := range hands {
		plugs = append(plugs, handFactory{h})
	}
	return newWorkshopOver(t, hands, plugs...)
}

// newWorkshopOver makes an engine with transports over hands.
func newWorkshopOver(t *testing.T, hands []*hand, plugs ...transport.Factory) *workshop {
	w := &workshop{t: t, hands: hands}
	var err error
	w.Engine, err = Open(context.Background(), Options{Transports: Plugs(plugs...)})
	require.NoError(t, err)
	t.Cleanup(func() {
		for _, h := range w.hands {
			h.locked(func() { h.revoke = nil })
		}
		require.Empty(t, w.Close(time.Minute, true))
		require.NoError(t, w.Forget())
	})
	return w
}

// region registers some memory that stays where it is.
func (w *workshop) region(name string) *region {
	w.t.Helper()
	b := make([]byte, 1<<16)
	w.t.Cleanup(func() { clear(b) })
	id, err := w.Register(Memory{Addr: uintptr(unsafe.Pointer(&b[0])), Size: uint64(len(b)), Name: name,
		Location: "cpu:0", Permission: mem.GlobalReadWrite})
	require.NoError(w.t, err)
	return w.regions.get(id)
}

func (w *workshop) request(from, to *region) Request {
	return Request{Terms: Terms{Op: transport.Write}, Source: from.Addr, Remote: Remote{Region: to.ID}, Length: 4096}
}

// requireUses waits for the uses of a region beside the one that keeps it open.
func (w *workshop) requireUses(n int64, of ...*region) {
	w.t.Helper()
	for _, r := range of {
		require.EqualValues(w.t, n+1, r.uses.Load(), r.Name)
	}
}

// requireEnd waits for the end of a batch that fails.
func (w *workshop) requireEnd(id dispatch.BatchID, state dispatch.State, code errs.Code) {
	w.t.Helper()
	require.Equal(w.t, state, w.Wait(id, 10*time.Second))
	sum, err := w.Summary(id)
	require.NoError(w.t, err)
	require.Equal(w.t, state, sum.State)
	require.NotNil(w.t, sum.Err)
	require.Equal(w.t, code, sum.Err.Code, "%v", sum.Err)
}

func TestUsesComeBackWhateverBecomesOfACall(t *testing.T) {
	w := newWorkshop(t, "hand")
	a, b, far := w.region("a"), w.region("b"), w.region("far")
	id, err := w.NewBatch(1)
	require.NoError(t, err)
	_, err = w.Submit(id, []Request{w.request(a, far), w.request(b, far)}, nil)
	require.Equal(t, errs.TooManyRequests, errs.CodeOf(err))
	w.requireUses(0, a, b)

	_, err = w.Submit(id, []Request{w.request(a, far)}, nil)
	require.NoError(t, err)
	w.requireUses(1, a)
	w.hands[0].complete(nil)
	require.Equal(t, dispatch.Completed, w.Wait(id, 10*time.Second))
	w.requireUses(0, a)
	require.NoError(t, w.FreeBatch(id))

	c, err := w.Begin(Terms{Op: transport.Write})
	require.NoError(t, err)
	for _, r := range []*region{a, b} {
		require.NoError(t, c.AddRange(r.Addr, Remote{Region: far.ID}, 4096))
	}
	require.NoError(t, w.CloseRegion(t.Context(), b.ID))
	_, err = c.Commit(nil)
	require.Equal(t, errs.AddressNotRegistered, errs.CodeOf(err), "%v", err)
	w.requireUses(0, a)
	require.Zero(t, b.uses.Load())
}

func TestARegionThatIsClosedWaitsForItsTransfersAndTakesNoOthers(t *testing.T) {
	w := newWorkshop(t, "hand")
	h := w.hands[0]
	own, far := w.region("own"), w.region("far")
	first := w.request(own, far)
	id, err := w.Move(&first)
	require.NoError(t, err)
	late, err := w.Begin(Terms{Op: transport.Write})
	require.NoError(t, err)
	require.NoError(t, late.AddRange(own.Addr, Remote{Region: far.ID}, 4096)) // found while it was open
	require.NoError(t, w.CloseRegion(t.Context(), own.ID))
	_, err = late.Commit(nil)
	require.Equal(t, errs.AddressNotRegistered, errs.CodeOf(err), "its uses are those of before")
	h.locked(func() { require.Contains(t, h.keys, own.key(0), "a transfer uses it") })
	h.complete(nil)
	require.Equal(t, dispatch.Completed, w.Wait(id, 10*time.Second))
	h.await(t, "the end of the registration", func() bool { _, there := h.keys[own.key(0)]; return !there })
}

func TestARegionThatAPeerMayTouchIsNotTheCallersYet(t *testing.T) {
	w := newWorkshop(t, "one", "two")
	own := w.region("own")
	w.hands[1].revoke = errs.New(errs.Timeout, "revoke", "a peer is inside")
	require.Error(t, w.CloseRegion(t.Context(), own.ID))
	for _, h := range w.hands {
		require.Equal(t, []transport.Epoch{transport.ForGood}, h.revokes, h.name)
		require.Contains(t, h.keys, own.key(0))
	}
	w.hands[1].revoke = nil
	require.NoError(t, w.CloseRegion(t.Context(), own.ID))
	require.Len(t, w.hands[1].revokes, 2, "the next call asks again")
}

func TestTasksBeginInTheEpochOfTheLastFence(t *testing.T) {
	w := newWorkshop(t, "hand")
	h := w.hands[0]
	own, far := w.region("own"), w.region("far")
	for range 3 {
		require.NoError(t, w.FenceRegion(t.Context(), far.ID, ""))
		r := w.request(own, far)
		id, err := w.Move(&r)
		require.NoError(t, err)
		h.complete(nil)
		require.Equal(t, dispatch.Completed, w.Wait(id, 10*time.Second))
	}
	require.Equal(t, []transport.Epoch{1, 2, 3}, h.revokes)
	require.Equal(t, h.revokes, h.epochs)
}

func TestANotificationFollowsTheLastByteAndEndsTheBatch(t *testing.T) {
	w := newWorkshop(t, "hand")
	h := w.hands[0]
	own, far := w.region("own"), w.region("far")
	id, err := w.NewBatch(1)
	require.NoError(t, err)
	_, err = w.Submit(id, []Request{w.request(own, far)}, &Note{Name: []byte("page")})
	require.NoError(t, err)
	h.locked(func() { require.Empty(t, h.notes, "its bytes are under way") })
	h.complete(nil)
	h.await(t, "the message", func() bool { return len(h.notes) == 1 })
	require.Equal(t, dispatch.Pending, w.Wait(id, 0))
	h.notes[0].done(nil)
	require.Equal(t, dispatch.Completed, w.Wait(id, 10*time.Second))

	failed, err := w.NewBatch(1)
	require.NoError(t, err)
	_, err = w.Submit(failed, []Request{w.request(own, far)}, &Note{Name: []byte("page")})
	require.NoError(t, err)
	h.complete(errs.New(errs.PermissionDenied, "hand", "no"))
	require.Equal(t, dispatch.Failed, w.Wait(failed, 10*time.Second))
	require.Len(t, h.notes, 1, "of bytes that did not arrive nobody is told")
}

func TestOneMessageAtATimeGoesToAPeer(t *testing.T) {
	w := newWorkshop(t, "hand")
	h := w.hands[0]
	own, far := w.region("own"), w.region("far")
	r := w.request(own, far) // links are made by the first transfer
	id, err := w.Move(&r)
	require.NoError(t, err)
	h.complete(nil)
	require.Equal(t, dispatch.Completed, w.Wait(id, 10*time.Second))
	var batches []dispatch.BatchID
	for _, name := range []string{"first", "second", "third"} {
		b, err := w.Notify(0, Note{Name: []byte(name)}, 0)
		require.NoError(t, err)
		batches = append(batches, b)
	}
	require.Len(t, h.notes, 1, "the others wait")
	first := string(h.notes[0].message)
	require.Contains(t, first, "first")
	require.NotContains(t, first, "second")
	h.notes[0].done(nil)
	h.await(t, "the others", func() bool { return len(h.notes) == 2 })
	require.Equal(t, dispatch.Completed, w.Wait(batches[0], 10*time.Second))
	require.Equal(t, dispatch.Pending, w.Wait(batches[1], 0))
	h.notes[1].done(errs.New(errs.Lost, "hand", "the rail has broken")) // it goes over the control plane then
	for _, b := range batches[1:] {
		require.Equal(t, dispatch.Completed, w.Wait(b, 10*time.Second))
	}
	require.Equal(t, 2, w.NotesWait(10*time.Second))
}

// TestACallThatIsNotCarriedOutInlineGoesThroughTheCore closes the engine in the middle of an inline call, which Close
// does not find among the transfers.
func TestACallThatIsNotCarriedOutInlineGoesThroughTheCore(t *testing.T) {
	w := newWorkshop(t, "hand")
	h := w.hands[0]
	own, far := w.region("own"), w.region("far")
	r := w.request(own, far)
	r.Length = 64
	asked := 0
	h.inline = func() bool { asked++; return false }
	for range 3 {
		id, err := w.Move(&r)
		require.NoError(t, err)
		h.complete(nil)
		require.Equal(t, dispatch.Completed, w.Wait(id, 10*time.Second))
		require.Zero(t, w.core.Pending())
		require.Zero(t, w.core.Outstanding())
	}
	require.NotZero(t, asked)
	closed := make(chan struct{})
	h.inline = func() bool {
		go func() { w.Close(0, true); close(closed) }()
		for !w.closed.Load() {
			runtime.Gosched()
		}
		return false
	}
	_, err := w.Move(&r)
	<-closed
	if err == nil {
		h.locked(func() { require.Empty(t, h.slices, "the transfer was cancelled before it was sent") })
	}
}

func TestEverythingThatAnInboxTakesIsDueOnce(t *testing.T) {
	for name, push := range map[string]func(*inbox){
		"completions": func(b *inbox) { b.complete(0, []transport.Completion{{}}) },
		"refusals":    func(b *inbox) { b.refuse([]*transport.Slice{{}}) },
		"withdrawals": func(b *inbox) { b.withdrew([]*transport.Slice{{}}) },
		"notices":     func(b *inbox) { b.notice(notice{kind: noticeReady}) },
	} {
		var b, taken inbox
		for range 3 {
			require.False(t, b.filled.Load(), name)
			push(&b)
			require.True(t, b.filled.Load(), name)
			b.swap(&taken)
			require.Equal(t, 1, len(taken.completions)+len(taken.refused)+len(taken.asked)+len(taken.notices), name)
			require.Zero(t, len(b.completions)+len(b.refused)+len(b.asked)+len(b.notices), name)
		}
	}
}

// rails is a transport that writes down the rails of each call. It has only the method that an outbox uses.
type rails struct {
	transport.Transport
	told [][]uint16
}

func (r *rails) Submit(list []*transport.Slice) int {
	var call []uint16
	for _, s := range list {
		call = append(call, s.Rail.Index)
	}
	r.told = append(r.told, call)
	return len(list)
}

func TestACallOfSubmitHasSlicesOfOneRail(t *testing.T) {
	told := &rails{}
	o := &outbox{engine: &Engine{}, port: &port{transport: told}}
	for _, rail := range []uint16{1, 1, 2, 1} {
		r := transport.Rail{Index: rail}
		o.add(orderSubmit, r, []*transport.Slice{{Rail: r}})
	}
	o.drain()
	require.Equal(t, [][]uint16{{1, 1}, {2}, {1}}, told.told)
}
