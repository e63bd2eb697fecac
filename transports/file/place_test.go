package file

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/forked"
	"github.com/tent-engine/tent/transports/transporttest"
)

func TestMain(m *testing.M) {
	if forked.RunChild(new(Other)) {
		return
	}
	os.Exit(m.Run())
}

// Other is another process: one that may have no ring, or one that writes until it is killed.
type Other struct{}

// Refusals are the errors of a process that may have no ring.
type Refusals struct {
	Check, Open         errs.Code
	CheckText, OpenText string
}

// forbidRings makes io_uring_setup fail with EPERM in this process, as containers do.
func forbidRings() {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number of the system call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_IO_URING_SETUP, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		panic(err)
	}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&program))); errno != 0 {
		panic(errno)
	}
}

// Forbid forbids rings in the process, tries them, and then writes a file without.
func (o *Other) Forbid(file string, r *Refusals) error {
	forbidRings()
	err := UringFactory{}.Check()
	r.Check, r.CheckText = errs.CodeOf(err), fmt.Sprint(err)
	_, err = UringFactory{}.Open(context.Background(), nil, nil, nil)
	r.Open, r.OpenText = errs.CodeOf(err), fmt.Sprint(err)
	w := newRig(new(testing.T), BufferedFactory{}, Settings{})
	m := w.memory(4096, true)
	w.must(w.open(transport.FileSpec{Path: file, Create: true, Size: 4096}).slice(transport.Write, m, 0, 0, 4096))
	return nil
}

func TestAForbiddenRingIsAReason(t *testing.T) {
	if (UringFactory{}).Check() != nil {
		t.Skip("there is no io_uring here anyway")
	}
	var r Refusals
	require.NoError(t, other(t).Call("Other.Forbid", onDisk(t), &r))
	require.Equal(t, [2]errs.Code{errs.DeviceNotFound, errs.DeviceNotFound}, [2]errs.Code{r.Check, r.Open})
	require.Contains(t, r.CheckText, "forbidden here, by seccomp or kernel.io_uring_disabled")
}

// other starts another process.
func other(t *testing.T) *forked.Child {
	t.Helper()
	c, err := forked.Start()
	require.NoError(t, err)
	t.Cleanup(c.Kill)
	return c
}

// Write writes the even stripes of a file until the process is killed. It returns when each was written once.
func (o *Other) Write(file string, _ *int) error {
	r := newRig(new(testing.T), factoryFor(0), Settings{})
	f := r.open(transport.FileSpec{Path: file})
	m := r.memory(1<<20, false)
	round := func(tag uint64) {
		m.fill(tag, 0, m.size)
		for at := uint64(0); at < m.size; at += 10_000 {
			r.must(f.slice(transport.Write, m, at, at, 5000))
		}
	}
	round(1)
	go func() {
		for tag := uint64(2); ; tag++ {
			round(tag)
		}
	}()
	return nil
}

// TestAKilledWriterTouchesNothingElse kills a writer at any point. Bytes that it was not told to write are whole, in
// its file and in the one beside it.
func TestAKilledWriterTouchesNothingElse(t *testing.T) {
	folder := t.TempDir()
	mine, beside := filepath.Join(folder, "mine"), filepath.Join(folder, "beside")
	want := make([]byte, 1<<20)
	transporttest.Pattern(want, 77, 0)
	require.NoError(t, os.WriteFile(beside, want, 0o600))
	for range 3 {
		require.NoError(t, os.WriteFile(mine, want, 0o600))
		c := other(t)
		require.NoError(t, c.Call("Other.Write", mine, new(int)))
		c.Kill()
		got := content(t, mine)
		require.Len(t, got, len(want))
		for at := 5000; at+5000 <= len(want); at += 10_000 {
			require.Equal(t, string(want[at:at+5000]), string(got[at:at+5000]), "stripe at %d", at)
		}
		require.Equal(t, string(want), string(content(t, beside)))
	}
}

// smallDisk mounts an ext4 of 16 MiB, or skips the test.
func smallDisk(t *testing.T) (folder string) {
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	image, folder := filepath.Join(t.TempDir(), "image"), t.TempDir()
	require.NoError(t, os.WriteFile(image, nil, 0o600))
	require.NoError(t, os.Truncate(image, 16<<20))
	for _, command := range []string{"mkfs.ext4 -q -b 4096 -m 0 -O ^has_journal " + image,
		"mount -o loop " + image + " " + folder} {
		words := strings.Fields(command)
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			t.Skipf("%s: %v %s", command, err, out)
		}
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(folder, 0)) })
	return folder
}

