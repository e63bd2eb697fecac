package services

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/tests/ports"
)

// patience bounds each wait of a test on a machine that others use, too.
const patience = 30 * time.Second

// service is a metadata service in a process of its own.
type service struct {
	t        *testing.T
	kind     string // metadata_type
	address  string
	folder   string // of its state
	files    string // of TLS, "" without
	word     string // file with the password, "" without
	process  *exec.Cmd
	released func()
}

var kinds = []string{"etcd", "redis", "http"}

// newService starts a service with a password and TLS, if files are named for these.
func newService(t *testing.T, kind, files, word string) *service {
	t.Helper()
	s := &service{t: t, kind: kind, address: ports.Address(t), folder: filepath.Join(t.TempDir(), kind),
		files: files, word: word}
	t.Cleanup(s.kill)
	s.start()
	return s
}

// start runs the server, and returns when it answers.
func (s *service) start() {
	s.t.Helper()
	require.NoError(s.t, os.MkdirAll(s.folder, 0o700))
	if s.kind == "redis" {
		s.process, s.released = s.redis(), func() {}
		require.Eventually(s.t, func() bool {
			connection, err := net.Dial("tcp", s.address)
			if err == nil {
				_ = connection.Close()
			}
			return err == nil
		}, patience, 10*time.Millisecond, "redis-server does not listen")
		return
	}
	s.process, s.released = child(s.t, "-role="+s.kind, "-address="+s.address, "-folder="+s.folder, "-files="+s.files,
		"-word="+s.word)
}

// redis starts Debian's server, with each change on its disk.
func (s *service) redis() *exec.Cmd {
	_, port, err := net.SplitHostPort(s.address)
	require.NoError(s.t, err)
	settings := "bind 127.0.0.1\nsave \"\"\nappendonly yes\nappendfsync always\ndir " + s.folder + "\n"
	if s.files != "" {
		settings += fmt.Sprintf("port 0\ntls-port %s\ntls-cert-file %s/tls.crt\ntls-key-file %s/tls.key\n"+
			"tls-ca-cert-file %s/ca.crt\ntls-auth-clients yes\n", port, s.files, s.files, s.files)
	} else {
		settings += "port " + port + "\n"
	}
	if s.word != "" {
		password, err := os.ReadFile(s.word)
		require.NoError(s.t, err)
		settings += fmt.Sprintf("user tent on >%s ~tent/* &tent/* +@all\nuser default off\n", password)
	}
	file := filepath.Join(s.folder, "redis.conf")
	require.NoError(s.t, os.WriteFile(file, []byte(settings), 0o600))
	server := exec.Command("redis-server", file)
	require.NoError(s.t, startTied(s.t, server), "apt-get install redis-server")
	return server
}

// startTied starts a process that is killed with this one. The kernel ties it to the thread that started it, so that
// thread lives as long as the test.
func startTied(t *testing.T, process *exec.Cmd) error {
	process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, over := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		started <- process.Start()
		<-over
	}()
	t.Cleanup(func() { close(over) })
	return <-started
}

// child starts this program in a role, and returns when it says that it is ready.
func child(t *testing.T, arguments ...string) (process *exec.Cmd, released func()) {
	t.Helper()
	process = exec.Command(os.Args[0], arguments...)
	process.Stderr = os.Stderr
	input, err := process.StdinPipe()
	require.NoError(t, err)
	output, err := process.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, startTied(t, process))
	ready := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(output).ReadString('\n')
		ready <- line
		_, _ = io.Copy(io.Discard, output)
	}()
	select {
	case line := <-ready:
		require.Equal(t, "ready\n", line)
	case <-time.After(patience):
		t.Fatalf("%v is not ready", arguments)
	}
	return process, func() { _ = input.Close() }
}

// kill ends the server at once; it may be ended already.
func (s *service) kill() {
	if s.process == nil {
		return
	}
	_ = s.process.Process.Kill()
	s.released()
	_ = s.process.Wait()
	s.process = nil
}

// wipe removes the state of a server that was killed.
func (s *service) wipe() { require.NoError(s.t, os.RemoveAll(s.folder)) }

// stop makes the server stand still, as one that swaps or is cut off. It waits until all threads do: on a busy machine
// they answer until one of them has run to take the signal. resume makes it go on.
func (s *service) stop() {
	s.t.Helper()
	require.NoError(s.t, s.process.Process.Signal(unix.SIGSTOP))
	require.NoError(s.t, unix.Waitid(unix.P_PID, s.process.Process.Pid, nil, unix.WSTOPPED, nil))
}

func (s *service) resume() {
	s.t.Helper()
	require.NoError(s.t, s.process.Process.Signal(unix.SIGCONT))
}

// settings are those of an engine with a name; "" has none.
func (s *service) settings(name string) map[string]any {
	servers := s.address
	if s.kind == "http" {
		servers = "http://" + s.address + "/metadata"
		if s.files != "" {
			servers = "https://" + s.address + "/metadata"
		}
	}
	settings := map[string]any{"metadata_type": s.kind, "metadata_servers": servers, "metadata_lease": 2, "name": name,
		"metadata_timeout": limit.Seconds()}
	if s.files != "" {
		settings["metadata_timeout"] = 2 // for handshakes and the hash of a password
		settings["metadata_user"], settings["metadata_password_file"] = "tent", s.word
		settings["metadata_tls_ca"] = filepath.Join(s.files, "ca.crt")
		settings["metadata_tls_certificate"] = filepath.Join(s.files, "tls.crt")
		settings["metadata_tls_key"] = filepath.Join(s.files, "tls.key")
	}
	return settings
}

const limit = 500 * time.Millisecond // of a question to the service
