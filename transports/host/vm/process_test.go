package vm

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/tests/forked"
)

func unsafePointer(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

func TestMain(m *testing.M) {
	if forked.RunChild(new(Other)) {
		return
	}
	os.Exit(m.Run())
}

// Other is another process, with memory that has the pattern 7, and an open file.
type Other struct{ memory []byte }

// Place is the process's identity, its memory and its file.
type Place struct {
	Identity Identity
	At       uintptr
	Size     int
	File     File // a memfd with the text "hello"
}

// Open makes the memory and the file.
func (o *Other) Open(_ forked.Nothing, place *Place) (err error) {
	if o.memory, err = unix.Mmap(-1, 0, 64*page, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANON); err != nil {
		return err
	}
	fill(o.memory, 7)
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
	place.At, place.Size = uintptr(unsafePointer(o.memory)), len(o.memory)
	if place.File, err = FileOf(fd); err == nil {
		place.Identity, err = Self()
	}
	return err
}

// Undump makes the process not dumpable.
func (o *Other) Undump(forked.Nothing, *forked.Nothing) error {
	return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
}

// Allow calls AllowTracer.
func (o *Other) Allow(tracer int, _ *forked.Nothing) error { return AllowTracer(tracer) }

// Sum returns the checksum of the memory.
func (o *Other) Sum(_ forked.Nothing, found *uint64) error {
	*found = sum(o.memory)
	return nil
}

// Visit finds out whether a process is of our own kind and lets us read its memory.
func (o *Other) Visit(who Identity, _ *forked.Nothing) error {
	p, err := Open(who.PID, who.Started)
	if err != nil {
		return err
	}
	defer p.Close()
	me, err := Self()
	if err != nil {
		return err
	}
	return errors.Join(p.Apart(me), p.Touch())
}

// Hide mounts /proc so that it shows a user nothing of others, and becomes that user.
func (o *Other) Hide(uid int, _ *forked.Nothing) error {
	if err := unix.Mount("proc", "/proc", "proc", 0, "hidepid=2"); err != nil {
		return err
	}
	if err := syscall.Setresgid(uid, uid, uid); err != nil {
		return err
	}
	return syscall.Setresuid(uid, uid, uid)
}

func sum(b []byte) (s uint64) {
	for _, x := range b {
		s = s*31 + uint64(x)
	}
	return s
}

type child struct {
	*forked.Child
	Place
	t *testing.T
}

func start(t *testing.T, changes ...forked.Change) *child {
	t.Helper()
	process, err := forked.Start(changes...)
	require.NoError(t, err)
	c := &child{Child: process, t: t}
	t.Cleanup(c.Kill)
	require.NoError(t, c.Call("Other.Open", forked.Nothing{}, &c.Place))
	return c
}

func (c *child) do(method string, arg any) error {
	return c.Call("Other."+method, arg, &forked.Nothing{})
}

func open(t *testing.T, c *child) *Process {
	p, err := Open(c.Identity.PID, c.Identity.Started)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

func TestBytesCrossProcesses(t *testing.T) {
	c := start(t)
	p := open(t, c)
	want := make([]byte, c.Size)
	fill(want, 7)
	require.NoError(t, p.Touch())

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
	var found uint64
	require.NoError(t, c.Call("Other.Sum", forked.Nothing{}, &found))
	require.Equal(t, sum(want), found)
}

func TestProcessIsTheOneThatBeganThen(t *testing.T) {
	c := start(t)
	_, err := Open(c.Identity.PID, c.Identity.Started+1)
	require.ErrorIs(t, err, unix.ESRCH, "the number is another process's by now")
	for _, pid := range []uint32{0, 1 << 31, ^uint32(0)} {
		_, err = Open(pid, 0)
		require.Error(t, err)
	}
	p := open(t, c)
	require.False(t, p.Ended())
	require.NoError(t, c.Stop())
	require.False(t, p.Ended(), "stopped is not ended")
	require.NoError(t, c.Signal(unix.SIGKILL))
	waitFor(t, p)
	require.True(t, p.Ended(), "ended, though nobody has waited for it yet")
	v := New(0)
	v.Add(addr(area(t, page)), c.At, page)
	_, errno := v.Read(p.PID())
	require.Contains(t, []unix.Errno{unix.ESRCH, unix.EPERM}, errno)
	c.Kill()
	v.Add(addr(area(t, page)), c.At, page)
	_, errno = v.Write(p.PID())
	require.Equal(t, unix.ESRCH, errno)
	require.Equal(t, errs.PeerUnreachable, Error("vm.write", errno, errs.SideUnknown).Code)
	require.ErrorIs(t, p.Touch(), unix.ESRCH)
	me, err := Self()
	require.NoError(t, err)
	require.ErrorIs(t, p.Apart(me), unix.ESRCH)
	_, err = p.Reopen(c.File, unix.O_RDONLY)
	require.Error(t, err)
	_, err = Open(c.Identity.PID, c.Identity.Started)
	require.ErrorIs(t, err, unix.ESRCH)
}

// An address space ends with its process, also for a caller that has heard nothing of that yet, and its number is
// nobody's then.
func TestAnAddressSpaceEndsWithItsProcess(t *testing.T) {
	c := start(t)
	p := open(t, c)
	s, err := p.Space()
	require.NoError(t, err)
	defer s.Close()
	later := func() { s.asked.Store(int64(clock.Now().Add(-answerLasts))) } // than an answer lasts
	require.False(t, s.Gone())
	require.NoError(t, c.Stop())
	later()
	require.False(t, s.Gone(), "stopped is not ended")
	require.Zero(t, testing.AllocsPerRun(10, func() { s.Gone() }))
	c.Kill()
	later()
	require.True(t, s.Gone())
	require.True(t, s.Gone(), "for good")
	_, err = p.Space()
	require.ErrorIs(t, err, unix.ESRCH)
	s.Close()
	require.False(t, s.Gone(), "a closed one gives no answer")
}

// waitFor waits for the end of a process as the kernel reports it.
func waitFor(t *testing.T, p *Process) {
	set := []unix.PollFd{{Fd: int32(p.Fd()), Events: unix.POLLIN}}
	n, err := unix.Poll(set, 10_000)
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

func TestFilesOfAnotherProcess(t *testing.T) {
	c := start(t)
	p := open(t, c)
	read := func(fd int) string {
		var b [10]byte
		n, err := unix.Pread(fd, b[:], 0)
		require.NoError(t, err)
		return string(b[:n])
	}
	title, err := p.Title(c.File)
	require.NoError(t, err)
	require.Equal(t, "/memfd:test (deleted)", title)
	reopened, err := p.Reopen(c.File, unix.O_RDONLY)
	require.NoError(t, err)
	defer unix.Close(reopened)
	require.Equal(t, "hello", read(reopened))
	_, err = unix.Write(reopened, []byte("x"))
	require.ErrorIs(t, err, unix.EBADF, "opened for reading only")
	_, err = p.Reopen(File{Fd: 9999}, unix.O_RDONLY)
	require.ErrorIs(t, err, unix.ENOENT)
	_, err = p.Title(File{Fd: 9999})
	require.ErrorIs(t, err, unix.ENOENT)
	other := c.File
	other.Ino++
	_, err = p.Reopen(other, unix.O_RDONLY)
	require.ErrorIs(t, err, unix.ESTALE, "another file is open under the number")
}

// A number that was closed is soon that of something else, which often cannot be opened. The kernel's error then says
// nothing about the file that was meant.
func TestAClosedFileIsToldWhateverHasItsNumberNow(t *testing.T) {
	me, err := Self()
	require.NoError(t, err)
	p, err := Open(me.PID, me.Started)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	for name, another := range map[string]func() (int, error){
		"an eventfd": func() (int, error) { return unix.Eventfd(0, unix.EFD_CLOEXEC) },
		"a socket":   func() (int, error) { return unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0) },
		"a pidfd":    func() (int, error) { return unix.PidfdOpen(os.Getpid(), 0) },
		"a memfd":    func() (int, error) { return unix.MemfdCreate("other", unix.MFD_CLOEXEC) },
	} {
		meant, err := unix.MemfdCreate("meant", unix.MFD_CLOEXEC)
		require.NoError(t, err)
		f, err := FileOf(meant)
		require.NoError(t, err)
		other, err := another()
		require.NoError(t, err)
		require.NoError(t, unix.Dup3(other, meant, unix.O_CLOEXEC))
		_, err = p.Reopen(f, unix.O_RDWR)
		require.ErrorIs(t, err, unix.ESTALE, name)
		require.NoError(t, unix.Close(other))
		require.NoError(t, unix.Close(meant))
	}
}

// A process shows any file that it likes, and may exchange it at any time. Opening a device or a FIFO has effects, and
// a file with a name may be one that the process itself may not open: it holds that by O_PATH, for example.
func TestNothingIsReopenedButWhatIsMeant(t *testing.T) {
	me, err := Self()
	require.NoError(t, err)
	p, err := Open(me.PID, me.Started)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	folder := t.TempDir()
	fifo, pipe, named, gone := folder+"/fifo", folder+"/pipe", folder+"/memfd:named", folder+"/gone"
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	require.NoError(t, unix.Mkfifo(pipe, 0o600))
	for _, path := range []string{named, gone} {
		require.NoError(t, os.WriteFile(path, []byte("secret"), 0o600))
	}
	files := map[string]File{}
	for what, open := range map[string]func() (int, error){
		"fifo":   func() (int, error) { return unix.Open(fifo, unix.O_RDWR|unix.O_CLOEXEC, 0) },
		"pipe":   func() (int, error) { return unix.Open(pipe, unix.O_RDWR|unix.O_CLOEXEC, 0) },
		"named":  func() (int, error) { return unix.Open(named, unix.O_PATH|unix.O_CLOEXEC, 0) },
		"gone":   func() (int, error) { return unix.Open(gone, unix.O_RDWR|unix.O_CLOEXEC, 0) },
		"folder": func() (int, error) { return unix.Open(folder, unix.O_RDONLY|unix.O_CLOEXEC, 0) },
		"device": func() (int, error) { return unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0) },
		"memfd":  func() (int, error) { return unix.MemfdCreate("test", unix.MFD_CLOEXEC) },
	} {
		fd, err := open()
		require.NoError(t, err)
		t.Cleanup(func() { _ = unix.Close(fd) })
		files[what], err = FileOf(fd)
		require.NoError(t, err)
	}
	require.NoError(t, os.Remove(gone))
	require.NoError(t, os.Remove(pipe))
	for what, f := range files {
		fd, err := p.Reopen(f, unix.O_RDONLY)
		if what == "memfd" {
			require.NoError(t, err)
			require.NoError(t, unix.Close(fd))
		} else {
			require.ErrorIs(t, err, unix.EPERM, what)
		}
		fd, err = p.ReopenUnnamed(f, unix.O_RDONLY)
		if what == "gone" || what == "memfd" {
			require.NoError(t, err)
			require.NoError(t, unix.Close(fd))
		} else {
			require.ErrorIs(t, err, unix.EPERM, what)
		}
	}
}

const nobody = 65534

func requireRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can start a process of another user")
	}
}

