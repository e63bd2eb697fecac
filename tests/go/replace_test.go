package tests

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
	"github.com/tent-engine/tent/transports/loop"
	"github.com/tent-engine/tent/transports/sim"
	"github.com/tent-engine/tent/transports/tcp"
)

// Descriptors change under running transfers: nothing fails, the old keys are forgotten.

// versions are the descriptors of all replacers of a test: their owners' current ones, and the oldest that are served.
type versions struct {
	mu      sync.Mutex
	current map[version]uint64
	oldest  map[version]uint64
	refused atomic.Int64
	failing atomic.Int64  // imports that fail yet
	matched atomic.Uint64 // the newest key that Match was asked about
}

type version struct {
	owner transport.ID
	key   transport.LocalKey
}

// replacing makes descriptors of any transport change: each has a number before it, which slices must have.
type replacing struct {
	transport.Factory
	all    *versions
	opened *replacer
}

func (f *replacing) Open(ctx context.Context, settings any, host transport.Host, sink transport.Sink,
) (transport.Transport, error) {
	r := &replacer{sink: sink, host: host, all: f.all, inner: map[transport.LocalKey]transport.Descriptor{},
		out: map[*transport.Slice]*transport.Slice{}, core: map[*transport.Slice]*transport.Slice{}}
	var err error
	r.Transport, err = f.Factory.Open(ctx, settings, host, r)
	f.opened = r
	return r, err
}

// replacer stands between the engine and a transport, as both.
type replacer struct {
	transport.Transport
	sink transport.Sink
	host transport.Host
	all  *versions

	// Guarded by versions.mu.
	last    []transport.LocalKey // registered
	inner   map[transport.LocalKey]transport.Descriptor
	imports kit.Slots[transport.RemoteKey, numbered]
	out     map[*transport.Slice]*transport.Slice // by slice of the core: the inner transport's
	core    map[*transport.Slice]*transport.Slice // and the other way round
}

// numbered is an import: the inner transport's key, and the version of the descriptor.
type numbered struct {
	version
	inner  transport.RemoteKey
	number uint64
}

func (r *replacer) Inner() transport.Transport { return r.Transport }

func (r *replacer) Info() transport.Info {
	info := r.Transport.Info()
	info.Replaces = true
	return info
}

func (r *replacer) describe(key transport.LocalKey) transport.Descriptor {
	self := r.host.Self().ID
	d := binary.LittleEndian.AppendUint64(self[:], uint64(key))
	d = binary.LittleEndian.AppendUint64(d, r.all.current[version{self, key}])
	return append(d, r.inner[key]...)
}

func (r *replacer) Register(ctx context.Context, m mem.Region) (transport.LocalKey, transport.Descriptor, error) {
	key, d, err := r.Transport.Register(ctx, m)
	if err != nil {
		return 0, nil, err
	}
	r.all.mu.Lock()
	defer r.all.mu.Unlock()
	r.last, r.inner[key] = append(r.last, key), d
	return key, r.describe(key), nil
}

func (r *replacer) Import(l transport.Link, d transport.Descriptor) (transport.RemoteKey, error) {
	if r.all.failing.Add(-1) >= 0 {
		return 0, errs.New(errs.Timeout, "test.import", "the peer does not answer").
			WithScope(errs.ScopeLink, errs.SideUnknown)
	}
	const head = 32
	inner, err := r.Transport.Import(l, d[head:])
	if err != nil {
		return 0, err
	}
	made := &numbered{version{transport.ID(d[:16]), transport.LocalKey(binary.LittleEndian.Uint64(d[16:]))}, inner,
		binary.LittleEndian.Uint64(d[24:])}
	return r.imports.Insert(func(transport.RemoteKey) *numbered { return made }), nil
}

// Match implements transport.Matcher: the keys work on every rail.
func (r *replacer) Match(_ transport.Link, _ transport.LocalKey, there transport.RemoteKey) (transport.Match, error) {
	r.all.matched.Store(uint64(there))
	return transport.Match{}, nil
}

func (r *replacer) Forget(_ transport.Link, key transport.RemoteKey) { r.imports.Delete(key) }

