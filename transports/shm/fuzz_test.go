package shm

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/host/access"
	"github.com/tent-engine/tent/transports/host/hazard"
	"github.com/tent-engine/tent/transports/host/manifest"
	"github.com/tent-engine/tent/transports/host/vm"
)

var aClaim = manifest.Claim{PID: 41, Started: 42, File: vm.File{Fd: 43, Dev: 44, Ino: 45}}

// FuzzDescriptor offers any bytes: they are refused or name a possible region of the peer, and say the same when they
// are written again.
func FuzzDescriptor(f *testing.F) {
	owner := transport.NumberedID(7)
	f.Add([]byte(descriptor(hazard.Region{Index: 3, Generation: 9}, owner)))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		name, err := readDescriptor(b, owner)
		if err != nil {
			return
		}
		require.NotZero(t, name.Generation)
		require.Equal(t, b, []byte(descriptor(name, owner)))
		_, err = readDescriptor(b, transport.NumberedID(8))
		require.NotNil(t, err, "of another engine")
	})
}

// FuzzServe: nothing that a stranger says makes us crash, or keep anything.
func FuzzServe(f *testing.F) {
	f.Add(access.Hello(version, access.NewToken(), aClaim))
	f.Add(access.Call(version, access.CallLeave, access.Token{9}))
	f.Add(access.Call(version, access.CallGoodbye, access.Token{9}))
	f.Add([]byte{version})
	a := &alone{}
	tr, err := Factory{}.Open(context.Background(), Settings{}, a, a)
	require.NoError(f, err)
	f.Cleanup(func() { _ = tr.Close(context.Background()) })
	f.Fuzz(func(t *testing.T, b []byte) {
		answer, err := tr.Serve(context.Background(), transport.Peer{Address: "peer:1",
			ID: transport.NumberedID(8)}, b)
		require.True(t, (answer == nil) == (err != nil))
		require.Zero(t, tr.(*Transport).Grants())
	})
}
