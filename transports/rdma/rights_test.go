package rdma

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/rdma/verbs"
)

// TestKeysGiveNoMoreRightsThanTheRegion: a NIC knows nothing but the rights of a key.
func TestKeysGiveNoMoreRightsThanTheRegion(t *testing.T) {
	r := newRigOver(t, 1, func(s *Settings) { s.Relaxed = new(0) })
	const read, write = verbs.RemoteRead, verbs.RemoteWrite | verbs.RemoteRead | verbs.LocalWrite
	for _, each := range []struct {
		permission mem.Permission
		readOnly   bool
		local      verbs.Access
		remote     verbs.Access // 0: there is no such key
	}{
		{mem.LocalReadWrite, false, verbs.LocalWrite, 0},
		{mem.GlobalReadOnly, false, verbs.LocalWrite, read},
		{mem.GlobalReadWrite, false, verbs.LocalWrite, write},
		{mem.LocalReadWrite, true, 0, 0},
		{mem.GlobalReadWrite, true, 0, read},
	} {
		m := mem.Region{Addr: r.local.Addr, Size: 4096, Kind: mem.Host, Fd: -1, Permission: each.permission,
			ReadOnly: each.readOnly}
		key, _, err := r.a.Transport.Register(t.Context(), m)
		require.NoError(t, err)
		k := r.a.Transport.(*Transport).regions.Lookup(key).keys.Load()
		access := func(m *memory) verbs.Access { return verbs.Access(r.f.Control(t, "access %d", m.parts[0].RKey)) }
		require.Equal(t, each.local, access(k.local[0]), "%+v", each)
		if each.remote == 0 {
			require.Nil(t, k.remote[0])
		} else {
			require.Equal(t, each.remote, access(k.remote[0]), "%+v", each)
		}
		require.NoError(t, r.a.Transport.Deregister(t.Context(), key))
	}
}

// TestNewsOfAnotherPeerCountForNothing: it names a link of ours to its victim, with regions there.
func TestNewsOfAnotherPeerCountForNothing(t *testing.T) {
	r := newRigOver(t, 1, nil)
	a := r.a.Transport.(*Transport)
	m := a.links.Lookup(r.c.Link).keys.Lookup(r.remote.Key)
	n := news{region: m.region, closed: true}
	stranger := transport.Peer{ID: transport.NumberedID(77), Address: "stranger:1"}
	_, err := a.Serve(t.Context(), stranger, n.encode(message(kindNews, uint64(r.c.Link))))
	require.NoError(t, err)
	require.False(t, m.passage.Closed())
	r.works(t)
}

// TestALinkThatWasNotGreetedIsStale, by which its peer knows that nothing of it moves.
func TestALinkThatWasNotGreetedIsStale(t *testing.T) {
	r := newRigOver(t, 1, nil)
	b := r.b.Transport.(*Transport)
	here := len(b.guests.all(transport.ID{}))
	question := append(message(kindLearn, 4711), make([]byte, 8)...)
	_, err := b.Serve(t.Context(), r.a.Peer, question)
	require.Equal(t, errs.Stale, errs.CodeOf(err), "%v", err)
	require.Len(t, b.guests.all(transport.ID{}), here)
}

// TestADeviceSaysWhatItCanRegister before the kernel refuses without a reason.
func TestADeviceSaysWhatItCanRegister(t *testing.T) {
	r := newRigOver(t, 1, nil)
	r.first().device.limits.Memory = 4096
	_, _, err := r.a.Transport.Register(t.Context(), mem.Region{Addr: r.local.Addr, Size: 8192, Kind: mem.Host, Fd: -1})
	require.Equal(t, errs.NotHere, errs.CodeOf(err))
	require.ErrorContains(t, err, "fake0 registers 4096 bytes at once")
}

// TestAnErrorAloneDoesNotSayThatADeviceWasPulled: its queue pairs may move bytes.
func TestAnErrorAloneDoesNotSayThatADeviceWasPulled(t *testing.T) {
	r := newRigOver(t, 1, nil)
	d := r.first().device
	require.False(t, d.pulled(syscall.EIO), "it answers")
	r.f.Control(t, "pull fake0 1")
	require.True(t, d.pulled(syscall.EIO))
	require.False(t, d.pulled(syscall.ETIMEDOUT))
	r.f.Control(t, "pull fake0 0")
}