func TestAFullDiskIsToldAtOpenOrByTheWrite(t *testing.T) {
	for _, f := range []transport.Factory{UringFactory{}, BufferedFactory{}} {
		t.Run(f.Name(), func(t *testing.T) {
			folder := smallDisk(t)
			r := newRig(t, f, Settings{})
			path := filepath.Join(folder, "kv.bin")
			free := func() uint64 {
				var st unix.Statfs_t
				require.NoError(t, unix.Statfs(folder, &st))
				return st.Bfree
			}
			_, err := r.filer().OpenFile(t.Context(), transport.FileSpec{Path: path, Create: true, Size: 4096})
			require.NoError(t, err)
			before := free()
			_, err = r.filer().OpenFile(t.Context(), transport.FileSpec{Path: path, Create: true, Size: 64 << 20})
			require.Equal(t, errs.NoSpace, errs.CodeOf(err), "%v", err)
			require.ErrorContains(t, err, "cannot grow from 4096 to 67108864 bytes")
			require.Len(t, content(t, path), 4096)
			require.Equal(t, before, free(), "what was reserved is given back")

			require.NoError(t, os.Truncate(path, 64<<20)) // sparse: there is no space behind its bytes
			o := r.open(transport.FileSpec{Path: path})
			m := r.memory(1<<20, true)
			var full *errs.Error
			for at := uint64(0); at < 64<<20 && full == nil; at += 1 << 20 {
				s := o.slice(transport.Write, m, 0, at, 1<<20)
				r.send(s)
				full = r.wait(s)[0].Err
			}
			require.NotNil(t, full)
			require.Equal(t, errs.NoSpace, full.Code)
			require.True(t, full.Permanent())
			require.ErrorContains(t, full, path)
			r.must(o.slice(transport.Write, m, 0, 0, 1<<20)) // a range that has its space can be written
		})
	}
}

// The name of a block device is in a file system in memory, and its bytes are not.
func TestABlockDeviceIsADisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("a block device needs root")
	}
	image := filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.WriteFile(image, make([]byte, 1<<20), 0o600))
	out, err := exec.Command("losetup", "-f", "--show", image).CombinedOutput()
	if err != nil {
		t.Skipf("losetup: %v %s", err, out)
	}
	device := strings.TrimSpace(string(out))
	t.Cleanup(func() { require.NoError(t, exec.Command("losetup", "-d", device).Run()) })
	both(t, Settings{}, func(t *testing.T, r *rig) {
		f, err := r.filer().OpenFile(t.Context(), transport.FileSpec{Path: device})
		require.NoError(t, err)
		require.EqualValues(t, 1<<20, f.Size)
		o := &opened{r: r, file: f}
		o.link, err = r.tr.Attach(transport.Peer{Address: scheme + f.Path})
		require.NoError(t, err)
		if o.key, err = r.tr.Import(o.link, f.Encode()); err != nil {
			require.ErrorContains(t, err, "does not say what O_DIRECT wants") // Linux before 6.1
			return
		}
		o.rail = r.rails[o.link]
		require.False(t, r.tr.(interface{ itself() *base }).itself().files.Lookup(o.key).resident)
		m := r.memory(1<<20, true)
		m.fill(5, 0, 1<<20)
		r.must(o.slice(transport.Write, m, 0, 0, 1<<20), o.slice(transport.Write, m, 4096, 4096, 5000))
		m.fill(6, 0, 1<<20)
		r.must(o.slice(transport.Read, m, 0, 0, 1<<20))
		require.NoError(t, m.check(5, 0, 0, 1<<20))
	})
}

func TestAReadOnlyFileSystemIsTold(t *testing.T) {
	folder := smallDisk(t)
	path := filepath.Join(folder, "kv.bin")
	require.NoError(t, os.WriteFile(path, make([]byte, 8192), 0o600))
	require.NoError(t, unix.Mount("", folder, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	both(t, Settings{}, func(t *testing.T, r *rig) {
		for _, spec := range []transport.FileSpec{{Path: path}, {Path: path, Create: true, Size: 1 << 20},
			{Path: path + "2", Create: true}} {
			_, err := r.filer().OpenFile(t.Context(), spec)
			require.Equal(t, errs.PermissionDenied, errs.CodeOf(err), "%v", err)
			require.ErrorContains(t, err, "readonly=True")
		}
		o := r.open(transport.FileSpec{Path: path, ReadOnly: true})
		r.must(o.slice(transport.Read, r.memory(8192, true), 0, 0, 8192))
	})
}

// TestNoPermissionIsTold opens as another user, on a thread that ends with it.
func TestNoPermissionIsTold(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("root's files are needed")
	}
	r := newRig(t, BufferedFactory{}, Settings{})
	path := onDisk(t)
	require.NoError(t, os.WriteFile(path, []byte("root's"), 0o600))
	got := make(chan error)
	go func() {
		lockAsNobody()
		_, err := r.tr.(interface{ itself() *base }).itself().openFile(t.Context(), transport.FileSpec{Path: path})
		got <- err
	}()
	err := <-got
	require.Equal(t, errs.PermissionDenied, errs.CodeOf(err), "%v", err)
	require.True(t, errors.Is(err, unix.EACCES))
}
