//go:build cgo

package twohosts

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/cuda"
	verbs "github.com/tent-engine/tent/tests/fakes/verbs"
	bed "github.com/tent-engine/tent/tests/gpubed"
	"github.com/tent-engine/tent/tests/netbed"
	"github.com/tent-engine/tent/transports/faulty"
)

// byNICs are settings of an engine that reaches other hosts by mnnvl, or by NICs. These reach memory of devices by its
// dma-buf where direct is true, and else memory of the host alone. Rails are suspected late: the tests count failovers,
// and a busy machine must not add its own.
func byNICs(direct bool) map[string]any {
	with := alone()
	delete(with, "staging/enable")
	with["transports/rdma/num_lanes"], with["transports/rdma/disable_gpu_direct_rdma"] = 2, !direct
	with["rail_suspect_ms"] = 900
	return with
}

// nicPair is an engine here and one on another host, which reach each other by mnnvl, and by NICs when that fails.
type nicPair struct {
	*testing.T
	gpu      *fake.Loaded
	faults   *faulty.Plan
	here     *engine.Engine
	far      *bed.Peer
	local    uintptr
	to       engine.SegmentID
	news     engine.FollowerID
	expected []byte // at the peer
	rounds   uint64
}

// withNICs carries a test out on memory of cuda:0 here and of cuda:1 there.
func withNICs(t *testing.T, direct bool, test func(*nicPair), owner ...string) {
	inDomain(t, nil, func(t *testing.T, gpu *fake.Loaded) {
		with := byNICs(direct)
		p := &nicPair{T: t, gpu: gpu, far: start(t, with, owner...), expected: bed.Pattern(1, bed.Size)}
		p.here, p.faults = breakable(t, with)
		p.far.Own(bed.Allocated)
		p.local, p.to = bed.Mine(t, p.here), bed.OpenCache(t, p.here, p.far)
		t.Cleanup(gpu.Forgive)
		var err error
		p.news, err = p.here.Follow()
		require.NoError(t, err)
		test(p)
	}, verbs.Environment(t)...)
}

func (p *nicPair) explained() *engine.Explanation {
	made, err := p.here.Explain(&engine.Request{Terms: engine.Terms{Op: transport.Write}, Source: p.local,
		Remote: engine.Remote{Segment: p.to}, Length: 4096})
	require.NoError(p, err)
	return made
}

// await waits until requests begin with a transport.
func (p *nicPair) await(by string) {
	for end := time.Now().Add(netbed.Patience); p.explained().Taken != by; runtime.Gosched() {
		require.Less(p, time.Now(), end, "requests do not begin with %s: %+v", by, p.explained())
	}
}

// write fills the peer's region, while something happens, and looks at every byte of it and around it.
func (p *nicPair) write(happens func()) dispatch.Summary {
	p.rounds++
	bytes := bed.Pattern(1+p.rounds, bed.Inside)
	require.NoError(p, p.gpu.Poke(p.local, bytes))
	id, err := p.here.Move(&engine.Request{Terms: engine.Terms{Op: transport.Write}, Source: p.local,
		Remote: engine.Remote{Segment: p.to}, Length: bed.Inside})
	require.NoError(p, err)
	happens()
	require.Equal(p, dispatch.Completed, p.here.Wait(id, netbed.Patience))
	s, err := p.here.Summary(id)
	require.NoError(p, err)
	require.NoError(p, p.here.FreeBatch(id))
	copy(p.expected[bed.Band:], bytes)
	p.look()
	return s
}

func (p *nicPair) look() { require.Equal(p, p.expected, p.far.Peek()) }

// failedOver checks the events of transfers that have left mnnvl: each names both transports and the peer.
func (p *nicPair) failedOver(to string) (n int) {
	list, _, err := p.here.Events(p.news, 1000)
	require.NoError(p, err)
	for _, e := range list {
		switch e.Kind {
		case event.Failover:
			require.Equal(p, []string{"mnnvl", to, p.far.Address}, []string{e.From, e.To, e.Peer}, "%+v", e)
			n++
		case event.FailoverExhausted, event.FailoverNoRoute, event.Dirty, event.PeerGone:
			require.Fail(p, "a transfer was given up", "%+v", e)
		}
	}
	return n
}

