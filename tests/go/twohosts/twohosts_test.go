//go:build cgo

package twohosts

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/cuda"
	"github.com/tent-engine/tent/tests/netbed"
)

// Bytes go to and from the inside of memory of another host, over the borders of its chunks, and nothing around them
// changes.
func TestBytesReachADeviceOfAnotherHost(t *testing.T) {
	for name, kind := range map[string]Kind{"Allocated": Allocated, "Fabric": Fabric} {
		t.Run(name, func(t *testing.T) {
			late := fake.Settings{"DELAY_US": "20", "SEED": fmt.Sprint(rand.Int32())}
			inDomain(t, late, func(t *testing.T, gpu *fake.Loaded) {
				c, e := start(t, alone()), here(t, alone())
				c.do("Own", kind, &netbed.Nothing{})
				local, to := mine(t, e), open(t, e, c)
				expected, read, empty := pattern(1, size), make([]byte, size), make([]byte, size)
				for i := range uint64(6) {
					n := 1 + rand.Uint64N(size-2*band)
					offset := rand.Uint64N(size - 2*band - n + 1)
					bytes := pattern(2+i, int(n))
					require.NoError(t, gpu.Poke(local, bytes))
					require.NoError(t, move(e, transport.Write, local, n, to, offset))
					copy(expected[band+offset:], bytes)
					c.do("Peek", netbed.Nothing{}, &read)
					require.Equal(t, expected, read, "%d bytes at %d", n, offset)
					require.NoError(t, gpu.Poke(local, empty))
					require.NoError(t, move(e, transport.Read, local, n, to, offset))
					require.NoError(t, gpu.Peek(read, local))
					require.Equal(t, bytes, read[:n])
					require.Equal(t, empty[n:], read[n:])
				}
				made, err := e.Explain(&engine.Request{Source: local, Remote: engine.Remote{Segment: to}, Length: 4096})
				require.NoError(t, err)
				require.Equal(t, "mnnvl", made.Taken)
				require.Contains(t, made.Routes[0].Detail, "mapped over NVLink")
				c.do("Peek", netbed.Nothing{}, &read)
				require.Equal(t, expected, read, "a second look")
			})
		})
	}
}

// Without a way mnnvl is left out, and the error has the reason: of the peer, of its memory, or of the driver.
func TestAReasonIsGivenWhereThereIsNoWay(t *testing.T) {
	for name, c := range map[string]struct {
		kind  Kind
		owner []string // more of its environment
		says  string
	}{
		"another clique":          {Allocated, []string{"TENT_FAKENVML_CLIQUE=8"}, "in clique 7 of the NVLink domain"},
		"another cluster":         {Allocated, []string{"TENT_FAKENVML_CLUSTER=5"}, "NVLink domain c1c1"},
		"descriptors alone":       {Passed, nil, "asked for no fabric handle"},
		"memory of cudaMalloc":    {Legacy, nil, "asked for no fabric handle"},
		"another channel":         {Allocated, []string{"TENT_FAKECUDA_IMEX=2"}, "CUDA_ERROR_NOT_PERMITTED, 800"},
		"no channel there":        {Legacy, []string{"TENT_FAKECUDA_IMEX=0"}, "mnnvl: the peer has it switched off"},
		"no fabric handles there": {Legacy, []string{"TENT_FAKECUDA_FABRIC=0"}, "mnnvl: the peer has it switched off"},
	} {
		t.Run(name, func(t *testing.T) {
			inDomain(t, nil, func(t *testing.T, _ *fake.Loaded) {
				// the peer is reached over tcp, its GPU is not
				owner, e := start(t, settings(), c.owner...), here(t, settings())
				owner.do("Own", c.kind, &netbed.Nothing{})
				require.ErrorContains(t, move(e, transport.Write, mine(t, e), 4096, open(t, e, owner), 0), c.says)
			})
		})
	}
}

// The end of an owner is heard of while its memory is mapped. The engine goes on, and another owner can be reached.
func TestAnOwnerThatIsKilledLeavesTheOthers(t *testing.T) {
	inDomain(t, nil, func(t *testing.T, _ *fake.Loaded) {
		e := here(t, alone())
		local := mine(t, e)
		for range 2 {
			c := start(t, alone())
			c.do("Own", Fabric, &netbed.Nothing{})
			to := open(t, e, c)
			require.NoError(t, move(e, transport.Write, local, size-2*band, to, 0))
			c.Kill()
			for end := time.Now().Add(netbed.Patience); move(e, transport.Write, local, 4096, to, 0) == nil; {
				require.Less(t, time.Now(), end, "nobody has heard of the end")
			}
			require.NoError(t, e.CloseSegment(to))
		}
	})
}

