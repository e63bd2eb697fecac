package tests

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/sim"
)

// busy is a transport with copies queued for ever, all of them somebody else's.
type busy struct {
	transport.Transport
	polling atomic.Int32 // Polls since the last Arm
	copies  atomic.Int32
	most    atomic.Int32 // budget
	copied  func(n int32)
}

func (b *busy) Poll(budget int, classes transport.Classes) int {
	b.polling.Add(1)
	b.most.Store(max(b.most.Load(), int32(budget)))
	n := b.copies.Add(1)
	if b.copied != nil {
		b.copied(n)
	}
	return 1
}

func (b *busy) Arm() { b.polling.Store(0) }

func (b *busy) Info() transport.Info {
	info := b.Transport.Info()
	info.Copies = true // so waiters look for one copy at a time, not for answers
	return info
}

type busied struct {
	sim.Factory
	made chan *busy
}

func (f busied) Open(ctx context.Context, config any, host transport.Host, sink transport.Sink) (transport.Transport,
	error) {
	t, err := f.Factory.Open(ctx, config, host, sink)
	if err != nil {
		return nil, err
	}
	b := &busy{Transport: t}
	f.made <- b
	return b, nil
}

// A waiter carries out copies that are queued, one at a time. It leaves when its time is over or its batch has ended,
// however much is left for others.
func TestAWaiterIsNotCapturedByOthersCopies(t *testing.T) {
	n := sim.NewInline(1)
	made := make(chan *busy, 2)
	plug := func() []engine.Plug {
		return []engine.Plug{{Factory: busied{sim.Factory{Settings: sim.Settings{Network: n}}, made}}}
	}
	here, there := open(t, nil, []string{"sim"}, plug), open(t, nil, []string{"sim"}, plug)
	b := <-made
	own, theirs := memory(t, 4096), newGuarded(t, 4096)
	fill(own, 1)
	offer(t, here, own, "")
	offer(t, there, theirs.bytes, "kv")
	at := segment(t, here, there, "kv")
	n.Cut(sim.Anywhere)
	id, err := here.Move(&engine.Request{Terms: engine.Terms{Op: transport.Write}, Source: address(own), Length: 4096,
		Remote: engine.Remote{Segment: at}})
	require.NoError(t, err)

	require.Equal(t, dispatch.Pending, here.Wait(id, 20*time.Millisecond), "its time was over")
	require.NotZero(t, b.copies.Load(), "it has helped meanwhile")
	require.Zero(t, b.polling.Load(), "the rest was left to the workers")
	require.Zero(t, here.WaitMany([]dispatch.BatchID{id}, 1, 20*time.Millisecond))
	require.EqualValues(t, 1, b.most.Load(), "one copy between two looks")

	from := b.copies.Load()
	b.copied = func(done int32) {
		if done == from+10 {
			n.Heal(sim.Anywhere)
		}
	}
	require.Equal(t, dispatch.Completed, here.Wait(id, patience))
	require.LessOrEqual(t, b.copies.Load(), from+10, "it left with its own batch")
	require.Zero(t, b.polling.Load())
	require.NoError(t, here.FreeBatch(id))
	same(t, theirs.bytes, 1, 0)
	theirs.check(t)
}
