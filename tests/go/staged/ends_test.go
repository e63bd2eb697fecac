//go:build cgo

package staged

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/cuda"
	"github.com/tent-engine/tent/tests/forked"
)

// Fence fences the region for all, Shut closes it.
func (a *Actor) Fence(_ forked.Nothing, _ *forked.Nothing) error {
	return a.engine.FenceRegion(context.Background(), a.region, "")
}

// Shut closes the region.
func (a *Actor) Shut(_ forked.Nothing, _ *forked.Nothing) error {
	return a.engine.CloseRegion(context.Background(), a.region)
}

// Meet opens the region "cache" of a peer.
func (a *Actor) Meet(address string, _ *forked.Nothing) (err error) {
	a.peer, err = a.engine.OpenSegment(context.Background(), address+"/cache")
	return err
}

// Exchange moves all bytes between memory of its own and the region "cache" of the peer, and waits for the end.
func (a *Actor) Exchange(_ forked.Nothing, _ *forked.Nothing) error {
	m, _, err := give(a.engine, 0, "", 5)
	if err != nil {
		return err
	}
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		id, err := a.engine.Move(request(op, m, a.peer, 0, size))
		if err != nil {
			return err
		}
		if state := a.engine.Wait(id, patience); state != dispatch.Completed {
			return fmt.Errorf("the transfer is %v", state)
		}
	}
	return nil
}

// awaitSlots waits until no request holds a slot of the engine.
func awaitSlots(t *testing.T, e *engine.Engine) {
	for end := time.Now().Add(patience); ; runtime.Gosched() {
		now := e.Metrics()
		if all := now["tent_staging_slots"]; all > 0 && all == now["tent_staging_slots_free"] {
			return
		}
		require.Less(t, time.Now(), end, "%v of %v slots are free", now["tent_staging_slots_free"],
			now["tent_staging_slots"])
	}
}

// slow makes the copies of a driver take milliseconds, so that an end comes in the middle.
func slow(t *testing.T) fake.Settings {
	s := fake.Settings{"DELAY_US": "1500", "SEED": fmt.Sprint(rand.Int32())}
	t.Logf("settings %v", s)
	return s
}

// end may happen to a transfer that is under way. It has the states in which that may end.
type end struct {
	deadline time.Duration
	happens  func(t *testing.T, e *engine.Engine, id dispatch.BatchID, c *child)
	states   []dispatch.State
	spoils   bool // the peer, for another transfer
	kills    bool // the peer, with its memory
}

var ends = map[string]end{
	"cancel": {happens: func(t *testing.T, e *engine.Engine, id dispatch.BatchID, _ *child) {
		_, err := e.Cancel(id, -1)
		require.NoError(t, err)
	}, states: []dispatch.State{dispatch.Canceled}},
	"deadline": {deadline: 20 * time.Millisecond, states: []dispatch.State{dispatch.TimedOut}},
	"kill": {happens: func(t *testing.T, _ *engine.Engine, _ dispatch.BatchID, c *child) { c.Kill() },
		states: []dispatch.State{dispatch.Failed}, spoils: true, kills: true},
	"stop and cancel": {happens: func(t *testing.T, e *engine.Engine, id dispatch.BatchID, c *child) {
		require.NoError(t, c.Stop())
		_, err := e.Cancel(id, -1)
		require.NoError(t, err)
		require.True(t, e.Wait(id, patience).Terminal())
		require.NoError(t, c.Signal(unix.SIGCONT))
	}, states: []dispatch.State{dispatch.Canceled}},
	"fence": {happens: func(t *testing.T, _ *engine.Engine, _ dispatch.BatchID, c *child) {
		c.do("Fence", forked.Nothing{}, &forked.Nothing{})
	}, states: []dispatch.State{dispatch.Failed}},
	"close": {happens: func(t *testing.T, _ *engine.Engine, _ dispatch.BatchID, c *child) {
		c.do("Shut", forked.Nothing{}, &forked.Nothing{})
	}, states: []dispatch.State{dispatch.Failed}, spoils: true},
}

// triesOfEnd bounds how often a transfer may be over before its end comes, which happens on a busy machine.
const triesOfEnd = 10

