package security

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/security/securitytest"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/all"
	"github.com/tent-engine/tent/transports/faulty"
)

// newSlow is a member with rails that carry few bytes a second, until the plan is healed.
func newSlow(t *testing.T, plan *faulty.Plan, data string, own, root *securitytest.Authority) member {
	t.Helper()
	f := securitytest.NewFiles(t)
	f.Write(t, own, root)
	settings := f.Settings("spiffe://prod/**")
	settings["transports/shm/enable"], settings["security/reload_interval"] = false, 0
	settings["security/data"] = data
	c, err := config.Load(config.Options{Transports: all.Transports()}, settings)
	require.NoError(t, err)
	factories := all.Factories()
	for i := range factories {
		factories[i] = faulty.Wrap(factories[i], plan)
	}
	e, err := engine.Open(t.Context(), engine.Options{Config: c, Transports: engine.Plugs(factories...)})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.Empty(t, e.Close(patience, true))
		require.NoError(t, e.Forget())
	})
	return member{e, f}
}

// crossing is one transfer that is under way for long.
type crossing struct {
	*engine.Engine
	request     engine.Request
	batch       dispatch.BatchID
	own, theirs []byte
	sent, guard []byte
}

const (
	crossingBytes = 32 << 20
	guardBytes    = 4096
)

// newCrossing prepares a transfer between two engines. Bytes behind both memories are to stay as they are.
func newCrossing(t *testing.T, from, to *engine.Engine, op transport.Op, name string) *crossing {
	t.Helper()
	x := &crossing{Engine: from, own: memory(t, crossingBytes+guardBytes), theirs: memory(t, crossingBytes+guardBytes)}
	source := x.own
	if op == transport.Read {
		source = x.theirs
	}
	x.guard = fill(t, x.own[crossingBytes:])
	copy(x.theirs[crossingBytes:], x.guard)
	x.sent = fill(t, source[:crossingBytes])
	for e, b := range map[*engine.Engine][]byte{from: x.own, to: x.theirs} {
		m := engine.Memory{Addr: mem.AddressOf(b), Size: crossingBytes, Location: "cpu:0"}
		if e == to {
			m.Name, m.Permission = name, mem.GlobalReadWrite
		}
		_, err := e.Register(m)
		require.NoError(t, err)
	}
	at, err := from.OpenSegment(t.Context(), to.Address()+"/"+name)
	require.NoError(t, err)
	x.request = engine.Request{Terms: engine.Terms{Op: op}, Source: mem.AddressOf(x.own), Length: crossingBytes,
		Remote: engine.Remote{Segment: at}}
	return x
}

func (x *crossing) begin(t *testing.T) {
	t.Helper()
	var err error
	x.batch, err = x.Move(&x.request)
	require.NoError(t, err)
}

func (x *crossing) look(t *testing.T) dispatch.Status {
	t.Helper()
	status, err := x.Status(x.batch, 0)
	require.NoError(t, err)
	require.Nil(t, status.Err)
	return status
}

// goOn waits until more bytes of some transfers have arrived, and requires that all of them have more to come.
func goOn(t *testing.T, list []*crossing) {
	t.Helper()
	arrived := func() (sum uint64) {
		for _, x := range list {
			status := x.look(t)
			require.Equal(t, dispatch.Pending, status.State, "the transfer was too short for this machine")
			sum += status.Bytes
		}
		return sum
	}
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	late := time.After(patience)
	for before := arrived(); arrived() == before; {
		select {
		case <-look.C:
		case <-late:
			require.FailNow(t, "no byte arrives any more")
		}
	}
}

// arrives waits for the end, and requires that each byte has arrived once, on the first try.
func (x *crossing) arrives(t *testing.T) {
	t.Helper()
	x.Wait(x.batch, patience)
	ended := x.look(t)
	require.Equal(t, dispatch.Completed, ended.State)
	require.EqualValues(t, crossingBytes, ended.Bytes)
	require.Zero(t, ended.Failovers)
	for _, b := range [][]byte{x.own, x.theirs} {
		require.True(t, bytes.Equal(x.sent, b[:crossingBytes]), "wrong bytes")
		require.True(t, bytes.Equal(x.guard, b[crossingBytes:]), "bytes behind the memory were touched")
	}
	require.NoError(t, x.FreeBatch(x.batch))
}

// Each of two engines WRITEs and READs while all certificates, keys and authorities change six times. No transfer
// fails, and no lane is lost for it. Both engines stay the ones that they were.
func TestLongTransfersOutlastTheirCertificates(t *testing.T) {
	t.Parallel()
	for _, data := range protections {
		t.Run(data.String(), func(t *testing.T) { outlast(t, data.String()) })
	}
}

func outlast(t *testing.T, data string) {
	plan, err := faulty.New("transport=tcp slow=8MiB")
	require.NoError(t, err)
	old := securitytest.NewAuthority(t, nil)
	a := newSlow(t, plan, data, old.Issue(t, nil, "spiffe://prod/prefill/0"), old)
	b := newSlow(t, plan, data, old.Issue(t, nil, "spiffe://prod/decode/0"), old)
	list := []*crossing{
		newCrossing(t, a.Engine, b.Engine, transport.Write, "written by a"),
		newCrossing(t, b.Engine, a.Engine, transport.Read, "read by b"),
		newCrossing(t, a.Engine, b.Engine, transport.Read, "read by a"),
		newCrossing(t, b.Engine, a.Engine, transport.Write, "written by b"),
	}
	for _, x := range list {
		x.begin(t)
	}
	sign := func(by *securitytest.Authority, roots ...*securitytest.Authority) {
		a.files.Write(t, by.Issue(t, nil, "spiffe://prod/prefill/0"), roots...)
		b.files.Write(t, by.Issue(t, nil, "spiffe://prod/decode/0"), roots...)
		for _, m := range []member{a, b} {
			changed, err := m.ReloadSecurity(context.Background(), nil)
			require.NoError(t, err)
			require.True(t, changed)
		}
		goOn(t, list)
	}
	goOn(t, list)
	for range 2 {
		next := securitytest.NewAuthority(t, nil)
		sign(old, old, next)
		sign(next, old, next)
		sign(next, next)
		old = next
	}
	require.NoError(t, plan.Apply("heal"))
	for _, x := range list {
		x.arrives(t)
	}
	for _, m := range []member{a, b} {
		require.Empty(t, losses(t, m.Engine))
		require.Len(t, m.Peers(), 1)
	}
	require.Equal(t, a.Self().ID, b.Peers()[0].Peer.ID)
	require.Equal(t, b.Self().ID, a.Peers()[0].Peer.ID)
}

// losses are the events of rails and peers that were lost.
func losses(t *testing.T, e *engine.Engine) (lost []event.Event) {
	t.Helper()
	follower, err := e.Follow()
	require.NoError(t, err)
	defer e.Unfollow(follower)
	list, missed, err := e.Events(follower, 1000)
	require.NoError(t, err)
	require.Zero(t, missed)
	for _, each := range list {
		switch each.Kind {
		case event.RailDown, event.RailCondemned, event.PeerDisconnected, event.PeerRefused, event.AccessRefused:
			lost = append(lost, each)
		}
	}
	return lost
}
