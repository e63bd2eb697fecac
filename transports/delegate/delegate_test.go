package delegate

import (
	"bytes"
	"context"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

const patience = 10 * time.Second // bounds every wait; a longer one hangs

// side is a host, a sink and a deputy. Its calls go to another side.
type side struct {
	transport.Sink
	t    *testing.T
	self transport.Peer
	peer *side
	open transport.Transport

	ended chan transport.Completion
	ready chan transport.Rail
	down  chan transport.Link

	mu       sync.Mutex
	calls    func(message []byte) (lost bool) // before the peer sees it; nil: all arrive
	replies  func(message []byte) (lost bool) // behind the peer; nil: all come back
	refusal  *errs.Error                      // of each call, nil for none
	orders   []transport.Order
	canceled int
	confined int
	fences   []transport.Epoch
	hold     chan struct{} // orders end when it is closed, or when they are cancelled; nil: at once
	lingers  func()        // a cancelled order ends behind it
	dirty    bool
	failure  error // of each order, nil for none

	malformed int // messages
}

func newSide(t *testing.T, id byte) *side {
	s := &side{t: t, self: transport.Peer{Address: string('a' + rune(id)), ID: transport.ID{id}},
		ended: make(chan transport.Completion, 64), ready: make(chan transport.Rail, 64),
		down: make(chan transport.Link, 64)}
	open, err := Factory{}.Open(t.Context(), Settings{Lanes: 3}, s, s)
	require.NoError(t, err)
	s.open = open
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, open.Close(ctx))
	})
	return s
}

// pair is an asker and an owner with a region of a device.
func pair(t *testing.T) (asker, owner *side, slice func() *transport.Slice) {
	owner, asker = newSide(t, 2), newSide(t, 1)
	asker.peer, owner.peer = owner, asker
	lent, none, err := asker.open.Register(t.Context(), mem.Region{Kind: mem.Host, Addr: 1 << 20, Size: 1 << 20})
	require.NoError(t, err)
	require.Empty(t, none, "nobody gives orders for lent memory")
	_, card, err := owner.open.Register(t.Context(), mem.Region{Kind: mem.Cuda, Addr: 1 << 30, Size: 1 << 20})
	require.NoError(t, err)
	link, err := asker.open.Attach(owner.self)
	require.NoError(t, err)
	key, err := asker.open.Import(link, card)
	require.NoError(t, err)
	id := uint64(0)
	return asker, owner, func() *transport.Slice {
		id++
		return &transport.Slice{Op: transport.Write, Rail: transport.Rail{Link: link, Generation: 1}, LocalKey: lent,
			RemoteKey: key, Local: 1<<20 + 4096, Remote: 77, Length: 4096, Id: id}
	}
}

func (s *side) Call(ctx context.Context, _ transport.Peer, message []byte) ([]byte, error) {
	lost := errs.New(errs.PeerUnreachable, "call", "the connection broke").WithScope(errs.ScopeLink, errs.SidePath)
	s.mu.Lock()
	calls, replies, refusal := s.calls, s.replies, s.refusal
	s.mu.Unlock()
	if refusal != nil {
		return nil, refusal
	}
	if calls != nil && calls(message) {
		return nil, lost
	}
	reply, err := s.peer.open.Serve(ctx, s.self, bytes.Clone(message))
	if replies != nil && replies(message) {
		return nil, lost
	}
	return reply, err
}

func (s *side) Self() transport.Peer                              { return s.self }
func (s *side) Addresses() []netip.Addr                           { return nil }
func (s *side) Describe(transport.LocalKey, transport.Descriptor) {}
func (s *side) Log() *slog.Logger                                 { return slog.New(slog.DiscardHandler) }
func (s *side) Fenced(_ transport.Link, _ transport.RemoteKey, epoch transport.Epoch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fences = append(s.fences, epoch)
}
func (s *side) RailUp(transport.RailInfo)                   {}
func (s *side) RailDown(transport.Rail, *errs.Error)        {}
func (s *side) LinkDown(link transport.Link, _ *errs.Error) { s.down <- link }
func (s *side) Ready(rail transport.Rail)                   { s.ready <- rail }
func (s *side) Progress(transport.Rail)                     {}
func (s *side) Complete(list []transport.Completion)        { s.ended <- list[0] }
func (s *side) Refused(why transport.Refusal, _ string, _ error) {
	if why == transport.RefusedMalformed {
		s.malformed++
	}
}

