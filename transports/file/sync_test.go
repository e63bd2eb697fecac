package file

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// syncOf synchronises a file and returns the answer.
func syncOf(r *rig, o *opened) *errs.Error {
	done := make(chan *errs.Error, 1)
	r.filer().Sync(o.link, o.key, func(err *errs.Error) { done <- err })
	return <-done
}

// lossy mounts an ext4 on a disk that fails all new blocks once fill was called, or skips the test.
func lossy(t *testing.T) (folder string, fill func()) {
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	back, folder := t.TempDir(), t.TempDir()
	run := func(words ...string) string {
		out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
		if err != nil {
			t.Skipf("%v: %v %s", words, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	atEnd := func(words ...string) {
		t.Cleanup(func() {
			out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
			require.NoError(t, err, "%v: %s", words, out)
		})
	}
	run("mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", back)
	atEnd("umount", back)
	image := filepath.Join(back, "image")
	require.NoError(t, os.WriteFile(image, nil, 0o600))
	require.NoError(t, os.Truncate(image, 64<<20))
	run("mkfs.ext4", "-q", "-b", "4096", "-m", "0", "-O", "^has_journal", "-E", "nodiscard,lazy_itable_init=1", image)
	loop := run("losetup", "-f", "--show", image)
	atEnd("losetup", "-d", loop)
	run("mount", "-o", "noinit_itable", loop, folder)
	atEnd("umount", folder)
	return folder, func() {
		unix.Sync()
		f, err := os.Create(filepath.Join(back, "fill"))
		require.NoError(t, err)
		for err == nil {
			_, err = f.Write(make([]byte, 4096))
		}
		require.NoError(t, f.Close())
	}
}

// A failed write-back is reported at each sync of each handle that was open then, also of one that has given its
// descriptor up. A handle that is opened anew begins anew.
func TestLostBytesAreToldAtEverySync(t *testing.T) {
	folder, fill := lossy(t)
	r := newRig(t, BufferedFactory{}, Settings{Descriptors: 1})
	path := filepath.Join(folder, "kv.bin")
	a := r.open(transport.FileSpec{Path: path, Create: true, Size: 1 << 20})
	b := r.open(transport.FileSpec{Path: path})
	fill()
	m := r.memory(1<<20, true)
	r.must(b.slice(transport.Write, m, 65536, 65536, 65536))
	r.must(a.slice(transport.Write, m, 0, 0, 65536)) // takes b's descriptor
	for range 2 {
		for _, o := range []*opened{a, b} {
			err := syncOf(r, o)
			require.NotNil(t, err)
			require.Equal(t, errs.NoSpace, err.Code)
			require.ErrorContains(t, err, "write them again")
		}
	}
	require.Nil(t, syncOf(r, r.open(transport.FileSpec{Path: path})), "nothing was written by this handle")
}

// Making a file leaves its folder alone, since most pages of a cache need not survive. The first sync makes the name
// durable as well, and says so where that fails.
func TestTheFirstSyncMakesTheNameDurable(t *testing.T) {
	d := newDisk(t, 65536)
	r := newRig(t, BufferedFactory{}, Settings{})
	o := r.open(transport.FileSpec{Path: d.path})
	require.Zero(t, d.count(fuseFsyncdir))
	d.answers(func(q query) (int, syscall.Errno) {
		if q.op == fuseFsyncdir {
			return 0, unix.EIO
		}
		return int(q.size), 0
	})
	require.Equal(t, errs.StorageError, syncOf(r, o).Code)
	d.answers(nil)
	for range 3 {
		require.Nil(t, syncOf(r, o))
	}
	require.Equal(t, 2, d.count(fuseFsyncdir))
	require.Equal(t, 4, d.count(fuseFsync))
}
