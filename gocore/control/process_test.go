package control

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// childAddress makes the test binary an engine's control plane that listens there until its standard input ends.
const childAddress = "TENT_TEST_CONTROL_CHILD"

func TestMain(m *testing.M) {
	address := os.Getenv(childAddress)
	if address == "" {
		os.Exit(m.Run())
	}
	self := transport.Peer{Name: "child", MachineID: "here", Incarnation: uint64(os.Getpid())}
	server, err := Listen([]string{address}, Options{Self: func() transport.Peer { return self }})
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	server.Start(&node{serve: func(context.Context, transport.Peer, string, []byte) ([]byte, error) { return []byte("here"), nil }})
	fmt.Println(server.Addresses()[0])
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// child runs such a process and kills it at the end of the test.
func child(t *testing.T, address string) (*exec.Cmd, string) {
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), childAddress+"="+address)
	_, err := command.StdinPipe() // ends when we do
	require.NoError(t, err)
	out, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	t.Cleanup(func() { command.Process.Kill(); command.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	return command, strings.TrimSpace(line)
}

func TestKilledProcessIsReplacedAtItsPort(t *testing.T) {
	checkLeaks(t)
	a := start(t, "127.0.0.1:0")
	process, address := child(t, "127.0.0.1:0")
	for range 3 {
		old, err := a.client.Open(within(t), address)
		require.NoError(t, err)
		require.NoError(t, process.Process.Kill())
		process.Wait()
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

func TestStoppedProcessIsToldFromAStranger(t *testing.T) {
	checkLeaks(t)
	a := start(t, "127.0.0.1:0", func(o *Options) { o.HandshakeTimeout = 300 * time.Millisecond })
	process, address := child(t, "127.0.0.1:0")
	peer, err := a.client.Open(within(t), address)
	require.NoError(t, err)
	require.NoError(t, process.Process.Signal(syscall.SIGSTOP))
	var status syscall.WaitStatus
	_, err = syscall.Wait4(process.Process.Pid, &status, syscall.WUNTRACED, nil) // until it has stopped
	require.NoError(t, err)
	require.True(t, status.Stopped())
	begin := time.Now()
	_, err = a.client.Open(within(t), address)
	require.Equal(t, errs.PeerUnreachable, errs.CodeOf(err))
	require.ErrorContains(t, err, "stopped or overloaded")
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_, err = a.client.Call(ctx, peer, "tcp", nil)
	require.Equal(t, errs.Timeout, errs.CodeOf(err))
	require.Less(t, time.Since(begin), 3*time.Second)
	require.NoError(t, process.Process.Signal(syscall.SIGCONT))
	answer, err := a.client.Call(within(t), peer, "tcp", nil)
	require.NoError(t, err)
	require.Equal(t, "here", string(answer))
}