func (s *side) Lent(key transport.LocalKey) (transport.Lent, bool) {
	return transport.Lent{ID: 9, Addr: 1 << 20, Size: 1 << 20,
		Descriptors: map[string]transport.Descriptor{"tcp": {1, 2, 3}}}, key != 0
}

func (s *side) Confine(context.Context, transport.LocalKey, transport.Peer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.confined++
	return nil
}

func (s *side) Execute(ctx context.Context, o *transport.Order) (bool, error) {
	s.mu.Lock()
	s.orders = append(s.orders, *o)
	hold, dirty := s.hold, s.dirty
	s.mu.Unlock()
	if hold == nil {
		return dirty, s.failure
	}
	select {
	case <-hold:
		return dirty, nil
	case <-ctx.Done():
		s.mu.Lock()
		s.canceled++
		lingers := s.lingers
		s.mu.Unlock()
		if lingers != nil {
			lingers()
		}
		return dirty, errs.New(errs.Canceled, "order", "taken back")
	}
}

// through puts losses between the two sides.
func (s *side) through(calls, replies func([]byte) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls, s.replies = calls, replies
}

// refusals are the answers to all calls from here on.
func (s *side) refusals(err *errs.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refusal = err
}

func (s *side) end() transport.Completion {
	select {
	case c := <-s.ended:
		return c
	case <-time.After(patience):
		require.FailNow(s.t, "a slice has not ended")
		panic("not reached")
	}
}

func (s *side) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.orders)
}

// holding makes orders wait, and returns the function that ends them.
func (s *side) holding() func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	hold := make(chan struct{})
	s.hold = hold
	return func() { close(hold) }
}

func (s *side) awaitOrders(n int) {
	for end := time.Now().Add(patience); s.count() < n; runtime.Gosched() {
		require.Less(s.t, time.Now(), end, "%d orders came", s.count())
	}
}

// An order names the region's parts, and the lent memory by offsets; the owner knows the peer from its connection.
func TestASliceBecomesAnOrder(t *testing.T) {
	asker, owner, slice := pair(t)
	s := slice()
	s.Length, s.First = 3*512, 1
	s.Pieces = &transport.Pieces{Bytes: 512, LocalAt: []uint64{7, 0, 512, 1024}, RemoteAt: []uint64{9, 0, 8192, 2048}}
	require.Equal(t, 1, asker.open.Submit([]*transport.Slice{s}))
	done := asker.end()
	require.Nil(t, done.Err)
	require.EqualValues(t, []uint64{s.Id, 3 * 512}, []uint64{done.Id, done.Bytes})
	o := owner.orders[0]
	require.Equal(t, []uint64{77, 77 + 8192, 77 + 2048}, o.Places)
	require.EqualValues(t, []uint64{512, 4096, 1 << 20, 9}, []uint64{o.Bytes, o.Offset, o.Lent.Size, uint64(o.Lent.ID)})
	require.Equal(t, asker.self, o.From)
	require.Equal(t, transport.Descriptor{1, 2, 3}, o.Lent.Descriptors["tcp"])
}

// Messages and answers are lost at random; each order is carried out once, and its slice ends.
func TestAnOrderIsCarriedOutOnceWhateverIsLost(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	var mu sync.Mutex
	lose := func([]byte) bool {
		mu.Lock()
		defer mu.Unlock()
		return random.IntN(3) == 0
	}
	asker, owner, slice := pair(t)
	asker.through(lose, lose)
	const n = 30
	for range n {
		require.Equal(t, 1, asker.open.Submit([]*transport.Slice{slice()}))
		require.Nil(t, asker.end().Err)
	}
	require.Equal(t, n, owner.count())
}

// A link has as many orders out as it has lanes; the rest stays the core's.
func TestLanesBoundTheOrdersOfALink(t *testing.T) {
	asker, owner, slice := pair(t)
	release := owner.holding()
	list := []*transport.Slice{slice(), slice(), slice(), slice()}
	require.Equal(t, 3, asker.open.Submit(list))
	owner.awaitOrders(3)
	require.Zero(t, asker.open.Submit(list[3:]))
	release()
	for range 3 {
		require.Nil(t, asker.end().Err)
	}
}

// Nothing is taken for a rail that never was, and none is fenced.
func TestRailsThatNeverWereTakeNothing(t *testing.T) {
	asker, owner, slice := pair(t)
	require.Zero(t, asker.open.Submit(nil))
	for _, wrong := range []func(*transport.Rail){
		func(r *transport.Rail) { r.Index = 1 },
		func(r *transport.Rail) { r.Generation = 2 },
		func(r *transport.Rail) { r.Link++ },
		func(r *transport.Rail) { *r = transport.Rail{} },
	} {
		s := slice()
		wrong(&s.Rail)
		asker.open.Fence(s.Rail)
		require.Zero(t, asker.open.Submit([]*transport.Slice{s}))
	}
	require.Equal(t, 1, asker.open.Submit([]*transport.Slice{slice()}), "its own rail is as it was")
	require.Nil(t, asker.end().Err)
	require.Equal(t, 1, owner.count())
}

