//go:build cgo

package staged

import (
	"context"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/fakes/ascend"
	"github.com/tent-engine/tent/tests/forked"
	"github.com/tent-engine/tent/tests/ports"
)

// Bytes of an NPU reach another process without HIXL, and come back: the platform copies them, and the transports of
// the host carry them on. Old toolkits know addresses alone.
func TestBytesOfAnNPUCrossThroughHostMemory(t *testing.T) {
	for name, c := range map[string]struct {
		here, there int
		absent      []string
		taken       string
	}{
		"to a host":   {0, -1, nil, "tcp"},
		"to a device": {0, 1, ascend.Older, "delegate"},
		"from a host": {-1, 0, nil, "delegate"},
		"on one host": {1, 0, nil, "delegate"},
		"of CANN 8.1": {1, -1, ascend.Older, "tcp"},
	} {
		t.Run(name, func(t *testing.T) {
			ascend.Run(t, nil, c.absent, func(t *testing.T, _ *ascend.Loaded) {
				only := map[string]any{"transports/nvlink/enable": false, "transports/acl/enable": true}
				p := startWith(t, c.there, only)
				e, m := hereWith(t, c.here, only)
				to := open(t, e, p.address)
				crosses(t, e, m, p.bytes, to)
				x, err := e.Explain(request(transport.Write, m, to, 0, size))
				require.NoError(t, err)
				require.Equal(t, c.taken, x.Taken, "%+v", x)
				require.Equal(t, 2, x.Routes[0].Hops)
			})
		})
	}
}

// linked are the settings of an engine with HIXL, at a port that is its own.
func linked(t *testing.T) map[string]any {
	return map[string]any{"transports/nvlink/enable": false, "transports/ascend_direct/enable": true,
		"transports/ascend_direct/port": ports.Keep(t)}
}

// With HIXL, bytes go from NPU to NPU of two processes, and no byte of them is in memory of the host.
func TestBytesOfNPUsCrossByHIXL(t *testing.T) {
	ascend.RunLinked(t, nil, nil, func(t *testing.T, _ *ascend.Loaded, h *ascend.Linked) {
		p := startWith(t, 0, linked(t))
		e, m := hereWith(t, 0, linked(t))
		to := open(t, e, p.address)
		crosses(t, e, m, p.bytes, to)
		x, err := e.Explain(request(transport.Write, m, to, 0, size))
		require.NoError(t, err)
		require.Equal(t, "ascend_direct", x.Taken, "%+v", x)
		require.Equal(t, 1, x.Routes[0].Hops)
		require.Positive(t, h.Stats().Moved)
	})
}

// A peer that is killed ends its transfers, and takes nothing with it here.
func TestAKilledPeerEndsTransfersByHIXL(t *testing.T) {
	ascend.RunLinked(t, nil, nil, func(t *testing.T, _ *ascend.Loaded, h *ascend.Linked) {
		p := startWith(t, 0, linked(t))
		e, m := hereWith(t, 0, linked(t))
		to := open(t, e, p.address)
		h.Hold(true)
		id, err := e.Move(request(transport.Write, m, to, 0, size))
		require.NoError(t, err)
		p.Kill()
		h.Hold(false)
		s := finish(t, e, id)
		require.Equal(t, dispatch.Failed, s.State)
		require.Contains(t, []errs.Code{errs.PeerUnreachable, errs.PeerRestarted}, errs.CodeOf(s.Err), "%v", s.Err)
		now, err := m.all()
		require.NoError(t, err)
		require.Equal(t, pattern(2, size+2*band), now)
	})
}

// Stall begins a WRITE of all of the region "cache" of an engine, and holds HIXL back.
func (a *Actor) Stall(address string, _ *forked.Nothing) error {
	h, err := ascend.LoadHIXL()
	if err != nil {
		return err
	}
	if err := a.Meet(address, nil); err != nil {
		return err
	}
	h.Hold(true)
	a.batch, err = a.engine.Move(request(transport.Write, a.memory, a.peer, 0, size))
	for err == nil && h.Stats().Requests == 0 { // HIXL has some of it
		runtime.Gosched()
	}
	return err
}

// Resume lets HIXL go on, and returns how the WRITE ended.
func (a *Actor) Resume(_ forked.Nothing, end *string) error {
	h, err := ascend.LoadHIXL()
	if err != nil {
		return err
	}
	h.Hold(false)
	a.engine.Wait(a.batch, patience)
	s, err := a.engine.Summary(a.batch)
	*end = s.State.String()
	return err
}

// A peer that is stopped in the middle of a transfer is fenced: the bytes that it had posted stay where they are.
func TestAStoppedPeerIsFencedByHIXL(t *testing.T) {
	ascend.RunLinked(t, nil, nil, func(t *testing.T, _ *ascend.Loaded, _ *ascend.Linked) {
		p := startWith(t, 0, linked(t))
		e, err := openEngine(linked(t))
		require.NoError(t, err)
		t.Cleanup(func() {
			require.Empty(t, e.Close(patience, true))
			require.NoError(t, e.Forget())
		})
		m, id, err := give(e, 0, "cache", 2)
		require.NoError(t, err)
		t.Cleanup(func() { release(t, e, m, id) })
		p.do("Stall", e.Address(), &forked.Nothing{})
		require.NoError(t, p.Stop())
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		require.NoError(t, e.FenceRegion(ctx, id, ""))
		require.NoError(t, p.Signal(unix.SIGCONT))
		var end string
		p.do("Resume", forked.Nothing{}, &end)
		require.NotEqual(t, "COMPLETED", end)
		mine, err := m.all()
		require.NoError(t, err)
		require.Equal(t, pattern(2, size+2*band), mine, "written by a transfer of before the fence")
	})
}
