//go:build cgo

package staged

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/cuda"
)

// lostSays is in each explanation of a device that a sticky error has ended: which, why, and the cure.
var lostSays = []string{"cuda:1", "CUDA_ERROR_ILLEGAL_ADDRESS, 700", "restart"}

// apart lets nvlink reach memory of the other process.
var apart = map[string]any{"transports/nvlink/trust": "same-uid"}

// A sticky error ends a device under a transfer. Its bytes take the other way to the peer, and later ones begin there;
// memory of the other device stays with nvlink. The loss is one event a link, and costs no calls afterwards.
func TestALostDeviceLeavesTheOtherRoutes(t *testing.T) {
	chaos := fake.Settings{"DELAY_US": "20", "SEED": fmt.Sprint(rand.Int32())}
	t.Logf("settings %v", chaos)
	fake.Run(t, fake.Driver{}, chaos, func(t *testing.T, gpu *fake.Loaded) {
		c := startWith(t, 1, apart) // its memory is copied by cuda:1, of either process
		e, host := hereWith(t, -1, apart)
		device, region, err := give(e, 0, "", 3)
		require.NoError(t, err)
		to := open(t, e, c.address)
		crosses(t, e, host, c.bytes, to)
		require.Equal(t, "nvlink", explained(t, e, host, to).Taken)
		id, err := e.Follow()
		require.NoError(t, err)
		defer e.Unfollow(id)

		retries := retriesOf(e)
		gpu.Inject("copy", 2, 700, true)
		defer gpu.Forgive()
		s := moved(t, e, request(transport.Read, host, to, 0, size))
		require.Equal(t, dispatch.Completed, s.State, "%v", s.Err)
		require.Positive(t, s.Failovers)
		require.Equal(t, retries, retriesOf(e), "the lost device was tried again")
		around := pattern(2, size+2*band)
		now, err := host.all()
		require.NoError(t, err)
		copy(around[band:], c.bytes()[band:band+size])
		require.Equal(t, around, now)

		x := explained(t, e, host, to)
		require.Equal(t, "delegate", x.Taken, "%+v", x)
		reason := ""
		for _, r := range x.Rejected {
			if r.Transport == "nvlink" && reason == "" {
				reason = r.Reason // of the direct way; the wire's is behind it
			}
		}
		for _, part := range lostSays {
			require.Contains(t, reason, part)
		}
		for range 4 {
			s := moved(t, e, request(transport.Write, host, to, 0, size))
			require.Equal(t, dispatch.Completed, s.State, "%v", s.Err)
			require.Zero(t, s.Failovers, "it began there")
		}
		expected := append([]byte(nil), around...)
		copy(expected, pattern(1, band))
		copy(expected[band+size:], pattern(1, size+2*band)[band+size:])
		require.Equal(t, expected, c.bytes())
		require.Equal(t, "nvlink", explained(t, e, device, to).Taken, "cuda:0 works")
		s = moved(t, e, request(transport.Write, device, to, 0, size))
		require.Equal(t, dispatch.Completed, s.State, "%v", s.Err)
		copy(expected[band:], pattern(3, size+2*band)[band:band+size])
		require.Equal(t, expected, c.bytes())

		losses(t, e, id)
		calls := gpu.Stats().Calls
		for range 8 {
			moved(t, e, request(transport.Read, host, to, 0, size))
		}
		require.Equal(t, calls, gpu.Stats().Calls, "a lost device is not asked again")
		release(t, e, device, region)
	})
}

// losses takes the events, and checks that each link has told of the loss once.
func losses(t *testing.T, e *engine.Engine, id engine.FollowerID) {
	list, lost, err := e.Events(id, 1000)
	require.NoError(t, err)
	require.Zero(t, lost)
	told := map[string]int{}
	for _, ev := range list {
		if ev.Kind == event.RailDown && ev.Transport == "nvlink" {
			told[ev.Peer]++
			for _, part := range lostSays {
				require.ErrorContains(t, ev.Err, part)
			}
		}
		require.NotEqual(t, event.LinkDown, ev.Kind, "%v", ev)
	}
	require.NotEmpty(t, told)
	for peer, n := range told {
		require.Equal(t, 1, n, peer)
	}
}

// Memory of a lost device has no way: a transfer under way fails by the driver's error. Later ones are refused by it,
// at once.
func TestMemoryOfALostDeviceIsRefusedAtOnce(t *testing.T) {
	fake.Run(t, fake.Driver{}, nil, func(t *testing.T, gpu *fake.Loaded) {
		c := start(t, -1)
		e, _ := here(t, -1)
		m, region, err := give(e, 1, "", 2)
		require.NoError(t, err)
		to := open(t, e, c.address)
		crosses(t, e, m, c.bytes, to)

		before := c.bytes()
		gpu.Inject("copy", 1, 700, true)
		s := moved(t, e, request(transport.Write, m, to, 0, 4096))
		require.Equal(t, dispatch.Failed, s.State)
		require.Equal(t, errs.CudaError, s.Err.Code, "%v", s.Err)
		require.Equal(t, before, c.bytes())
		_, err = e.Move(request(transport.Write, m, to, 0, 4096))
		require.Equal(t, errs.NoRoute, errs.CodeOf(err), "%v", err)
		for _, part := range lostSays {
			require.ErrorContains(t, s.Err, part)
			require.ErrorContains(t, err, part)
		}
		awaitSlots(t, e)
		gpu.Forgive()
		release(t, e, m, region)
	})
}

// retriesOf counts the slices that went again on the same route.
func retriesOf(e *engine.Engine) (n float64) {
	for name, value := range e.Metrics() {
		if strings.HasPrefix(name, "tent_retries_total") {
			n += value
		}
	}
	return n
}

func explained(t *testing.T, e *engine.Engine, m memory, to engine.SegmentID) *engine.Explanation {
	x, err := e.Explain(request(transport.Write, m, to, 0, size))
	require.NoError(t, err)
	return x
}

func moved(t *testing.T, e *engine.Engine, r *engine.Request) dispatch.Summary {
	id, err := e.Move(r)
	require.NoError(t, err)
	return finish(t, e, id)
}
