package dispatch

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
)

func TestExplainSaysWhatHoldsALinkUp(t *testing.T) {
	r := newRig(t, Options{FenceNetwork: ms})
	id := r.link(1, 1, 0, 0)
	says := func(text string) {
		t.Helper()
		require.Contains(t, r.core.Explain(id), text)
	}
	says("tcp to 10.0.0.1:7000: no rail yet")
	r.railUp(id, 0, 1, 1<<20)
	r.submit(to(r.core, id), High, 64*kib, r.now.Add(ms))
	says("1 of 1 rails up; tasks waiting: 0 high, 0 medium, 0 low")
	says("rail 0.1 a -> b: up, health 1000; 65536 of 1048576 bytes and 1 of 256 slices in flight, " +
		"LOW at most 500000 bytes; 1000.0 MB/s")
	r.wait(ms)
	r.wait(ms)
	says("waits for the peer to confirm the withdrawal of 1 slices")
	says("a -> b: condemned")
	r.finish(0, withdrawn)
	r.core.DropLink(id, errs.New(errs.PeerUnreachable, "dial", "refused"), r.now)
	r.submit(to(r.core, id), Low, 1, clock.Never)
	says("down: dial: refused; tasks waiting: 0 high, 0 medium, 1 low")
	r.wait(time.Second)
	r.core.PeerGone(1, errs.New(errs.PeerRestarted, "hello", "another incarnation"), r.now)
	says("the peer has ended: hello: another incarnation")
}
