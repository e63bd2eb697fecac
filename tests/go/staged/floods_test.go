//go:build cgo

package staged

import (
	"maps"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/cuda"
	"github.com/tent-engine/tent/tests/forked"
)

// heap returns the bytes of spans that are in use. Pools of buffers are empty after the second collection.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse)
}

// Bounds of the orders of a peer, as package delegate states them.
const (
	openMost   = 16
	placesMost = 4096
	bytesMost  = 1 << 30
	keptFor    = 10 * time.Second // a lane behind its order; then another one may have its place
	heapMost   = 12 << 20         // of the keeper, for all orders of one peer
)

// A peer gives orders as fast as it is let, each on a lane of its own, with as many parts and descriptors as fit. The
// keeper has openMost of them under way, its memory is bounded, and a transfer of another peer ends beside them.
func TestAFloodOfOrdersIsBounded(t *testing.T) {
	const lanes = 300
	fake.Run(t, fake.Driver{}, slow(t), func(t *testing.T, _ *fake.Loaded) {
		friend, flood := newAsker(t), newAsker(t)
		k := newKeeper(t, friend)
		to := open(t, friend.Engine, k.Address())
		k.warm(friend)
		key := flood.knows(k)["shown"]
		o := flood.order(transport.Read, key, size/placesMost)
		o.places = make([]uint64, placesMost)
		for i := range o.places {
			o.places[i] = uint64(i) * o.bytes
		}
		before, began := heap(), time.Now()
		var senders sync.WaitGroup
		var started, refused, next atomic.Int64
		for range 2 * openMost { // those that are not refused wait here
			senders.Go(func() {
				for n := next.Add(1); n < lanes; n = next.Add(1) {
					one := o
					one.lane = uint64(n)
					if state, _ := says(t, flood.line.Call, k, one); state == busy {
						refused.Add(1)
					} else {
						started.Add(1)
					}
				}
			})
		}
		id, err := friend.Move(request(transport.Write, friend.stage, to, 0, size))
		require.NoError(t, err)
		s := finish(t, friend.Engine, id)
		require.Equal(t, dispatch.Completed, s.State, "%v", s.Err)
		copy(k.regions["cache"].must[band:], friend.stage.mustAll(t)()[band:band+size])
		senders.Wait()
		rounds := 1 + int64(time.Since(began)/keptFor) // one, unless the machine is very busy
		require.GreaterOrEqual(t, started.Load(), int64(openMost))
		require.LessOrEqual(t, started.Load(), openMost*rounds, "lanes of one peer, of %d", lanes)
		require.Less(t, heap()-before, int64(heapMost))
		k.settles(friend, "a flood of orders")
	})
}

// A message beyond a bound is no order, with any other words.
func TestAnOrderBeyondABoundIsRefused(t *testing.T) {
	fake.Run(t, fake.Driver{}, nil, func(t *testing.T, _ *fake.Loaded) {
		friend := newAsker(t)
		k := newKeeper(t, friend)
		k.warm(friend)
		for name, change := range map[string]func(*order){
			"parts": func(o *order) { o.places = make([]uint64, placesMost+1) },
			"bytes": func(o *order) { o.bytes, o.lent.Size = bytesMost+1, 2*bytesMost },
			"bytes of all parts": func(o *order) {
				o.bytes, o.lent.Size, o.places = bytesMost/placesMost+1, 2*bytesMost, make([]uint64, placesMost)
			},
			"the lent memory": func(o *order) { o.offset = o.lent.Size - o.bytes + 1 },
			"descriptors": func(o *order) {
				o.lent.Descriptors = maps.Clone(o.lent.Descriptors)
				o.lent.Descriptors["none"] = make([]byte, 1<<19)
			},
		} {
			o := friend.order(transport.Read, friend.knows(k)["shown"], size)
			change(&o)
			require.Equal(t, errs.Protocol, friend.gives(k, o), name)
		}
		k.settles(friend, "orders beyond the bounds")
	})
}

// An asker that stops holds orders in all the slots that it can get. Another peer's transfer passes, long before those
// are given up.
func TestAStoppedAskerLeavesSlotsToOthers(t *testing.T) {
	fake.Run(t, fake.Driver{}, slow(t), func(t *testing.T, _ *fake.Loaded) {
		friend := newAsker(t)
		k := newKeeper(t, friend)
		to := open(t, friend.Engine, k.Address())
		k.warm(friend)
		c := start(t, 0)
		c.do("Meet", k.Address(), &forked.Nothing{})
		c.do("Flood", forked.Nothing{}, &forked.Nothing{})
		k.awaitFree(1)
		require.NoError(t, c.Stop())
		begun := time.Now()
		s := moved(t, friend.Engine, request(transport.Write, friend.stage, to, 0, size))
		require.Equal(t, dispatch.Completed, s.State, "%v", s.Err)
		require.Less(t, time.Since(begun), 5*time.Second)
		c.Kill()
		awaitSlots(t, k.Engine)
		copy(k.regions["cache"].must[band:], friend.stage.mustAll(t)()[band:band+size])
		k.quiet(friend, "cache", "a stopped asker")
	})
}

// open counts the peers that the keeper has open.
func (k *keeper) open() (n int) {
	for _, p := range k.Peers() {
		if p.Open {
			n++
		}
	}
	return n
}

// Askers that cannot be called back are not remembered: each order of another one would take memory for good.
func TestAskersThatAreNotThereAreForgotten(t *testing.T) {
	const many = 40
	fake.Run(t, fake.Driver{}, nil, func(t *testing.T, _ *fake.Loaded) {
		friend := newAsker(t)
		k := newKeeper(t, friend)
		k.warm(friend)
		key := friend.knows(k)["shown"]
		before := k.open()
		claims := friend.Self()
		claims.Address = "127.0.0.1:1"
		for range many {
			by, _ := liar(t, claims)
			require.NotEqual(t, errs.OK, outcome(t, by, k, friend.order(transport.Read, key, 4096)))
		}
		require.Equal(t, before, k.open())
		k.settles(friend, "askers that are not there")
	})
}
