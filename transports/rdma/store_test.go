package rdma

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/verbs"
	"github.com/tent-engine/tent/transports/transporttest"
)

// crowd is one node with many links, over one device, and the region of each peer.
type crowd struct {
	f       *fake.Fake
	a       *transporttest.Node
	local   *transporttest.Operand
	links   []*transporttest.Conn
	remotes []*transporttest.Remote
	device  *device
}

const crowdSize = 64 << 10

// newCrowd attaches a node so often to a few others, with room for some rails.
func newCrowd(t *testing.T, links, peers, room int) *crowd {
	t.Helper()
	c := &crowd{f: fake.Open(t)}
	w := transporttest.NewWorld(t, transporttest.Harness{Patience: 20 * time.Second, Pinned: pinned,
		Open: func(t *testing.T, config transporttest.Config) transport.Transport {
			s := Settings{Library: c.f.Path, Devices: []string{"fake0"}, StoreCap: room, Lanes: 2,
				Clock: 2 * time.Second}
			tr, err := Factory{}.Open(t.Context(), s, config.Host, config.Sink)
			require.NoError(t, err)
			return tr
		}})
	c.a = w.Open("a")
	c.device = c.a.Transport.(*Transport).nics()[0]
	c.local = c.a.Register(t, crowdSize, mem.LocalReadWrite)
	c.local.Fill(moved, 0, crowdSize)
	nodes, operands := make([]*transporttest.Node, peers), make([]*transporttest.Operand, peers)
	for i := range nodes {
		nodes[i] = w.Open(fmt.Sprint("b", i))
		operands[i] = nodes[i].Register(t, crowdSize, mem.GlobalReadWrite)
	}
	for i := range links {
		link := c.a.Connect(t, nodes[i%peers])
		c.links = append(c.links, link)
		c.remotes = append(c.remotes, link.Import(t, operands[i%peers]))
	}
	return c
}

func (c *crowd) slice(t *testing.T, i int, at, length uint64) *transport.Slice {
	return c.links[i].Slice(transport.Write, c.links[i].Rail(t), c.local, at, c.remotes[i], at, length)
}

// use sends a slice to a peer.
func (c *crowd) use(t *testing.T, i int) { c.links[i].Must(t, c.slice(t, i, 0, 64)) }

// settle waits until no rail that has a place is being connected. SIEVE passes over rails that are.
func (c *crowd) settle(t *testing.T) {
	t.Helper()
	store := &c.device.store
	await(t, "lanes to be connected", func() bool {
		store.mu.Lock()
		defer store.mu.Unlock()
		for r := store.placed.First(); r != nil; r = store.placed.Next(&r.seat.place) {
			if !r.quiet() {
				return false
			}
		}
		return true
	})
}

// connected reports whether the rail to a peer has its queue pairs.
func (c *crowd) connected(t *testing.T, i int) bool {
	r := c.device.t.links.Lookup(c.links[i].Link).rail(0)
	r.mu.Lock()
	defer r.unlock()
	return r.lanes[0].pair != nil
}

func TestARailConnectsAtItsFirstUse(t *testing.T) {
	c := newCrowd(t, 3, 1, 100)
	require.Zero(t, c.f.Control(t, "pairs"), "nothing was sent")
	require.Contains(t, c.device.t.Explain(c.links[0].Link), "not used")
	c.use(t, 1)
	require.Equal(t, 2*2, c.f.Control(t, "pairs"), "both ends of two lanes")
	require.Equal(t, []bool{false, true, false},
		[]bool{c.connected(t, 0), c.connected(t, 1), c.connected(t, 2)})
}

// TestSieveSparesTheRailThatWasUsedAgain fills two places, and lets a third rail come: of the others the one goes that
// was used once.
func TestSieveSparesTheRailThatWasUsedAgain(t *testing.T) {
	c := newCrowd(t, 3, 1, 2)
	c.use(t, 0)
	c.use(t, 1)
	c.use(t, 0)
	c.settle(t)
	c.use(t, 2)
	require.Equal(t, []bool{true, false, true},
		[]bool{c.connected(t, 0), c.connected(t, 1), c.connected(t, 2)})
	rail := c.links[1].Rail(t)
	c.use(t, 1)
	require.Equal(t, rail, c.links[1].Rail(t), "it was up in the same generation all the time")
	require.NoError(t, c.remotes[1].Check(moved, 0, 0, 64))
}

// TestRailsBeyondTheCapTakeTurns keeps more peers busy than there are places. Each slice passes, and the number of
// rails with queue pairs stays within the cap.
func TestRailsBeyondTheCapTakeTurns(t *testing.T) {
	const peers, rounds, size = 5, 6, 4 << 10
	for _, room := range []int{1, 2, 4} {
		t.Run(fmt.Sprint(room), func(t *testing.T) {
			c := newCrowd(t, peers, peers, room)
			var all [peers][]*transport.Slice
			for round := range rounds {
				for i := range peers {
					var list []*transport.Slice
					for at := uint64(0); at < crowdSize; at += size {
						list = append(list, c.slice(t, i, at, size))
					}
					require.Equal(t, len(list), c.links[i].Send(list...))
					all[i] = append(all[i], list...)
				}
				c.device.store.mu.Lock()
				placed, most := c.device.store.placed.Len(), c.device.store.most
				c.device.store.mu.Unlock()
				require.LessOrEqual(t, placed, most, "round %d", round)
			}
			for i := range peers {
				for _, end := range c.links[i].Wait(t, all[i]...) {
					require.Nil(t, end.Err, "a slice to peer %d", i)
				}
				require.NoError(t, c.remotes[i].Check(moved, 0, 0, crowdSize))
			}
			await(t, "peers to close their ends of the others",
				func() bool { return c.f.Control(t, "pairs") <= 2*2*room })
		})
	}
}

// TestAThousandPeersCostLittleMemory attaches and uses each: with a small cap, memory is that of attached
// peers and of a few connected ones.
func TestAThousandPeersCostLittleMemory(t *testing.T) {
	const links, room = 1000, 8
	few := newCrowd(t, 1, 4, room)
	few.use(t, 0)
	before := heap()
	c := newCrowd(t, links, 4, room)
	attached := heap()
	for i := range links {
		c.use(t, i)
	}
	used := min(heap(), heap(), heap()) // a busy machine has something in flight at a look
	t.Logf("%d B a peer that is attached, %d B more after its use, both ends together",
		(attached-before)/links, (used-attached)/links)
	require.Less(t, (attached-before)/links, int64(8<<10))
	require.Less(t, (used-attached)/links, int64(2<<10))
	require.Equal(t, room, c.device.store.placed.Len())
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