func TestOtherUserIsRefusedByTheKernelAndByName(t *testing.T) {
	requireRoot(t)
	me, err := Self()
	require.NoError(t, err)
	first := start(t, forked.As(nobody, nobody))
	require.ErrorContains(t, open(t, first).Apart(me), "user 65534", "also root asks who that is")
	err = first.do("Visit", me)
	require.ErrorContains(t, err, "user 0")
	require.ErrorContains(t, err, unix.EPERM.Error())

	other := start(t, forked.As(nobody, nobody))
	if TraceScope() < ScopeRelation {
		require.NoError(t, first.do("Visit", other.Identity), "one user, both dumpable")
	}
	require.NoError(t, other.do("Undump", forked.Nothing{}))
	err = first.do("Visit", other.Identity)
	require.ErrorContains(t, err, unix.EPERM.Error())
	require.ErrorContains(t, err, "not dumpable")
}

// A process that is two users at once is nobody's peer: it may be in the hands of either.
func TestProcessOfTwoUsersIsRefused(t *testing.T) {
	status := "Name:\tx\nUid:\t0\t%d\t0\t0\nGid:\t0\t0\t0\t0\n"
	_, err := only(fmt.Appendf(nil, status, 1000), "Uid")
	require.ErrorContains(t, err, "at once")
	uid, err := only(fmt.Appendf(nil, status, 0), "Uid")
	require.NoError(t, err)
	require.Zero(t, uid)
	_, err = only([]byte("Name:\tx\n"), "Uid")
	require.ErrorContains(t, err, "no Uid")
}

// Where /proc hides other processes, the reason says so: there is one, and it cannot be seen.
func TestHiddenProcessesAreExplained(t *testing.T) {
	requireRoot(t)
	c := start(t, func(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS} })
	require.NoError(t, c.do("Hide", nobody))
	me, err := Self()
	require.NoError(t, err)
	require.ErrorContains(t, c.do("Visit", me), "hidepid")
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
	c := start(t)
	err := c.do("Allow", AnyTracer)
	switch scope := TraceScope(); scope {
	case ScopeAbsent:
		require.ErrorContains(t, err, unix.EINVAL.Error())
	default:
		require.NoError(t, err)
		require.Contains(t, scope.String(), "Yama")
	}
	require.Contains(t, ScopeRelation.String(), scopePath)
	require.Error(t, AllowTracer(1<<30), "no such process, or no Yama")
}
