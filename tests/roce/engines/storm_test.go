package engines

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/forked"
	"github.com/tent-engine/tent/tests/netbed"
	"github.com/tent-engine/tent/tests/roce"
)

// storm moves checked bytes without pause, in parts of the region that have a goroutine each.
type storm struct {
	*world
	moves   atomic.Uint64 // that have ended
	ends    atomic.Bool
	workers sync.WaitGroup
	failed  chan error // the first of each worker
}

const stormParts = 4

func newStorm(w *world, seed uint64) *storm {
	s := &storm{world: w, failed: make(chan error, stormParts)}
	for i := range uint64(stormParts) {
		s.workers.Go(func() {
			if err := s.work(i, rand.New(rand.NewPCG(seed, i))); err != nil {
				s.failed <- err
			}
		})
	}
	return s
}

// work writes and reads its part. After each move the destination gets other bytes, at which it looks a second time
// before the next move: bytes that come late would show.
func (s *storm) work(part uint64, random *rand.Rand) error {
	const size = regionBytes / stormParts
	at := netbed.PartArgs{Offset: part * size, Bytes: size}
	call := func(c *forked.Child, method string, seed uint64) error {
		at.Seed = seed
		return c.Call("Actor."+method, at, &forked.Nothing{})
	}
	var last *forked.Child // destination of the move before
	var canary uint64
	for turn := uint64(1); !s.ends.Load(); turn++ {
		op := []transport.Op{transport.Write, transport.Read}[random.IntN(2)]
		from, to := s.Ends(op)
		sent, before, after := random.Uint64(), random.Uint64(), random.Uint64()
		if err := call(from, "FillPart", sent); err != nil {
			return err
		}
		if last == to {
			if err := call(to, "CheckPart", canary); err != nil {
				return fmt.Errorf("turn %d, bytes came after the end: %w", turn, err)
			}
		}
		if err := call(to, "FillPart", before); err != nil {
			return err
		}
		var out netbed.Outcome
		args := netbed.MoveArgs{Op: op, Class: uint8(random.IntN(3)), Offset: at.Offset, Bytes: size}
		if err := s.Near.Call("Actor.Move", args, &out); err != nil {
			return err
		}
		if out.State != "COMPLETED" {
			return errorOf(&out)
		}
		at.Known = map[string]uint64{"of before": before, "of the move before": at.Known["sent"], "sent": sent}
		if err := call(to, "CheckPart", sent); err != nil {
			return fmt.Errorf("turn %d, a %v has COMPLETED after %d attempts: %w", turn, op, out.Attempts, err)
		}
		last, canary = to, after
		if err := call(to, "FillPart", canary); err != nil {
			return err
		}
		s.moves.Add(1)
	}
	return nil
}

// goesOn waits until some more moves have ended.
func (s *storm) goesOn(t *testing.T, moves uint64) {
	t.Helper()
	until := s.moves.Load() + moves
	netbed.Await(t, "moves end", func() bool {
		select {
		case err := <-s.failed:
			require.NoError(t, err, "while a rail was well")
		default:
		}
		return s.moves.Load() >= until
	})
}

// end waits for the moves that are under way.
func (s *storm) end(t *testing.T) {
	t.Helper()
	s.ends.Store(true)
	s.workers.Wait()
	close(s.failed)
	for err := range s.failed {
		require.NoError(t, err)
	}
}

// TestRandomFaultsLoseAndInventNothing makes and mends random faults of four rails, of which one is well at any time.
func TestRandomFaultsLoseAndInventNothing(t *testing.T) {
	faults := 12
	if everything {
		faults = 100
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, stormParts))
	w := newWorld(t, 4, onlyRDMA)
	broken := map[roce.Rail]roce.Fault{}
	mend := func() {
		for r, f := range broken {
			require.NoError(t, f.Mend(r), f.Name)
			delete(broken, r)
		}
	}
	t.Cleanup(mend)
	s := newStorm(w, seed)
	t.Cleanup(func() { s.ends.Store(true); s.workers.Wait() })
	kinds, well := mendable(), w.rails[0]
	for made := 0; made < faults; {
		r := w.rails[random.IntN(len(w.rails))]
		if f, is := broken[r]; is {
			require.NoError(t, f.Mend(r), f.Name)
			delete(broken, r)
		} else if r != well {
			f := kinds[random.IntN(len(kinds))]
			broken[r] = f
			require.NoError(t, f.Make(r), f.Name)
			made++
		}
		s.goesOn(t, random.Uint64N(4))
		if made%8 == 0 { // another one stays well from now on
			mend()
			w.AwaitRails(t, len(w.rails))
			well = w.rails[random.IntN(len(w.rails))]
		}
	}
	mend()
	w.AwaitRails(t, len(w.rails))
	s.goesOn(t, stormParts)
	s.end(t)
	t.Logf("%d faults, %d moves of %d MiB", faults, s.moves.Load(), regionBytes/stormParts>>20)
}