// A rail that was fenced while its lanes were busy comes up without a free one. It hears when there is one again.
func TestReadyIsForTheGenerationThatWaits(t *testing.T) {
	asker, owner, slice := pair(t)
	ended := make(chan struct{})
	owner.lingers = func() { <-ended }
	defer owner.holding()()
	old := []*transport.Slice{slice(), slice(), slice()}
	require.Equal(t, 3, asker.open.Submit(old))
	owner.awaitOrders(3)
	asker.open.Fence(old[0].Rail)
	next := slice()
	next.Rail.Generation++
	require.Zero(t, asker.open.Submit([]*transport.Slice{next}))
	close(ended)
	select {
	case rail := <-asker.ready:
		require.Equal(t, next.Rail, rail)
	case <-time.After(patience):
		require.FailNow(t, "no word of a free lane")
	}
	for range old {
		require.NotNil(t, asker.end().Err)
	}
}

// A slice that is withdrawn, or is of a fenced rail, completes when the owner's transfer has ended.
func TestOrdersAreTakenBack(t *testing.T) {
	for name, back := range map[string]func(*side, *transport.Slice){
		"withdraw": func(a *side, s *transport.Slice) { a.open.Withdraw([]*transport.Slice{s}) },
		"fence":    func(a *side, s *transport.Slice) { a.open.Fence(s.Rail) },
		"detach":   func(a *side, s *transport.Slice) { a.open.Detach(s.Rail.Link) },
	} {
		t.Run(name, func(t *testing.T) {
			asker, owner, slice := pair(t)
			defer owner.holding()()
			s := slice()
			require.Equal(t, 1, asker.open.Submit([]*transport.Slice{s}))
			owner.awaitOrders(1)
			back(asker, s)
			require.Equal(t, errs.Withdrawn, asker.end().Err.Code)
			require.Equal(t, 1, owner.canceled)
		})
	}
}

// The answer to a Cancel says that nothing of the order lands any more: it comes behind the order's end.
func TestACancelIsAnsweredBehindTheEndOfItsOrder(t *testing.T) {
	asker, owner, slice := pair(t)
	defer owner.holding()()
	var sent message
	asker.through(func(m []byte) bool {
		if m[0] == begin {
			order, err := decode(m)
			require.Nil(t, err)
			sent = *order
		}
		return false
	}, nil)
	answered := make(chan struct{})
	var over atomic.Bool
	owner.lingers = func() {
		select {
		case <-answered:
		case <-time.After(50 * time.Millisecond):
			over.Store(true)
		}
	}
	require.Equal(t, 1, asker.open.Submit([]*transport.Slice{slice()}))
	owner.awaitOrders(1)
	take := &message{kind: cancel, lane: sent.lane, seq: sent.seq}
	_, err := owner.open.Serve(t.Context(), asker.self, take.encode(nil))
	require.NoError(t, err)
	require.True(t, over.Load(), "the order goes on")
	close(answered)
	require.NotNil(t, asker.end().Err)
}

// A Cancel that overtakes its order ends it before it begins.
func TestACancelMayOvertakeItsOrder(t *testing.T) {
	asker, owner, slice := pair(t)
	var once sync.Once
	s := slice()
	asker.through(func(m []byte) bool {
		if m[0] != begin {
			return false
		}
		once.Do(func() {
			asker.open.Withdraw([]*transport.Slice{s})
			late := &message{kind: cancel}
			sent, err := decode(m)
			require.Nil(t, err)
			late.lane, late.seq = sent.lane, sent.seq
			_, failure := owner.open.Serve(t.Context(), asker.self, late.encode(nil))
			require.NoError(t, failure)
		})
		return false
	}, nil)
	require.Equal(t, 1, asker.open.Submit([]*transport.Slice{s}))
	require.Equal(t, errs.Withdrawn, asker.end().Err.Code)
	require.Zero(t, owner.count())
}

