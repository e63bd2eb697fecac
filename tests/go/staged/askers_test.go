//go:build cgo

package staged

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/cuda"
	"github.com/tent-engine/tent/tests/forked"
	"github.com/tent-engine/tent/transports/delegate"
)

// Begin starts a transfer between all of the memory and the region "cache" of the peer. It returns when that holds a
// slot of this engine: the first hop is under way.
func (a *Actor) Begin(op transport.Op, _ *forked.Nothing) (err error) {
	if a.batch, err = a.engine.Move(request(op, a.memory, a.peer, 0, size)); err != nil {
		return err
	}
	for end := time.Now().Add(patience); time.Now().Before(end); runtime.Gosched() {
		now := a.engine.Metrics()
		if now["tent_staging_slots_free"] < now["tent_staging_slots"] {
			return nil
		}
	}
	return errors.New("the transfer holds no slot")
}

// Finish waits for the end of that, which is no success.
func (a *Actor) Finish(_ forked.Nothing, _ *forked.Nothing) error {
	if state := a.engine.Wait(a.batch, patience); !state.Terminal() || state == dispatch.Completed {
		return fmt.Errorf("the transfer is %v", state)
	}
	return nil
}

// Flood gives as many orders as a peer may have open, each for the whole region "cache" of the peer.
func (a *Actor) Flood(_ forked.Nothing, _ *forked.Nothing) error {
	_, stage, err := give(a.engine, -1, "stage", 9)
	if err != nil {
		return err
	}
	own, err := a.engine.Segment(context.Background(), engine.Local, true)
	if err != nil {
		return err
	}
	peer, err := a.engine.Segment(context.Background(), a.peer, true)
	if err != nil {
		return err
	}
	o := order{kind: begin, seq: 1, op: transport.Write, bytes: size, places: []uint64{0}}
	for _, r := range own.Regions {
		if r.ID == stage {
			o.lent = transport.Lent{ID: stage, Size: r.Size, Descriptors: r.Descriptors}
		}
	}
	for _, r := range peer.Regions {
		if r.Name == "cache" {
			o.key = keyIn(r.Descriptors[delegate.Name])
		}
	}
	for o.lane = range uint64(openMost) {
		go func(b []byte) {
			ctx, done := context.WithTimeout(context.Background(), patience)
			defer done()
			_, _ = a.line.Host.Call(ctx, peer.Peer, b)
		}(o.encode())
	}
	return nil
}

// hops are the moments at which an asker ends. It copies to its stage then, or its keeper reads from there, or the
// keeper copies out of its device.
var hops = []struct {
	name   string
	op     transport.Op
	keeper bool // has an order
}{{"the asker's copy", transport.Write, false}, {"the wire", transport.Write, true},
	{"the keeper's copy", transport.Read, true}}

// starts begins a transfer of a child, as far as a hop.
func starts(t *testing.T, k *keeper, op transport.Op, order bool) *child {
	c := start(t, 0)
	c.do("Meet", k.Address(), &forked.Nothing{})
	free := k.Metrics()["tent_staging_slots_free"]
	c.do("Begin", op, &forked.Nothing{})
	if order {
		k.awaitFree(free - 1)
	}
	return c
}

// An asker is killed in each hop. The slots of its orders come back, the bytes that they have left behind in the region
// stay, and other peers go on.
func TestAnAskerIsKilledInEachHop(t *testing.T) {
	fake.Run(t, fake.Driver{}, slow(t), func(t *testing.T, _ *fake.Loaded) {
		friend := newAsker(t)
		k := newKeeper(t, friend)
		k.warm(friend)
		for _, hop := range hops {
			starts(t, k, hop.op, hop.keeper).Kill()
			awaitSlots(t, k.Engine)
			k.quiet(friend, "cache", hop.name)
		}
		k.settles(friend, "killed askers")
	})
}

// Askers are stopped, one in each hop. A fence of the region returns all the same, and others are served. When they go
// on, nothing of their transfers lands, and all slots come back.
func TestAskersAreStoppedInEachHop(t *testing.T) {
	fake.Run(t, fake.Driver{}, slow(t), func(t *testing.T, _ *fake.Loaded) {
		settings["staging/slots"] = 32 // a stopped asker holds its own
		friend := newAsker(t)
		k := newKeeper(t, friend)
		k.warm(friend)
		var stopped []*child
		for _, hop := range hops {
			c := starts(t, k, hop.op, hop.keeper)
			require.NoError(t, c.Stop())
			stopped = append(stopped, c)
		}
		ctx, done := context.WithTimeout(t.Context(), patience)
		defer done()
		cache := k.regions["cache"]
		require.NoError(t, k.FenceRegion(ctx, cache.id, ""))
		cache.must = cache.mustAll(t)() // slots on the wire to those that are stopped may stay taken
		k.warm(friend)
		k.unchanged("behind the fence")
		for _, c := range stopped {
			require.NoError(t, c.Signal(unix.SIGCONT))
			c.do("Finish", forked.Nothing{}, &forked.Nothing{})
		}
		k.settles(friend, "askers that go on")
	})
}
