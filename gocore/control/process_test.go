package control

import (
	"context"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/security"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/forked"
	"github.com/tent-engine/tent/tests/ports"
)

func TestMain(m *testing.M) {
	if !forked.RunChild(Remote{}) {
		os.Exit(m.Run())
	}
}

// Remote is an engine's control plane in a process of its own. Its exported methods are called by the parent.
type Remote struct{}

// Listen listens on an address and returns the one that it got.
func (Remote) Listen(address string, listens *string) error {
	own, err := security.Open(security.Settings{})
	if err != nil {
		return err
	}
	self := transport.Peer{Name: "child", MachineID: "here"}
	server, err := Listen([]string{address}, Options{Self: func() transport.Peer { return self }, Credentials: own})
	if err != nil {
		return err
	}
	server.Start(&node{serve: func(context.Context, transport.Peer, string, []byte) ([]byte, error) {
		return []byte("here"), nil
	}})
	*listens = server.Addresses()[0]
	return nil
}

// Open opens the engine at an address and returns its identity.
func (Remote) Open(address string, id *transport.ID) error {
	own, err := security.Open(security.Settings{})
	if err != nil {
		return err
	}
	self := transport.Peer{Name: "child", MachineID: "here", ID: own.ID()}
	client := NewClient(Options{Self: func() transport.Peer { return self }, Credentials: own,
		HandshakeTimeout: time.Second})
	defer client.Close()
	peer, err := client.Open(context.Background(), address)
	*id = peer.ID
	return err
}

// child runs such a process and kills it at the end of the test.
func child(t *testing.T, address string) (c *forked.Child, listens string) {
	c, err := forked.Start()
	require.NoError(t, err)
	t.Cleanup(c.Kill)
	require.NoError(t, c.Call("Remote.Listen", address, &listens))
	return c, listens
}

func TestKilledProcessIsReplacedAtItsPort(t *testing.T) {
	checkLeaks(t)
	a := start(t, "127.0.0.1:0")
	process, address := child(t, ports.Address(t))
	for range 3 {
		old, err := a.client.Open(within(t), address)
		require.NoError(t, err)
		process.Kill()
		begin := time.Now()
		_, err = a.client.Call(within(t), old, "tcp", nil)
		require.Equal(t, errs.PeerUnreachable, errs.CodeOf(err), "%v", err)
		require.ErrorContains(t, err, "connection refused")
		require.Less(t, time.Since(begin), time.Second)

		var again string
		process, again = child(t, address)
		require.Equal(t, address, again, "the successor gets the port although connections of its predecessor linger")
		_, err = a.client.Call(within(t), old, "tcp", nil)
		require.Equal(t, errs.PeerRestarted, errs.CodeOf(err))
	}
}

// The limit of an open counts the time in which its process is let run.
func TestAProcessThatIsStoppedInItsHandshakeGoesOn(t *testing.T) {
	checkLeaks(t)
	b := start(t, "127.0.0.1:0", func(o *Options) { o.HandshakeTimeout = time.Minute }) // not the limit that is tested
	process, _ := child(t, "127.0.0.1:0")
	relay := stranger(t, func(c net.Conn) {
		defer c.Close()
		assert.NoError(t, process.Stop())
		<-time.After(1500 * time.Millisecond) // its limit is a second
		there, err := net.Dial("tcp", b.self.Address)
		assert.NoError(t, process.Signal(unix.SIGCONT))
		if assert.NoError(t, err) {
			defer there.Close()
			go func() { _, _ = io.Copy(there, c); _ = there.Close() }() // which ends the copy below
			_, _ = io.Copy(c, there)
		}
	})
	var id transport.ID
	require.NoError(t, process.Call("Remote.Open", relay, &id))
	require.Equal(t, b.self.ID, id)
}

func TestStoppedProcessIsToldFromAStranger(t *testing.T) {
	checkLeaks(t)
	a := start(t, "127.0.0.1:0", func(o *Options) { o.HandshakeTimeout = 300 * time.Millisecond })
	process, address := child(t, "127.0.0.1:0")
	peer, err := a.client.Open(within(t), address)
	require.NoError(t, err)
	require.NoError(t, process.Stop())
	begin := time.Now()
	_, err = a.client.Open(within(t), address)
	require.Equal(t, errs.PeerUnreachable, errs.CodeOf(err))
	require.ErrorContains(t, err, "stopped or overloaded")
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_, err = a.client.Call(ctx, peer, "tcp", nil)
	require.Equal(t, errs.Timeout, errs.CodeOf(err))
	require.Less(t, time.Since(begin), 3*time.Second)
	require.NoError(t, process.Signal(unix.SIGCONT))
	answer, err := a.client.Call(within(t), peer, "tcp", nil)
	require.NoError(t, err)
	require.Equal(t, "here", string(answer))
}