// The owner's fence ends the orders of before, and refuses those that come with the old epoch.
func TestAFenceEndsOrders(t *testing.T) {
	asker, owner, slice := pair(t)
	defer owner.holding()()
	s := slice()
	s.Epoch = 4
	require.Equal(t, 1, asker.open.Submit([]*transport.Slice{s}))
	owner.awaitOrders(1)
	key := transport.LocalKey(s.RemoteKey)
	require.NoError(t, owner.open.Revoke(t.Context(), key, &asker.self, 5))
	require.Equal(t, 1, owner.canceled, "revoke returns behind the end")
	require.Equal(t, []transport.Epoch{5}, asker.fences, "the peer has heard of it")
	require.NotNil(t, asker.end().Err)
	again := slice()
	again.Epoch = 4
	require.Equal(t, 1, asker.open.Submit([]*transport.Slice{again}))
	require.Equal(t, errs.AddressNotRegistered, asker.end().Err.Code)
	require.Equal(t, 1, owner.count())
	require.NoError(t, owner.open.Deregister(t.Context(), key))
	require.Equal(t, 1, asker.open.Submit([]*transport.Slice{slice()}))
	require.Equal(t, errs.AddressNotRegistered, asker.end().Err.Code)
	require.Equal(t, 1, owner.count())
}

// Slices that the owner's transfer has left behind are kept away from the lent memory before that is used again.
func TestADirtyOrderConfinesThePeer(t *testing.T) {
	asker, owner, slice := pair(t)
	owner.dirty = true
	require.Equal(t, 1, asker.open.Submit([]*transport.Slice{slice()}))
	asker.end()
	require.Equal(t, 1, asker.confined)
}

// A peer that opens lane after lane, or asks for too much, gets nothing but refusals; its memory here is bounded.
func TestAPeerCannotAskForMoreThanItsShare(t *testing.T) {
	asker, owner, slice := pair(t)
	defer owner.holding()()
	s := slice()
	serve := func(m *message) *answer {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond) // the order goes on
		defer cancel()
		b, err := owner.open.Serve(ctx, asker.self, m.encode(nil))
		require.NoError(t, err)
		a, failure := readAnswer(b)
		require.Nil(t, failure)
		return a
	}
	order := orderOf(s)
	order.Offset, order.Lent = 0, transport.Lent{ID: 1, Size: 1 << 20}
	refused := 0
	for lane := range uint64(500) {
		if serve(&message{kind: begin, lane: lane, seq: 1, order: order}).state == busy {
			refused++
		}
	}
	require.Equal(t, 500-lanesMost, refused)
	require.Len(t, owner.open.(*delegate).desk.lanes, lanesMost)
	owner.awaitOrders(lanesMost)
	require.Equal(t, errs.Protocol, serve(&message{kind: begin, lane: 0, seq: 2, order: order}).err.Code,
		"the order of before has not ended")

	for name, change := range map[string]func(*transport.Order){
		"no parts":          func(o *transport.Order) { o.Places = nil },
		"too many parts":    func(o *transport.Order) { o.Places = make([]uint64, placesMost+1) },
		"no bytes":          func(o *transport.Order) { o.Bytes = 0 },
		"too many bytes":    func(o *transport.Order) { o.Bytes = bytesMost + 1 },
		"an overflow":       func(o *transport.Order) { o.Bytes, o.Places = 1<<63, []uint64{0, 0} },
		"beyond the memory": func(o *transport.Order) { o.Offset = 1 << 20 },
	} {
		bad := order
		change(&bad)
		m := message{kind: begin, lane: 99, seq: 1, order: bad}
		_, err := owner.open.Serve(t.Context(), asker.self, m.encode(nil))
		require.Equal(t, errs.Protocol, errs.CodeOf(err), name)
	}
	require.Equal(t, lanesMost, owner.count())
}

// A message is read as it was written, and no bytes of a peer do harm.
func FuzzMessagesOfPeers(f *testing.F) {
	m := message{kind: begin, lane: 1, seq: 2, order: transport.Order{Op: transport.Write, Class: 1, Epoch: 3, Key: 4,
		Places: []uint64{5, 6}, Bytes: 7, Offset: 8, Lent: transport.Lent{ID: 9, Size: 100,
			Descriptors: map[string]transport.Descriptor{"tcp": {1}, "rdma": {2, 3}}}}}
	f.Add(m.encode(nil))
	f.Add((&message{kind: cancel, lane: 1, seq: 2}).encode(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := decode(b)
		if err != nil {
			return
		}
		require.LessOrEqual(t, len(got.order.Places), placesMost)
		require.LessOrEqual(t, got.order.Length(), uint64(bytesMost))
		again, err := decode(got.encode(nil))
		require.Nil(t, err)
		require.Equal(t, got, again)
	})
}
