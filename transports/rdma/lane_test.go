package rdma

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/rdma/verbs"
)

// TestNoREADSharesAQueuePairWithWRITEsOfSoftRoCE writes and reads in turn over a device that reports such READs as done
// halfway.
func TestNoREADSharesAQueuePairWithWRITEsOfSoftRoCE(t *testing.T) {
	r := newRigOver(t, 1, nil, "soft 1")
	rail := r.c.Rail(t)
	for class := range uint8(3) {
		for _, op := range []transport.Op{transport.Write, transport.Read, transport.Write} {
			from, to := r.local, r.remote.Operand
			if op == transport.Read {
				from, to = to, from
			}
			from.Fill(uint64(10+class), 0, rigSize)
			to.Fill(before, 0, rigSize)
			s := r.c.Slice(op, rail, r.local, 0, r.remote, 0, rigSize)
			s.Class = class
			r.c.Must(t, s)
			require.NoError(t, to.Check(uint64(10+class), 0, 0, rigSize), "%v of class %d", op, class)
		}
	}
	require.Empty(t, r.downs.all())
}

// TestALaneThatIsConnectedAnewHasAnotherQueuePair holds at both ends, so that packets of before find nobody.
func TestALaneThatIsConnectedAnewHasAnotherQueuePair(t *testing.T) {
	r := newRigOver(t, 1, nil)
	numbers := func() (list []uint32) {
		l := r.a.Transport.(*Transport).links.Lookup(r.c.Link)
		rail := l.rail(0)
		rail.mu.Lock()
		for _, each := range rail.lanes {
			list = append(list, each.pair.Number)
		}
		rail.unlock()
		for _, g := range r.b.Transport.(*Transport).guests.all(transport.ID{}) {
			g.mu.Lock()
			for _, each := range g.rails[0].lanes {
				list = append(list, each.pair.Number)
			}
			g.mu.Unlock()
		}
		return list
	}
	first := numbers()
	r.f.Control(t, "event fake0 %d", verbs.PortFailed)
	await(t, "the rail is down", func() bool { return len(r.downs.all()) > 0 })
	r.works(t)
	await(t, "the rail is up again", func() bool { return r.rails() == 1 })
	for _, number := range numbers() {
		require.NotContains(t, first, number)
	}
}