// Memory that another host has mapped is unmapped when its owner's Close returns. So the memory that comes to its place
// is out of reach.
func TestAnOwnerThatClosesTakesItsMemoryBack(t *testing.T) {
	inDomain(t, nil, func(t *testing.T, gpu *fake.Loaded) {
		e := here(t, alone())
		local, before := mine(t, e), gpu.Stats().Mappings
		c := start(t, alone())
		c.do("Own", Allocated, &netbed.Nothing{})
		to := open(t, e, c)
		require.NoError(t, move(e, transport.Write, local, 4096, to, 0))
		require.Equal(t, before+1, gpu.Stats().Mappings)
		c.do("Close", netbed.Nothing{}, &netbed.Nothing{})
		require.Equal(t, before, gpu.Stats().Mappings, "it is still mapped")
		require.Error(t, move(e, transport.Write, local, 4096, to, 0))
	})
}

// offer registers the inside of memory of this process on cuda:1.
func offer(t *testing.T, e *engine.Engine, kind Kind) (at uintptr, id mem.RegionID) {
	at, err := allocate(kind, 1)
	require.NoError(t, err)
	id, err = e.Register(engine.Memory{Addr: at + band, Size: size - 2*band, Name: "cache", Location: mem.Wildcard,
		Permission: mem.GlobalReadWrite})
	require.NoError(t, err)
	return at, id
}

func closeWithin(t *testing.T, e *engine.Engine, id mem.RegionID, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	return e.CloseRegion(ctx, id)
}

// A region stays as its owner leaves it once it was taken back. A peer of another host copies into it all the time, or
// is killed in a copy.
func TestARegionThatWasTakenBackStaysAsItIs(t *testing.T) {
	late := fake.Settings{"DELAY_US": "300", "SEED": fmt.Sprint(rand.Int32())}
	inDomain(t, late, func(t *testing.T, gpu *fake.Loaded) {
		e, untouched := here(t, alone()), bytes.Repeat([]byte{canary}, size)
		for _, kill := range []bool{false, true} {
			at, id := offer(t, e, Allocated)
			c := start(t, alone())
			c.do("Write", e.Address(), &netbed.Nothing{})
			c.moves(3)
			if kill {
				require.NoError(t, c.Signal(unix.SIGKILL))
			}
			require.NoError(t, closeWithin(t, e, id, netbed.Patience))
			require.NoError(t, gpu.Poke(at, untouched))
			look := func() {
				now := make([]byte, size)
				require.NoError(t, gpu.Peek(now, at))
				require.True(t, bytes.Equal(untouched, now), "written after the region was closed")
			}
			look()
			c.Kill()
			look() // all that was under way has ended
			require.NoError(t, free(Allocated, at))
		}
	})
}

// A peer that was stopped may go on at any time, and no call takes its mapping down. So a fence and a close name it, in
// time, and the memory stays its own. When it goes on, a fence finds it again.
func TestAStoppedPeerIsNamedAndNotBelievedGone(t *testing.T) {
	inDomain(t, nil, func(t *testing.T, _ *fake.Loaded) {
		e := here(t, alone())
		at, id := offer(t, e, Allocated)
		c := start(t, alone())
		c.do("Write", e.Address(), &netbed.Nothing{})
		c.moves(1)
		fence := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			return e.FenceRegion(ctx, id, "")
		}
		require.NoError(t, c.Stop())
		err := fence()
		require.Equal(t, errs.Timeout, errs.CodeOf(err))
		require.ErrorContains(t, err, c.address+" may still touch the memory")
		require.NoError(t, c.Signal(unix.SIGCONT))
		ctx, cancel := context.WithTimeout(t.Context(), netbed.Patience)
		defer cancel()
		require.NoError(t, e.FenceRegion(ctx, id, ""), "it answers again")
		c.moves(1)
		require.NoError(t, c.Stop())
		require.ErrorContains(t, closeWithin(t, e, id, 300*time.Millisecond), c.address)
		c.Kill()
		require.NoError(t, free(Allocated, at))
	})
}
