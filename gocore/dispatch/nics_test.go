package dispatch

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/transport"
)

// onNICs makes a link with a rail for each NIC and windows of two slices; rail i is on the i-th.
func (r *rig) onNICs(names ...string) plan.LinkID {
	id := r.core.AddLink(LinkSpec{Peer: 1, PeerName: "peer", Info: &transport.Info{}, Probes: true})
	for i, name := range names {
		r.core.RailUp(id, transport.RailInfo{Rail: railOf(id, i, 1), Local: "10.0.0." + string(rune('1'+i)),
			Remote: "far",
			Device: name, Node: -1, BytesMax: 128 * kib, Bandwidth: 1e9}, r.now)
	}
	return id
}

// The subtests bear the names of upstream's transport_selector_test.
func TestAPolicyNamesTheNICsThatCarryARequest(t *testing.T) {
	for name, c := range map[string]struct {
		mask uint64
		want []int // of four slices, while windows of two are full
	}{
		"DeviceMaskDefaultAll":                         {0, []int{0, 1, 0, 1}},
		"DeviceMaskResolvesNamedNics":                  {0b0010, []int{1, 1}},
		"DeviceMaskResolvesNamedNics by their address": {0b0100, []int{0, 0}},
		"DeviceMaskFailsOpenWhenNothingResolves":       {0b1000, []int{0, 1, 0, 1}},
		"DeviceMaskKeepsResolvedNamesOnPartialFailure": {0b1001, []int{0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Options{Devices: []string{"eth0", "eth1", "10.0.0.1", "eth9"}})
			p := to(r.core, r.onNICs("eth0", "eth1"))
			p.Devices = c.mask
			r.submit(p, High, 256*kib, clock.Never)
			require.ElementsMatch(t, c.want, r.taken())
			r.drain()
		})
	}
}

func TestDeviceMaskAllowsAllWhenItsNICIsGone(t *testing.T) {
	r := newRig(t, Options{Devices: []string{"eth0", "eth1"}})
	link := r.onNICs("eth0", "eth1")
	p := to(r.core, link)
	p.Devices = 0b10
	b := r.submit(p, High, 1<<20, clock.Never)
	require.Equal(t, []int{1, 1}, r.taken())
	r.core.RailDown(link, railOf(link, 1, 1), broken(errs.ScopeRail), r.now)
	r.step()
	require.Equal(t, []int{1, 1, 0, 0}, r.taken(), "nobody waits for a NIC that is gone while there is a path")
	r.finish(0, broken(errs.ScopeRail))
	r.finish(0, broken(errs.ScopeRail))
	r.drain()
	require.Equal(t, Completed, r.status(b).State)
}

func TestARailPassesOverWhatOtherNICsMustCarry(t *testing.T) {
	r := newRig(t, Options{Devices: []string{"eth0", "eth1"}})
	link := r.onNICs("eth0", "eth1")
	bound, free := to(r.core, link), to(r.core, link)
	bound.Devices = 0b10
	r.submit(bound, High, 1<<20, clock.Never)
	require.Equal(t, []int{1, 1}, r.taken())
	r.submit(free, High, 128*kib, clock.Never)
	require.Equal(t, []int{1, 1, 0, 0}, r.taken(), "the other task does not wait behind it")
	r.drain()
}
