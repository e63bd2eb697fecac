//go:build cgo

package staged

import (
	"context"
	"encoding/binary"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/all"
	"github.com/tent-engine/tent/transports/delegate"
)

// tap is the transport of orders, with a line to peers that a test may hear and use.
type tap struct {
	delegate.Factory
	line *line
}

// line stands between an engine and its transport of orders. Hears has each message before it is sent, if it is set.
type line struct {
	transport.Host
	transport.Deputy
	hears atomic.Pointer[func(message []byte)]
}

func (t tap) Open(ctx context.Context, config any, host transport.Host, sink transport.Sink) (transport.Transport,
	error,
) {
	t.line.Host, t.line.Deputy = host, host.(transport.Deputy)
	return t.Factory.Open(ctx, config, t.line, sink)
}

// Call sends a message.
func (l *line) Call(ctx context.Context, to transport.Peer, message []byte) ([]byte, error) {
	if hears := l.hears.Load(); hears != nil {
		(*hears)(message)
	}
	return l.Host.Call(ctx, to, message)
}

// overLine opens an engine with a line that the test has, too.
func overLine(more map[string]any) (*engine.Engine, *line, error) {
	to := &line{}
	factories := all.Factories()
	at := slices.IndexFunc(factories, func(f transport.Factory) bool { return f.Name() == delegate.Name })
	factories[at] = tap{line: to}
	e, err := openOver(factories, more)
	return e, to, err
}

func tapped(t *testing.T) (*engine.Engine, *line) {
	e, to, err := overLine(nil)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.Empty(t, e.Close(patience, true), "the engine could not take everything back")
		require.NoError(t, e.Forget())
	})
	return e, to
}

// asker is an engine that gives orders, with memory of the host that it lends. A test may write its messages.
type asker struct {
	*engine.Engine
	t     *testing.T
	line  *line
	stage memory
	lent  transport.Lent // the stage, as an order names it
	seq   atomic.Uint64  // of the newest order
}

func newAsker(t *testing.T) *asker {
	a := &asker{t: t}
	a.Engine, a.line = tapped(t)
	var id mem.RegionID
	var err error
	a.stage, id, err = give(a.Engine, -1, "stage", 9)
	require.NoError(t, err)
	t.Cleanup(func() { release(t, a.Engine, a.stage, id) })
	for _, r := range regionsOf(t, a.Engine, engine.Local) {
		if r.ID == id {
			a.lent = transport.Lent{ID: id, Size: r.Size, Descriptors: r.Descriptors}
		}
	}
	require.Contains(t, a.lent.Descriptors, "tcp")
	return a
}

// name is the pattern of identities that this engine alone has.
func (a *asker) name() string { return "id:" + a.Self().ID.String() }

// knows returns the keys by which the peer names a keeper's open regions in its orders.
func (a *asker) knows(k *keeper) map[string]uint64 {
	keys := make(map[string]uint64)
	for _, r := range regionsOf(a.t, a.Engine, openAt(a.t, a.Engine, k.Address())) {
		keys[r.Name] = keyIn(r.Descriptors[delegate.Name])
	}
	return keys
}

// keyIn returns the key of a descriptor of orders, behind the ID of its owner.
func keyIn(d transport.Descriptor) uint64 { return binary.LittleEndian.Uint64(d[len(transport.ID{}):]) }

// order returns one that moves n bytes between the begin of a region and of the asker's stage. It is the next one of
// lane 0, so that of before has ended.
func (a *asker) order(op transport.Op, key, n uint64) order {
	return order{kind: begin, seq: a.seq.Add(1), op: op, key: key, bytes: n, places: []uint64{0}, lent: a.lent}
}

// gives sends an order and waits for its end.
func (a *asker) gives(k *keeper, o order) errs.Code {
	a.t.Helper()
	return outcome(a.t, a.line.Call, k, o)
}

// lends returns the pool that the engine has lent to a peer.
func (a *asker) lends() (pool transport.Lent) {
	for key := range transport.LocalKey(1 << 10) { // generations and indexes below 32
		if pool, is := a.line.Lent(key>>5<<32 | key&31); is {
			return pool
		}
	}
	require.FailNow(a.t, "the engine has lent nothing")
	return pool
}

// Kinds of messages, and states in their answers, as package delegate has them.
const (
	begin, ask, cancel = 1, 2, 3

	pending, ended, unknown, busy = 1, 2, 3, 4
)

// order is a message of package delegate. The test writes it by itself, so that it may be a wrong one.
type order struct {
	kind      byte
	lane, seq uint64
	op        transport.Op
	epoch     uint64
	key       uint64
	bytes     uint64 // of each part
	places    []uint64
	offset    uint64
	lent      transport.Lent
}

func (o order) as(kind byte) order {
	o.kind = kind
	return o
}

func (o order) encode() []byte {
	word := binary.LittleEndian.AppendUint64
	b := word(word([]byte{o.kind}, o.lane), o.seq)
	if o.kind != begin {
		return b
	}
	b = append(b, byte(o.op), 0) // of class 0
	for _, v := range []uint64{o.epoch, o.key, o.bytes, o.offset, uint64(o.lent.ID), o.lent.Size} {
		b = word(b, v)
	}
	b = append(b, byte(len(o.lent.Descriptors)))
	for name, d := range o.lent.Descriptors {
		b = append(append(b, byte(len(name))), name...)
		b = append(binary.LittleEndian.AppendUint32(b, uint32(len(d))), d...)
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(len(o.places)))
	for _, at := range o.places {
		b = word(b, at)
	}
	return b
}

// voice sends messages of orders to an engine.
type voice = func(ctx context.Context, to transport.Peer, message []byte) ([]byte, error)

// says sends one message, and returns the state of its order; an error is its end.
func says(t *testing.T, by voice, k *keeper, o order) (state byte, code errs.Code) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	answer, err := by(ctx, k.Self(), o.encode())
	if err != nil {
		return ended, errs.CodeOf(err)
	}
	return answer[0], errs.Code(binary.LittleEndian.Uint32(answer[2:]))
}

// outcome sends an order and asks until it has ended.
func outcome(t *testing.T, by voice, k *keeper, o order) errs.Code {
	t.Helper()
	for end := time.Now().Add(patience); ; runtime.Gosched() {
		switch state, code := says(t, by, k, o); state {
		case ended:
			return code
		case pending:
			o.kind = ask
		default:
			o.kind = begin
		}
		require.Less(t, time.Now(), end, "the order does not end")
	}
}
