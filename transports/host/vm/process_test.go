package vm

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
)

func unsafePointer(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

// Tests with another process: the test binary runs itself, says where its memory is, and follows orders that it reads
// from its input.

const childEnv = "TENT_VM_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		if err := childMain(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// hello is the child's first line.
type hello struct {
	Identity Identity
	At       uintptr // of memory with the pattern 7
	Size     int
	File     int // a memfd with the text "hello"
}

// order is the parent's wish; the child answers with a line.
type order struct {
	Read     Identity // try to read this process
	At       uintptr
	Want     []byte
	Undump   bool // make ourselves not dumpable
	Tracer   int  // call AllowTracer with it, if not 0
	Checksum bool // answer with the checksum of the memory at hello.At
}

func childMain() error {
	b, err := unix.Mmap(-1, 0, 64*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	fill(b, 7)
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	if _, err := unix.Write(fd, []byte("hello")); err != nil {
		return err
	}
	// A process that was started as another user is not dumpable; those that peers are to reach are.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0); err != nil {
		return err
	}
	me, err := Self()
	if err != nil {
		return err
	}
	out, in := json.NewEncoder(os.Stdout), json.NewDecoder(os.Stdin)
	if err := out.Encode(hello{me, uintptr(unsafePointer(b)), len(b), fd}); err != nil {
		return err
	}
	for {
		var o order
		if err := in.Decode(&o); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if err := out.Encode(obey(&o, b)); err != nil {
			return err
		}
	}
}

func obey(o *order, b []byte) string {
	var err error
	switch {
	case o.Undump:
		err = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	case o.Tracer != 0:
		err = AllowTracer(o.Tracer)
	case o.Checksum:
		return fmt.Sprint(sum(b))
	default:
		var p *Process
		if p, err = Open(o.Read.PID, o.Read.Started); err == nil {
			defer p.Close()
			err = p.Verify(o.At, o.Want)
		}
	}
	return fmt.Sprint(err)
}

func sum(b []byte) (s uint64) {
	for _, x := range b {
		s = s*31 + uint64(x)
	}
	return s
}

type child struct {
	hello
	t   *testing.T
	cmd *exec.Cmd
	in  *json.Encoder
	out *bufio.Reader
}

func start(t *testing.T, credential *syscall.Credential) *child {
	binary, err := os.Executable()
	require.NoError(t, err)
	if credential != nil {
		binary = forEverybody(t, binary)
		// The new process changes its user while it still shares our memory with us, which makes that not dumpable.
		defer func() { require.NoError(t, unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0)) }()
	}
	cmd := exec.Command(binary, "-test.run=^$")
	cmd.Env = append(os.Environ(), childEnv+"=1")
	cmd.Dir, cmd.Stderr = "/", os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential}
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	c := &child{t: t, cmd: cmd, in: json.NewEncoder(in), out: bufio.NewReader(out)}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	require.NoError(t, json.Unmarshal(c.line(), &c.hello))
	return c
}

// forEverybody copies a file to where any user can run it.
func forEverybody(t *testing.T, binary string) string {
	bytes, err := os.ReadFile(binary)
	require.NoError(t, err)
	folder := t.TempDir()
	for _, d := range []string{folder, filepath.Dir(folder)} {
		require.NoError(t, os.Chmod(d, 0o755))
	}
	binary = filepath.Join(folder, "child")
	require.NoError(t, os.WriteFile(binary, bytes, 0o755))
	return binary
}

func (c *child) line() []byte {
	b, err := c.out.ReadBytes('\n')
	require.NoError(c.t, err)
	return b
}

func (c *child) do(o order) (answer string) {
	require.NoError(c.t, c.in.Encode(o))
	require.NoError(c.t, json.Unmarshal(c.line(), &answer))
	return answer
}