// Submit refuses slices by descriptors that are not served any more. The others go on with the inner transport's key.
func (r *replacer) Submit(list []*transport.Slice) (accepted int) {
	for _, s := range list {
		n := r.imports.Lookup(s.RemoteKey)
		r.all.mu.Lock()
		if n == nil || n.number < r.all.oldest[n.version] {
			r.all.mu.Unlock()
			r.all.refused.Add(1)
			r.sink.Complete([]transport.Completion{{Slice: s, Id: s.Id, Err: transport.Replaced("test")}})
			accepted++
			continue
		}
		own := *s
		own.RemoteKey = n.inner
		r.out[s], r.core[&own] = &own, s
		r.all.mu.Unlock()
		if r.Transport.Submit([]*transport.Slice{&own}) == 0 {
			r.take(&own)
			break
		}
		accepted++
	}
	return accepted
}

// take returns the core's slice of one of the inner transport, which is back.
func (r *replacer) take(own *transport.Slice) *transport.Slice {
	r.all.mu.Lock()
	defer r.all.mu.Unlock()
	s := r.core[own]
	delete(r.core, own)
	delete(r.out, s)
	return s
}

func (r *replacer) Withdraw(list []*transport.Slice) {
	var inner []*transport.Slice
	r.all.mu.Lock()
	for _, s := range list {
		if own := r.out[s]; own != nil {
			inner = append(inner, own)
		}
	}
	r.all.mu.Unlock()
	r.Transport.Withdraw(inner)
}

func (r *replacer) Complete(list []transport.Completion) {
	list = slices.Clone(list)
	for i := range list {
		list[i].Slice = r.take(list[i].Slice)
	}
	r.sink.Complete(list)
}

func (r *replacer) Ready(rail transport.Rail)                       { r.sink.Ready(rail) }
func (r *replacer) Progress(rail transport.Rail)                    { r.sink.Progress(rail) }
func (r *replacer) RailUp(info transport.RailInfo)                  { r.sink.RailUp(info) }
func (r *replacer) RailDown(rail transport.Rail, cause *errs.Error) { r.sink.RailDown(rail, cause) }
func (r *replacer) LinkDown(l transport.Link, cause *errs.Error)    { r.sink.LinkDown(l, cause) }
func (r *replacer) Notified(from transport.Peer, message []byte) bool {
	return r.sink.Notified(from, message)
}

// Fenced is not used by this test: the inner transport's keys mean nothing here.
func (r *replacer) Fenced(l transport.Link, _ transport.RemoteKey, epoch transport.Epoch) {
	r.sink.Fenced(l, 0, epoch)
}

// replace gives the region that was registered last another descriptor.
func (r *replacer) replace(serve bool) {
	r.all.mu.Lock()
	key := r.last[len(r.last)-1]
	v := version{r.host.Self().ID, key}
	r.all.current[v]++
	if !serve {
		r.all.oldest[v] = r.all.current[v]
	}
	d := r.describe(key)
	r.all.mu.Unlock()
	r.host.Describe(key, d)
}

// changer opens engines of one kind; change replaces the descriptor of the region that one of them registered last.
type changer struct {
	open    func(t *testing.T) *engine.Engine
	change  func(e *engine.Engine, serve bool)
	imports func(e *engine.Engine) int
	refused func() int64
	failing *atomic.Int64 // imports that fail yet
	matched *atomic.Uint64
}

func changers() map[string]func(t *testing.T) *changer {
	return map[string]func(t *testing.T) *changer{
		"tcp":  func(*testing.T) *changer { return replacers(tcp.Factory{}) },
		"loop": func(*testing.T) *changer { return replacers(loop.Factory{}) },
	}
}

func replacers(over transport.Factory) *changer {
	all := &versions{current: map[version]uint64{}, oldest: map[version]uint64{}}
	opened := map[*engine.Engine]*replacing{}
	return &changer{
		open: func(t *testing.T) *engine.Engine {
			f := &replacing{Factory: over, all: all}
			c, err := config.Load(config.Options{Transports: config.WithRails(over.Name())}, nil)
			require.NoError(t, err)
			e, err := engine.Open(t.Context(), engine.Options{Config: c, Transports: []engine.Plug{{Factory: f,
				Settings: settingsOf(over)}}})
			require.NoError(t, err)
			t.Cleanup(func() { require.Empty(t, e.Close(patience, true)); require.NoError(t, e.Forget()) })
			opened[e] = f
			return e
		},
		change:  func(e *engine.Engine, serve bool) { opened[e].opened.replace(serve) },
		imports: func(e *engine.Engine) int { return opened[e].opened.imports.Len() },
		refused: all.refused.Load,
		failing: &all.failing,
		matched: &all.matched,
	}
}

func settingsOf(f transport.Factory) any {
	if c, is := f.(transport.Configured); is {
		return c.Settings()
	}
	return nil
}

