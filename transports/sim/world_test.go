package sim

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/transporttest"
)

// engine is one end of a driven network: host, sink and a journal of the sink's calls, with virtual times.
type engine struct {
	n       *Network
	t       *Transport
	self    transport.Peer
	journal []string
	ends    map[uint64]transport.Completion
	when    map[uint64]clock.Time
	rails   map[uint16]transport.Rail
	ready   int
	down    *errs.Error
	ids     uint64
}

func (e *engine) Self() transport.Peer                              { return e.self }
func (e *engine) Describe(transport.LocalKey, transport.Descriptor) {}
func (e *engine) Refused(transport.Refusal, string, error)          {}
func (e *engine) Log() *slog.Logger                                 { return slog.Default() }
func (e *engine) Addresses() []netip.Addr                           { return nil }
func (e *engine) Call(context.Context, transport.Peer, []byte) ([]byte, error) {
	return nil, errs.New(errs.NotImplemented, "call", "not in a simulation")
}

func (e *engine) note(format string, args ...any) {
	e.journal = append(e.journal, fmt.Sprintf("%d ", e.n.Now())+fmt.Sprintf(format, args...))
}

func (e *engine) Complete(list []transport.Completion) {
	for _, c := range list {
		e.note("slice %d: %v", c.Slice.Id, c.Err)
		e.ends[c.Slice.Id], e.when[c.Slice.Id] = c, e.n.Now()
	}
}
func (e *engine) Ready(r transport.Rail)  { e.note("ready %v", r); e.ready++ }
func (e *engine) Progress(transport.Rail) {}
func (e *engine) RailUp(i transport.RailInfo) {
	e.note("up %v", i.Rail)
	e.rails[i.Rail.Index] = i.Rail
}
func (e *engine) RailDown(r transport.Rail, err *errs.Error) {
	e.note("down %v: %v", r, err)
	delete(e.rails, r.Index)
}
func (e *engine) LinkDown(l transport.Link, err *errs.Error) {
	e.note("link %v: %v", l, err)
	e.down = err
	clear(e.rails)
}
func (e *engine) Fenced(transport.Link, transport.RemoteKey, transport.Epoch) {}

func (e *engine) Notified(from transport.Peer, message []byte) bool {
	e.note("%s says %q", from.Address, message)
	return true
}

var births uint64

func open(t testing.TB, n *Network, address string, s Settings) *engine {
	t.Helper()
	births++
	e := &engine{n: n, self: transport.Peer{Address: address, ID: transport.NumberedID(births)},
		ends: map[uint64]transport.Completion{},
		when: map[uint64]clock.Time{}, rails: map[uint16]transport.Rail{}}
	s.Network = n
	tr, err := Factory{}.Open(t.Context(), s, e, e)
	require.NoError(t, err)
	e.t = tr.(*Transport)
	return e
}

// operand is registered memory of an engine, with the key under which another one imported it.
type operand struct {
	*transporttest.Memory
	key    transport.LocalKey
	remote transport.RemoteKey
}

func (e *engine) register(t testing.TB, size int, kind mem.Kind) *operand {
	t.Helper()
	m := transporttest.NewMemory(t, size, 1)
	t.Cleanup(m.Free)
	key, _, err := e.t.Register(t.Context(), mem.Region{Addr: m.Addr, Size: m.Size, Kind: kind,
		Permission: mem.GlobalReadWrite})
	require.NoError(t, err)
	return &operand{Memory: m, key: key}
}

// expose imports an operand of another engine.
func (e *engine) expose(t testing.TB, l transport.Link, owner *engine, o *operand) *operand {
	t.Helper()
	var err error
	o.remote, err = e.t.Import(l, owner.t.encode(owner.t.regions.Lookup(o.key)))
	require.NoError(t, err)
	return o
}

func (e *engine) slice(op transport.Op, rail uint16, local *operand, lo uint64, remote *operand, ro,
	length uint64) *transport.Slice {
	e.ids++
	return &transport.Slice{Op: op, Rail: e.rails[rail], LocalKey: local.key, RemoteKey: remote.remote,
		Local: local.Addr + uintptr(lo), Remote: ro, Length: length, Id: e.ids}
}

// duet is two engines, the first attached to the second, with operands of 1 MiB.
type duet struct {
	n             *Network
	a, b          *engine
	link          transport.Link
	local, remote *operand
}

func newDuet(t testing.TB, seed uint64, rails int, shape Shape) *duet {
	t.Helper()
	n := New(seed)
	n.Shape(Anywhere, shape)
	d := &duet{n: n, a: open(t, n, "a:1", Settings{Rails: rails}), b: open(t, n, "b:1", Settings{Rails: rails})}
	var err error
	d.link, err = d.a.t.Attach(d.b.self)
	require.NoError(t, err)
	d.idle()
	require.Len(t, d.a.rails, rails)
	d.local = d.a.register(t, 1<<20, mem.Host)
	d.remote = d.a.expose(t, d.link, d.b, d.b.register(t, 1<<20, mem.Host))
	d.local.Fill(2, 0, d.local.Size)
	return d
}

// idle runs the network until nothing happens by itself.
func (d *duet) idle() {
	for next := d.n.NextEvent(); next != clock.Never; next = d.n.NextEvent() {
		d.n.Advance(next)
	}
}

func (d *duet) writes(n int, length uint64) (list []*transport.Slice) {
	for i := range uint64(n) {
		list = append(list, d.a.slice(transport.Write, 0, d.local, i*length, d.remote, i*length, length))
	}
	return list
}

func (d *duet) arrived(s *transport.Slice) bool {
	return d.remote.Check(2, s.Remote, s.Remote, s.Length) == nil
}

const millisecond = clock.Time(time.Millisecond)
