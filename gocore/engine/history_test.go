package engine

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
)

// readable looks at a follower's descriptor as an event loop does.
func readable(t *testing.T, id FollowerID) bool {
	t.Helper()
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(id), Events: unix.POLLIN}}, 0)
	require.NoError(t, err)
	return n == 1
}

func TestEachFollowerSeesEveryEventOnceAndInOrder(t *testing.T) {
	const seed = 5
	random := rand.New(rand.NewPCG(seed, 0))
	h := &history{}
	defer h.close()
	var followers []FollowerID
	seen := map[FollowerID]int{}
	pushed := 0
	for range 20 {
		for range random.IntN(600) {
			pushed++
			h.push(event.Event{N: pushed})
		}
		h.wake()
		if len(followers) < 3 {
			id, err := h.follow()
			require.NoError(t, err)
			followers = append(followers, id)
			seen[id] = max(0, pushed-eventsMax)
		}
		for _, id := range followers {
			require.Equal(t, seen[id] < pushed, readable(t, id), "seed %d", seed)
			list, lost, err := h.take(id, 1+random.IntN(1000))
			require.NoError(t, err)
			seen[id] += int(lost)
			for _, e := range list {
				seen[id]++
				require.Equal(t, seen[id], e.N, "seed %d", seed)
			}
		}
	}
	require.Greater(t, pushed, eventsMax, "the ring has been round")
}

func TestWhoReadsLateLosesTheOldestAndLearnsHowMany(t *testing.T) {
	h := &history{}
	defer h.close()
	id, err := h.follow()
	require.NoError(t, err)
	for i := range eventsMax + 10 {
		h.push(event.Event{N: i})
	}
	list, lost, err := h.take(id, 1)
	require.NoError(t, err)
	require.Equal(t, uint64(10), lost)
	require.Equal(t, 10, list[0].N)
	_, lost, err = h.take(id, eventsMax)
	require.NoError(t, err)
	require.Zero(t, lost, "it is told once")
}

func TestAFollowerWaits(t *testing.T) {
	h := &history{}
	defer h.close()
	id, err := h.follow()
	require.NoError(t, err)
	some, err := h.wait(id, 0)
	require.NoError(t, err)
	require.False(t, some)
	type answer struct {
		some bool
		err  error
	}
	answers := make(chan answer)
	for range 3 {
		go func() {
			some, err := h.wait(id, 10*time.Second)
			answers <- answer{some, err}
		}()
	}
	h.push(event.Event{})
	h.wake()
	for range 3 {
		require.Equal(t, answer{true, nil}, <-answers)
	}
}

func TestFollowersAreBoundedAndLeave(t *testing.T) {
	h := &history{}
	var all []FollowerID
	for range followersMax {
		id, err := h.follow()
		require.NoError(t, err)
		all = append(all, id)
	}
	_, err := h.follow()
	require.Equal(t, errs.TooManyRequests, errs.CodeOf(err))
	h.leave(all[7])
	h.leave(all[7])
	_, _, err = h.take(all[7], 1)
	require.Equal(t, errs.Stale, errs.CodeOf(err))
	again, err := h.follow()
	require.NoError(t, err)
	h.close()
	_, err = h.wait(again, 0)
	require.Error(t, err)
}