// A transfer ends when something happens in the middle of it. It gives its slots back, and touches nothing any more.
// The next one passes.
func TestSlotsComeBackWhateverEndsATransfer(t *testing.T) {
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			fake.Run(t, fake.Driver{}, slow(t), func(t *testing.T, _ *fake.Loaded) {
				e, m := here(t, 0)
				for _, device := range []int{-1, 1} { // over the wire, and by orders
					for _, op := range []transport.Op{transport.Write, transport.Read} {
						tries := 1
						for ; !end.comes(t, e, m, device, op); tries++ {
							require.Less(t, tries, triesOfEnd, "each transfer was over before")
						}
					}
				}
			})
		})
	}
}

// comes lets a transfer begin and end so, and returns false if it was over before.
func (end end) comes(t *testing.T, e *engine.Engine, m memory, device int, op transport.Op) bool {
	c := start(t, device)
	defer c.Kill()
	to := open(t, e, c.address)
	r := request(op, m, to, 0, size)
	if end.deadline > 0 {
		r.Deadline = clock.Now().Add(end.deadline)
	}
	id, err := e.Move(r)
	require.NoError(t, err)
	if end.happens != nil {
		begun(t, e, id)
		end.happens(t, e, id, c)
	}
	s := finish(t, e, id)
	if s.State == dispatch.Completed {
		require.NoError(t, e.CloseSegment(to))
		return false
	}
	require.Contains(t, end.states, s.State, "device %d, %v: %v", device, op, s.Err)
	require.Less(t, s.Bytes, uint64(size))
	if s.State != dispatch.Canceled {
		require.Equal(t, c.address, s.Err.Peer, "%v", s.Err)
	}
	awaitSlots(t, e)
	before := look(t, m, c, end.kills)
	if !end.spoils {
		id, err := e.Move(request(op, m, to, 0, first))
		require.NoError(t, err)
		s := finish(t, e, id)
		require.Equal(t, dispatch.Completed, s.State, "device %d, %v: %v", device, op, s.Err)
	}
	require.NoError(t, e.CloseSegment(to))
	require.Equal(t, before, look(t, m, c, end.kills), "what has ended writes no more")
	return true
}

// begun waits until the first bytes of a transfer have arrived.
func begun(t *testing.T, e *engine.Engine, id dispatch.BatchID) {
	for end := time.Now().Add(patience); ; runtime.Gosched() {
		s, err := e.Summary(id)
		require.NoError(t, err)
		if s.Bytes > 0 {
			return
		}
		require.Less(t, time.Now(), end, "nothing has arrived: %v", s.Err)
	}
}

// first is how many bytes the transfer behind the one that ended has.
const first = 4096

// look returns the bytes of both memories, without those that the next transfer moves.
func look(t *testing.T, m memory, c *child, gone bool) (both [2][]byte) {
	mine, err := m.all()
	require.NoError(t, err)
	both[0] = mine
	if !gone {
		both[1] = c.bytes()
	}
	for i := range both {
		if both[i] != nil {
			clear(both[i][band : band+first])
		}
	}
	return both
}

// Two engines that fill all slots towards each other do not wait for each other.
func TestTwoEnginesStageAtEachOther(t *testing.T) {
	fake.Run(t, fake.Driver{}, slow(t), func(t *testing.T, _ *fake.Loaded) {
		c := start(t, 1)
		e, m := here(t, 0)
		theirs, id, err := give(e, 1, "cache", 3)
		require.NoError(t, err)
		to := open(t, e, c.address)
		c.do("Meet", e.Address(), &forked.Nothing{})
		done := make(chan error, 1)
		go func() { done <- c.Call("Actor.Exchange", forked.Nothing{}, &forked.Nothing{}) }()
		for _, op := range []transport.Op{transport.Write, transport.Read} {
			id, err := e.Move(request(op, m, to, 0, size))
			require.NoError(t, err)
			s := finish(t, e, id)
			require.Equal(t, dispatch.Completed, s.State, "%v", s.Err)
		}
		select {
		case err := <-done:
			require.NoError(t, err)
		case <-time.After(patience):
			require.FailNow(t, "the peer's transfers have not ended")
		}
		awaitSlots(t, e)
		now, err := theirs.all()
		require.NoError(t, err)
		want := pattern(3, size+2*band)
		copy(want[band:band+size], pattern(5, size+2*band)[band:])
		require.Equal(t, want, now)
		release(t, e, theirs, id)
	})
}
