//go:build cgo

package staged

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/cuda"
	verbs "github.com/tent-engine/tent/tests/fakes/verbs"
	"github.com/tent-engine/tent/tests/forked"
	"github.com/tent-engine/tent/transports/all"
	"github.com/tent-engine/tent/transports/faulty"
)

// nicPair is an engine here and one in a child, which reach each other by nvlink, and by NICs when that fails.
type nicPair struct {
	*testing.T
	gpu    *fake.Loaded
	nics   *verbs.Fake
	faults *faulty.Plan // of the engine here
	here   *engine.Engine
	mine   memory
	far    *child
	to     engine.SegmentID
	news   engine.FollowerID
	moved  int // transfers, until the last look at the events
}

// byNICs are settings of an engine that reaches others by nvlink, or by NICs. These reach memory of devices by its
// dma-buf where direct is true, and else memory of the host alone.
func byNICs(direct bool) map[string]any {
	return map[string]any{"transports/nvlink/trust": "same-uid", "transports/tcp/enable": false,
		"transports/rdma/num_lanes": 3, "transports/rdma/disable_gpu_direct_rdma": !direct}
}

// withNICs carries a test out with memory of devices by their ordinals, -1 for the host.
func withNICs(t *testing.T, direct bool, here, there int, test func(*nicPair)) {
	chaos := fake.Settings{"DELAY_US": "20", "SEED": fmt.Sprint(rand.Int32())}
	t.Logf("settings %v", chaos)
	fake.RunWith(t, fake.Driver{}, chaos, verbs.Environment(t), func(t *testing.T, gpu *fake.Loaded) {
		with := byNICs(direct)
		p := &nicPair{T: t, gpu: gpu, far: startWith(t, there, with)}
		p.open(with, here)
		p.nics = verbs.Joined(t)
		crosses(t, p.here, p.mine, p.far.bytes, p.to)
		require.Equal(t, "nvlink", p.taken())
		test(p)
	})
}

func (p *nicPair) open(with map[string]any, device int) {
	var err error
	p.faults, err = faulty.New("")
	require.NoError(p, err)
	factories := all.Factories()
	for i := range factories {
		factories[i] = faulty.Wrap(factories[i], p.faults)
	}
	p.here, err = openOver(factories, with)
	require.NoError(p, err)
	p.Cleanup(func() {
		p.gpu.Forgive()
		require.Empty(p, p.here.Close(patience, true), "the engine could not take everything back")
		require.NoError(p, p.here.Forget())
	})
	mine, id, err := give(p.here, device, "", 2)
	require.NoError(p, err)
	p.mine = mine
	p.Cleanup(func() {
		p.gpu.Forgive()
		release(p.T, p.here, mine, id)
	})
	p.to = open(p.T, p.here, p.far.address)
	p.news, err = p.here.Follow()
	require.NoError(p, err)
}

func (p *nicPair) taken() string { return explained(p.T, p.here, p.mine, p.to).Taken }

// await waits until requests begin with a transport.
func (p *nicPair) await(by string) {
	for end := time.Now().Add(patience); p.taken() != by; runtime.Gosched() {
		require.Less(p, time.Now(), end, "requests do not begin with %s: %+v", by, explained(p.T, p.here, p.mine, p.to))
	}
}

// again fills both memories anew, and moves all bytes.
func (p *nicPair) again() {
	p.far.do("Poke", uint64(1), &forked.Nothing{})
	require.NoError(p, p.mine.poke(0, pattern(2, size+2*band)))
	crosses(p.T, p.here, p.mine, p.far.bytes, p.to)
}

// carried counts the bytes of a transport in both engines.
func (p *nicPair) carried(by string) (n float64) {
	var far map[string]float64
	p.far.do("Metrics", forked.Nothing{}, &far)
	for _, list := range []map[string]float64{p.here.Metrics(), far} {
		for _, op := range []string{"read", "write"} {
			n += list[fmt.Sprintf("tent_%s_bytes_total{transport=%q}", op, by)]
		}
	}
	return n
}