func TestTransfersGoOnWhileDescriptorsChange(t *testing.T) {
	for name, make := range changers() {
		t.Run(name, func(t *testing.T) {
			seed := uint64(time.Now().UnixNano())
			t.Logf("seed %d", seed)
			random := rand.New(rand.NewPCG(seed, 0))
			c := make(t)
			a, b := c.open(t), c.open(t)
			const size, piece = 8 << 20, 256 << 10
			source, back := newGuarded(t, size), newGuarded(t, size)
			target := newGuarded(t, size)
			offer(t, a, source.bytes, "")
			offer(t, a, back.bytes, "")
			offer(t, b, target.bytes, "kv")
			peer := segment(t, a, b, "kv")
			for round := range 12 {
				fill(source.bytes, round)
				for _, op := range []transport.Op{transport.Write, transport.Read} {
					local := source
					if op == transport.Read {
						local = back
					}
					var ids []dispatch.BatchID
					for at := 0; at < size; at += piece {
						id, err := a.Move(&engine.Request{Terms: engine.Terms{Op: op},
							Source: address(local.bytes) + uintptr(at), Length: piece,
							Remote: engine.Remote{Segment: peer, Offset: uint64(at)}})
						require.NoError(t, err)
						ids = append(ids, id)
						if random.IntN(8) == 0 {
							c.change(b, random.IntN(2) == 0)
						}
					}
					for _, id := range ids {
						sum := ended(t, a, id)
						require.Equal(t, dispatch.Completed, sum.State, "%v", sum.Err)
					}
				}
				same(t, target.bytes, round, 0)
				same(t, back.bytes, round, 0)
			}
			for _, g := range []guarded{source, back, target} {
				g.check(t)
			}
			require.NotZero(t, c.refused(), "no slice ever met a replaced descriptor")
			require.Eventually(t, func() bool { return c.imports(a) == 1 }, patience, time.Millisecond,
				"old keys are never forgotten")
		})
	}
}

// Running transfers have plans; the rails of the new key are asked for with these, and not with the next plan alone.
func TestTheRailsOfANewDescriptorAreAskedForAtOnce(t *testing.T) {
	c := replacers(sim.Factory{Settings: sim.Settings{Network: sim.NewInline(1)}})
	a, b := c.open(t), c.open(t)
	const size = 4 << 10
	source, target := newGuarded(t, size), newGuarded(t, size)
	offer(t, a, source.bytes, "")
	offer(t, b, target.bytes, "kv")
	id, err := a.Move(&engine.Request{Terms: engine.Terms{Op: transport.Write}, Source: address(source.bytes),
		Length: size, Remote: engine.Remote{Segment: segment(t, a, b, "kv")}})
	require.NoError(t, err)
	require.Equal(t, dispatch.Completed, ended(t, a, id).State)
	old := c.matched.Load()
	require.NotZero(t, old)
	c.change(b, true)
	require.Eventually(t, func() bool { return c.matched.Load() != old }, patience, time.Millisecond)
}

// An import asks the peer, and may fail by a peer that is busy. The next one finds it well.
func TestTransfersGoOnWhileImportsOfNewDescriptorsFail(t *testing.T) {
	for name, make := range changers() {
		for _, times := range []int64{1, 3} {
			t.Run(fmt.Sprintf("%s, %d in a row", name, times), func(t *testing.T) {
				c := make(t)
				a, b := c.open(t), c.open(t)
				const size, piece = 16 << 20, 256 << 10
				source, target := newGuarded(t, size), newGuarded(t, size)
				offer(t, a, source.bytes, "")
				offer(t, b, target.bytes, "kv")
				peer := segment(t, a, b, "kv")
				fill(source.bytes, 1)
				var ids []dispatch.BatchID
				for at := 0; at < size; at += piece {
					id, err := a.Move(&engine.Request{Terms: engine.Terms{Op: transport.Write},
						Source: address(source.bytes) + uintptr(at), Length: piece,
						Remote: engine.Remote{Segment: peer, Offset: uint64(at)}})
					require.NoError(t, err)
					ids = append(ids, id)
					if at == size/2 {
						c.failing.Store(times)
						c.change(b, false)
					}
				}
				for _, id := range ids {
					sum := ended(t, a, id)
					require.Equal(t, dispatch.Completed, sum.State, "%v", sum.Err)
				}
				same(t, target.bytes, 1, 0)
				require.Negative(t, c.failing.Load(), "nothing was imported again")
			})
		}
	}
}