func nothing() {}

// NVLink between the hosts fails under a transfer. Its bytes go by NICs, between the devices or between memory of the
// hosts, and by NVLink when it is back.
func TestTransfersFailOverToRDMAAndBack(t *testing.T) {
	for name, c := range map[string]struct {
		direct bool
		to     string
	}{"direct": {true, "rdma"}, "staged": {false, "delegate"}} {
		t.Run(name, func(t *testing.T) {
			withNICs(t, c.direct, func(p *nicPair) {
				require.Equal(p, "mnnvl", p.explained().Taken)
				p.write(nothing)
				p.gpu.Hold(true) // nothing has arrived when the link is lost
				s := p.write(func() {
					require.NoError(p, p.faults.Apply("transport=mnnvl down"))
					p.gpu.Hold(false)
				})
				require.EqualValues(p, 1, s.Failovers)
				require.Equal(p, 1, p.failedOver(c.to))
				name := fmt.Sprintf("tent_transport_failover_total{from=%q,to=%q}", "mnnvl", c.to)
				require.EqualValues(p, 1, p.here.Metrics()[name])
				p.await(c.to)
				require.Zero(p, p.write(nothing).Failovers, "it begins there")
				require.NoError(p, p.faults.Apply("heal"))
				p.await("mnnvl")
				p.write(nothing)
				p.look()
			})
		})
	}
}

// Without its IMEX channel a process opens no handle. Memory that it has not mapped goes by NICs, and by NVLink when
// the channel is back.
func TestALostChannelOfIMEXLeavesRDMA(t *testing.T) {
	withNICs(t, true, func(p *nicPair) {
		p.write(nothing)
		for _, c := range []struct{ channel, by string }{{"0", "rdma"}, {"1", "mnnvl"}} {
			require.NoError(p, os.Setenv("TENT_FAKECUDA_IMEX", c.channel))
			require.NoError(p, p.here.CloseSegment(p.to))
			p.to = bed.OpenCache(p.T, p.here, p.far)
			p.await(c.by) // its rail may come up after others
			p.write(nothing)
			made := p.explained()
			require.Equal(p, c.by, made.Taken)
			refused := strings.Contains(fmt.Sprint(made.Rejected), "CUDA_ERROR_NOT_PERMITTED, 800")
			require.Equal(p, c.by == "rdma", refused, "%+v", made.Rejected)
		}
	})
}

// A sticky error ends our device under a transfer. NICs go on with its memory by the dma-buf, and ask no driver.
func TestALostDeviceGoesOnByRDMA(t *testing.T) {
	withNICs(t, true, func(p *nicPair) {
		p.write(nothing)
		p.await("mnnvl")
		p.gpu.Inject("copy", 2, 220, true) // CUDA_ERROR_NVLINK_UNCORRECTABLE
		s := p.write(nothing)
		require.EqualValues(p, 1, s.Failovers)
		require.ErrorContains(p, s.Moved, "220")
		require.Equal(p, 1, p.failedOver("rdma"))
		p.await("rdma")
		calls := p.gpu.Stats().Calls
		require.Zero(p, p.write(nothing).Failovers, "it begins there")
		require.Equal(p, calls, p.gpu.Stats().Calls, "a lost device is not asked again")
	})
}

// Devices in two cliques of the domain do not reach each other by NVLink, and NICs do.
func TestAnotherCliqueIsReachedByRDMA(t *testing.T) {
	withNICs(t, true, func(p *nicPair) {
		p.write(nothing)
		made := p.explained()
		require.Equal(p, "rdma", made.Taken)
		require.Contains(p, fmt.Sprint(made.Rejected), "in clique 7 of the NVLink domain")
	}, "TENT_FAKENVML_CLIQUE=8")
}