// failedOver checks the events of transfers that have left nvlink: each names both transports and the cause, and
// nothing was given up.
func (p *nicPair) failedOver(to, cause string) (n int) {
	list, lost, err := p.here.Events(p.news, 1000)
	require.NoError(p, err)
	require.Zero(p, lost)
	for _, e := range list {
		switch e.Kind {
		case event.Failover:
			require.Equal(p, []string{"nvlink", to, p.far.address}, []string{e.From, e.To, e.Peer}, "%+v", e)
			require.ErrorContains(p, e.Err, cause)
			n++
		case event.FailoverExhausted, event.FailoverNoRoute, event.Dirty, event.PeerGone:
			require.Fail(p, "a transfer was given up", "%+v", e)
		}
	}
	p.moved += n
	name := fmt.Sprintf("tent_transport_failover_total{from=%q,to=%q}", "nvlink", to)
	require.EqualValues(p, p.moved, p.here.Metrics()[name])
	return n
}

// A sticky error ends our device under a transfer. Its bytes go on by NICs, which ask no driver of devices: directly
// by the dma-buf, also that of the lost device, or between memory of the host where the peer's own device works.
func TestALostDeviceGoesOnByRDMA(t *testing.T) {
	for name, c := range map[string]struct {
		direct bool
		here   int
		op     transport.Op
		to     string
	}{
		"its own memory":     {true, 0, transport.Read, "rdma"},
		"memory of the host": {true, -1, transport.Write, "rdma"},
		"staged":             {false, -1, transport.Read, "delegate"},
	} {
		t.Run(name, func(t *testing.T) {
			withNICs(t, c.direct, c.here, 1, func(p *nicPair) {
				retries := retriesOf(p.here)
				p.gpu.Inject("copy", 2, 220, true) // CUDA_ERROR_NVLINK_UNCORRECTABLE
				before := p.far.bytes()
				s := moved(p.T, p.here, request(c.op, p.mine, p.to, 0, size))
				require.Equal(p, dispatch.Completed, s.State, "%v", s.Err)
				require.EqualValues(p, size, s.Bytes)
				require.EqualValues(p, 1, s.Failovers)
				require.Equal(p, retries, retriesOf(p.here), "the lost device was tried again")
				now, err := p.mine.all()
				require.NoError(p, err)
				require.Equal(p, now[band:band+size], p.far.bytes()[band:band+size])
				if c.op == transport.Read {
					require.Equal(p, before, p.far.bytes())
				}
				require.Equal(p, 1, p.failedOver(c.to, "220"))
				calls, bytes := p.gpu.Stats().Calls, p.carried("rdma")
				require.Equal(p, c.to, p.taken())
				p.again()
				require.Greater(p, p.carried("rdma"), bytes)
				require.Equal(p, calls, p.gpu.Stats().Calls, "a lost device is not asked again")
				require.Zero(p, p.failedOver(c.to, ""), "they begin there")
			})
		})
	}
}

// The way over NVLink fails under a transfer, and both devices live. Bytes go by NICs, and by NVLink when it is back.
func TestTransfersFailOverToRDMAAndBack(t *testing.T) {
	for name, c := range map[string]struct {
		direct bool
		to     string
	}{"direct": {true, "rdma"}, "staged": {false, "delegate"}} {
		t.Run(name, func(t *testing.T) {
			withNICs(t, c.direct, 0, 1, func(p *nicPair) {
				p.again()
				before := p.carried("rdma")
				p.gpu.Hold(true) // nothing has arrived when the link is lost
				id, err := p.here.Move(request(transport.Write, p.mine, p.to, 0, size))
				require.NoError(p, err)
				require.NoError(p, p.faults.Apply("transport=nvlink peer="+p.far.address+" down"))
				p.gpu.Hold(false)
				s := finish(p.T, p.here, id)
				require.Equal(p, dispatch.Completed, s.State, "%v", s.Err)
				require.EqualValues(p, 1, s.Failovers)
				require.GreaterOrEqual(p, p.carried("rdma"), before+size)
				require.Equal(p, 1, p.failedOver(c.to, "down"))
				p.await(c.to)
				p.again()
				require.Zero(p, p.failedOver(c.to, ""), "they begin there")
				require.NoError(p, p.faults.Apply("heal"))
				p.await("nvlink")
				bytes := p.carried("rdma")
				p.again()
				require.Equal(p, bytes, p.carried("rdma"), "they go by NVLink again")
				require.Zero(p, p.failedOver(c.to, ""))
			})
		})
	}
}