func open(t *testing.T, c *child) *Process {
	p, err := Open(c.Identity.PID, c.Identity.Started)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

func TestBytesCrossProcesses(t *testing.T) {
	c := start(t, nil)
	p := open(t, c)
	want := make([]byte, c.Size)
	fill(want, 7)
	require.NoError(t, p.Verify(c.At, want[:16]))
	require.ErrorIs(t, p.Verify(c.At, want[1:17]), unix.ESRCH, "another process than the one that told us")
	require.ErrorIs(t, p.Verify(1<<12, want[:16]), unix.EFAULT)

	got, v := area(t, c.Size), New(0)
	require.EqualValues(t, c.Size, v.Add(addr(got), c.At, uint64(c.Size)))
	done, errno := v.Read(p.PID())
	require.Zero(t, errno)
	require.EqualValues(t, c.Size, done)
	require.Equal(t, want, []byte(got))

	fill(got, 8)
	for at := 0; at < c.Size; at += 2 * page { // every second page
		copy(want[at:at+page], got[at:])
		require.EqualValues(t, page, v.Add(addr(got)+uintptr(at), c.At+uintptr(at), page))
	}
	_, errno = v.Write(p.PID())
	require.Zero(t, errno)
	require.Equal(t, fmt.Sprint(sum(want)), c.do(order{Checksum: true}))
}

func TestProcessIsTheOneThatBeganThen(t *testing.T) {
	c := start(t, nil)
	_, err := Open(c.Identity.PID, c.Identity.Started+1)
	require.ErrorIs(t, err, unix.ESRCH, "the number is another process's by now")
	for _, pid := range []uint32{0, 1 << 31, ^uint32(0)} {
		_, err = Open(pid, 0)
		require.Error(t, err)
	}
	p := open(t, c)
	require.False(t, p.Ended())
	require.NoError(t, c.cmd.Process.Signal(unix.SIGSTOP))
	require.False(t, p.Ended(), "stopped is not ended")
	require.NoError(t, c.cmd.Process.Kill())
	waitFor(t, p)
	require.True(t, p.Ended(), "ended, though nobody has waited for it yet")
	v := New(0)
	v.Add(addr(area(t, page)), c.At, page)
	_, errno := v.Read(p.PID())
	require.Contains(t, []unix.Errno{unix.ESRCH, unix.EPERM}, errno)
	_ = c.cmd.Wait()
	v.Add(addr(area(t, page)), c.At, page)
	_, errno = v.Write(p.PID())
	require.Equal(t, unix.ESRCH, errno)
	require.Equal(t, errs.PeerUnreachable, Error("shm.write", errno, errs.SideUnknown).Code)
	_, err = p.ReopenFile(uint32(c.File), unix.O_RDONLY)
	require.Error(t, err)
	_, err = Open(c.Identity.PID, c.Identity.Started)
	require.ErrorIs(t, err, unix.ESRCH)
}

// waitFor waits for the end of a process as the kernel reports it.
func waitFor(t *testing.T, p *Process) {
	set := []unix.PollFd{{Fd: int32(p.Fd()), Events: unix.POLLIN}}
	n, err := unix.Poll(set, 10_000)
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

func TestFilesOfAnotherProcess(t *testing.T) {
	c := start(t, nil)
	p := open(t, c)
	read := func(fd int) string {
		var b [10]byte
		n, err := unix.Pread(fd, b[:], 0)
		require.NoError(t, err)
		return string(b[:n])
	}
	reopened, err := p.ReopenFile(uint32(c.File), unix.O_RDONLY)
	require.NoError(t, err)
	defer unix.Close(reopened)
	require.Equal(t, "hello", read(reopened))
	_, err = unix.Write(reopened, []byte("x"))
	require.ErrorIs(t, err, unix.EBADF, "opened for reading only")
	_, err = p.ReopenFile(9999, unix.O_RDONLY)
	require.ErrorIs(t, err, unix.ENOENT)
}

func TestOtherUserIsRefusedByTheKernelAndByName(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can start a process of another user")
	}
	me, err := Self()
	require.NoError(t, err)
	nobody := start(t, &syscall.Credential{Uid: 65534, Gid: 65534})
	require.Contains(t, nobody.Identity.Boundary(me), "user 0")
	secret := area(t, page)
	require.Contains(t, nobody.do(order{Read: me, At: addr(secret), Want: secret[:8]}), unix.EPERM.Error())

	other := start(t, &syscall.Credential{Uid: 65534, Gid: 65534})
	require.Empty(t, nobody.Identity.Boundary(other.Identity))
	want := make([]byte, 64)
	fill(want, 7)
	ask := order{Read: other.Identity, At: other.At, Want: want}
	if TraceScope() < ScopeRelation {
		require.Equal(t, "<nil>", nobody.do(ask), "one user, both dumpable")
	}
	require.Equal(t, "<nil>", other.do(order{Undump: true}))
	require.Contains(t, nobody.do(ask), unix.EPERM.Error(), "not dumpable")
}

func TestBoundaryNamesWhatStandsBetween(t *testing.T) {
	me, err := Self()
	require.NoError(t, err)
	require.Empty(t, me.Boundary(me))
	for word, change := range map[string]func(*Identity){
		"user namespace": func(i *Identity) { i.UserNS++ },
		"pid namespace":  func(i *Identity) { i.PIDNS++ },
		"runs as user":   func(i *Identity) { i.UID++ },
		"runs as group":  func(i *Identity) { i.GID++ },
	} {
		other := me
		change(&other)
		require.Contains(t, me.Boundary(other), word)
	}
}

// The kernel here may have Yama or not; either way the answer must be one that the transport can act on.
func TestYama(t *testing.T) {
	c := start(t, nil)
	answer := c.do(order{Tracer: AnyTracer})
	switch scope := TraceScope(); scope {
	case ScopeAbsent:
		require.Contains(t, answer, unix.EINVAL.Error())
	default:
		require.Equal(t, "<nil>", answer)
		require.Contains(t, scope.String(), "Yama")
	}
	require.Contains(t, ScopeRelation.String(), scopePath)
	require.Error(t, AllowTracer(1<<30), "no such process, or no Yama")
}
