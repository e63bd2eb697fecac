package shm

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/host/hazard"
	"github.com/tent-engine/tent/transports/host/vm"
)

var anIdentity = identity{vm.Identity{PID: 41, Started: 42, UID: 43, GID: 44, PIDNS: 45, UserNS: 46}, nonce{1, 2, 3},
	47}

// FuzzDescriptor offers any bytes: they are refused or describe a possible region, and say the same when
// they are written again.
func FuzzDescriptor(f *testing.F) {
	d := described{name: hazard.Region{Index: 3, Generation: 9}, allows: mem.GlobalReadWrite, addr: 1 << 40, size: 4096,
		owner: transport.NumberedID(7)}
	f.Add([]byte(d.append(nil)))
	d.shared, d.file, d.fileSize, d.at, d.allows, d.fixed = true, place{5, 6, 7}, 1<<20, 4096, mem.GlobalReadOnly, true
	f.Add([]byte(d.append(nil)))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := readDescriptor(b, transport.ID{})
		if err != nil {
			return
		}
		require.NotZero(t, d.size)
		require.NotZero(t, d.name.Generation)
		require.LessOrEqual(t, d.allows, mem.GlobalReadWrite)
		require.GreaterOrEqual(t, d.addr+d.size, d.addr)
		if d.shared {
			require.True(t, mem.Contains(d.fileSize, d.at, d.size))
		}
		require.Equal(t, b, []byte(d.append(nil)))
		other := d.owner
		other[0] ^= 0xff
		_, err = readDescriptor(b, other)
		require.True(t, other.IsZero() || err != nil, "of another incarnation")
	})
}

func FuzzWelcome(f *testing.F) {
	f.Add(welcome{8, anIdentity, place{5, 6, 7}, vm.AnyTracer}.append([]byte{version}))
	f.Add([]byte{version})
	f.Fuzz(func(t *testing.T, b []byte) {
		if w, err := readWelcome(b); err == nil {
			require.Equal(t, b, w.append([]byte{version}))
		}
	})
}

// FuzzServe: nothing that a peer says makes us crash, or keep more than one page for it.
func FuzzServe(f *testing.F) {
	f.Add(anIdentity.append(append([]byte{version, callHello}, make([]byte, 8)...)))
	f.Add(tokenCall(callLeave, 9))
	f.Add(tokenCall(callGoodbye, 9))
	f.Add([]byte{version})
	a := &alone{}
	tr, err := Factory{}.Open(context.Background(), Settings{}, a, a)
	require.NoError(f, err)
	f.Cleanup(func() { _ = tr.Close(context.Background()) })
	f.Fuzz(func(t *testing.T, b []byte) {
		answer, err := tr.Serve(context.Background(), transport.Peer{Address: "peer:1"}, b)
		require.True(t, (answer == nil) == (err != nil))
		for _, at := range tr.(*Transport).attachments.list() {
			tr.(*Transport).attachments.end(at)
		}
	})
}