// Transfers leave a lost NVLink while their region's owner fences it. Late copies by NVLink, slices of NICs and orders
// to the peer are all kept away by that: the owner's bytes stay.
func TestAFenceHoldsTransfersThatFailOver(t *testing.T) {
	for name, direct := range map[string]bool{"direct": true, "staged": false} {
		t.Run(name, func(t *testing.T) {
			withNICs(t, direct, 0, 1, func(p *nicPair) {
				mine, there, fenced := pattern(2, size+2*band), pattern(9, size+2*band), 0
				require.NoError(p, p.mine.poke(0, mine))
				for round := range 4 {
					p.nics.Control(p, "delay 2000") // µs for each request
					p.gpu.Hold(true)
					var begun []dispatch.BatchID
					for range 6 {
						id, err := p.here.Move(request(transport.Write, p.mine, p.to, 0, size))
						require.NoError(p, err)
						begun = append(begun, id)
					}
					require.NoError(p, p.faults.Apply("transport=nvlink peer="+p.far.address+" down"))
					p.gpu.Hold(round%2 == 0) // the copies of NVLink may be out before the fence, or behind its begin
					fence := p.far.Begin("Actor.Fence", forked.Nothing{}, &forked.Nothing{})
					p.gpu.Hold(false)
					require.NoError(p, p.far.End(fence))
					p.far.do("Poke", uint64(9), &forked.Nothing{})
					for _, id := range begun {
						s := finish(p.T, p.here, id)
						if s.State != dispatch.Completed {
							fenced++
							require.ErrorContains(p, s.Err, "was fenced by its owner")
						}
					}
					require.Equal(p, there, p.far.bytes(), "written after the fence")
					p.nics.Control(p, "delay 0")
					s := moved(p.T, p.here, request(transport.Write, p.mine, p.to, 0, size))
					require.Equal(p, dispatch.Completed, s.State, "begun after the fence: %v", s.Err)
					require.Equal(p, mine[band:band+size], p.far.bytes()[band:band+size])
					require.NoError(p, p.faults.Apply("heal"))
					p.await("nvlink")
					p.again() // a rail of which three generations in a row deliver nothing is paused
					require.NoError(p, p.mine.poke(0, mine))
				}
				require.Positive(p, fenced, "every transfer was over before its fence")
			})
		})
	}
}

// Transfers that leave NVLink together keep their classes: NICs carry the urgent one first.
func TestTransfersThatFailOverKeepTheirClass(t *testing.T) {
	withNICs(t, true, 0, 1, func(p *nicPair) {
		p.nics.Control(p, "delay 2000") // µs for each request
		begin := func(class uint8, length uint64) dispatch.BatchID {
			r := request(transport.Write, p.mine, p.to, 0, length)
			r.Class = class
			id, err := p.here.Move(r)
			require.NoError(p, err)
			return id
		}
		p.gpu.Hold(true)
		var bulk []dispatch.BatchID
		for range 6 {
			bulk = append(bulk, begin(dispatch.Low, size))
		}
		urgent := begin(dispatch.High, 4096)
		p.gpu.Inject("copy", 1, 220, true)
		p.gpu.Hold(false)
		s := finish(p.T, p.here, urgent)
		require.Equal(p, dispatch.Completed, s.State, "%v", s.Err)
		require.EqualValues(p, 1, s.Failovers)
		late := 0
		for _, id := range bulk {
			now, err := p.here.Summary(id)
			require.NoError(p, err)
			if !now.State.Terminal() {
				late++
			}
		}
		require.GreaterOrEqual(p, late, len(bulk)-1, "they were carried before the urgent one")
		p.nics.Control(p, "delay 0")
		for _, id := range bulk {
			s := finish(p.T, p.here, id)
			require.Equal(p, dispatch.Completed, s.State, "%v", s.Err)
			require.EqualValues(p, 1, s.Failovers)
		}
		p.again()
	})
}
