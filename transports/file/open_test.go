package file

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/leaks"
)

func TestFilesAreMadeAndGrownAndNeverCut(t *testing.T) {
	r := newRig(t, BufferedFactory{}, Settings{})
	path := onDisk(t)
	open := func(s transport.FileSpec) (transport.FileCard, error) {
		s.Path = path
		return r.filer().OpenFile(t.Context(), s)
	}
	_, err := open(transport.FileSpec{})
	require.Equal(t, errs.NotFound, errs.CodeOf(err))
	require.ErrorContains(t, err, "create=True")
	f, err := open(transport.FileSpec{Create: true, Size: 100_000})
	require.NoError(t, err)
	require.EqualValues(t, 100_000, f.Size)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), info.Mode())
	require.EqualValues(t, 100_000, info.Size())
	blocks := info.Sys().(*syscall.Stat_t).Blocks
	require.GreaterOrEqual(t, blocks*512, int64(100_000), "the space is reserved")
	require.NoError(t, os.WriteFile(path, []byte("kept"), 0o600))
	for _, size := range []uint64{0, 3, 4} {
		f, err = open(transport.FileSpec{Create: true, Size: size})
		require.NoError(t, err)
		require.EqualValues(t, 4, f.Size)
	}
	_, err = open(transport.FileSpec{Size: 5})
	require.Equal(t, errs.InvalidArgument, errs.CodeOf(err))
	f, err = open(transport.FileSpec{Create: true, Size: 8})
	require.NoError(t, err)
	require.Equal(t, "kept\x00\x00\x00\x00", string(content(t, path)))
	require.EqualValues(t, 8, f.Size)
	f, err = open(transport.FileSpec{Truncate: true, Create: true, Size: 3})
	require.NoError(t, err)
	require.Equal(t, "\x00\x00\x00", string(content(t, path)))
	require.EqualValues(t, 3, f.Size)
	for _, wrong := range []transport.FileSpec{{ReadOnly: true, Create: true}, {ReadOnly: true, Truncate: true}} {
		_, err = open(wrong)
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(err))
	}
}

func TestTwoWhoGrowAFileLeaveTheLargerSize(t *testing.T) {
	r := newRig(t, BufferedFactory{}, Settings{})
	path := onDisk(t)
	var wait sync.WaitGroup
	for size := range uint64(24) {
		wait.Go(func() {
			_, err := r.filer().OpenFile(t.Context(), transport.FileSpec{Path: path, Create: true,
				Size: (size + 1) * 10_000})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	require.Len(t, content(t, path), 240_000)
}

func TestWhatIsNoFileIsRefusedByName(t *testing.T) {
	r := newRig(t, BufferedFactory{}, Settings{})
	folder := t.TempDir()
	fifo := filepath.Join(folder, "fifo")
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	for path, want := range map[string]string{
		folder: "directory", fifo: "a FIFO", "/dev/null": "a character device",
		filepath.Join(fifo, "below"): "not a directory", "relative": "absolute", "/zero\x00byte": "zero bytes",
	} {
		_, err := r.filer().OpenFile(t.Context(), transport.FileSpec{Path: path}) // returns: a FIFO is not waited for
		require.ErrorContains(t, err, want, path)
	}
	_, err := r.tr.Attach(transport.Peer{Address: "host:1234"})
	require.Error(t, err)
}

// A file that cannot grow never has a name, so nobody opens it. One that was there stays as it is.
func TestAFileThatCannotGrowIsNotMade(t *testing.T) {
	for name, roots := range map[string]bool{"anywhere": false, "below a root": true} {
		t.Run(name, func(t *testing.T) {
			folder, s := t.TempDir(), Settings{}
			if roots {
				s.Roots = []string{folder}
			}
			r := newRig(t, BufferedFactory{}, s)
			path := filepath.Join(folder, "x")
			grow := func(size uint64) error {
				_, err := r.filer().OpenFile(t.Context(), transport.FileSpec{Path: path, Create: true, Size: size})
				return err
			}
			if fd, err := unix.Open(folder, unix.O_RDWR|unix.O_TMPFILE, 0o600); err == nil {
				require.NoError(t, unix.Close(fd))
				names := watchNames(t, folder)
				require.ErrorContains(t, grow(1<<62), "cannot grow from 0")
				require.Zero(t, names(), "it had a name for a moment")
			} else { // such a file system
				require.ErrorContains(t, grow(1<<62), "was made, and stays")
			}
			require.NoError(t, os.WriteFile(path, []byte("theirs"), 0o600))
			require.ErrorContains(t, grow(1<<62), "cannot grow from 6")
			b, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, "theirs", string(b))
		})
	}
}

// watchNames returns how many bytes of news there are of names that came or went.
func watchNames(t *testing.T, folder string) func() int {
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Close(fd)) })
	_, err = unix.InotifyAddWatch(fd, folder, unix.IN_CREATE|unix.IN_DELETE|unix.IN_MOVE)
	require.NoError(t, err)
	return func() int {
		n, err := unix.Read(fd, make([]byte, 4096))
		if err == unix.EAGAIN {
			return 0
		}
		require.NoError(t, err)
		return n
	}
}

// Engines that make the same file at once have the same file, also where some of them want a size that it cannot have.
func TestEnginesThatMakeAFileAtOnceHaveTheSame(t *testing.T) {
	both(t, Settings{}, func(t *testing.T, r *rig) {
		for range 50 {
			path := filepath.Join(t.TempDir(), "x")
			var wait sync.WaitGroup
			for i := range 4 {
				wait.Go(func() {
					size := uint64(4096)
					if i%2 == 0 {
						size = 1 << 62
					}
					c, err := r.filer().OpenFile(t.Context(), transport.FileSpec{Path: path, Create: true, Size: size})
					if i%2 == 0 {
						assert.ErrorContains(t, err, "cannot grow")
						return
					}
					assert.NoError(t, err)
					var st unix.Stat_t
					assert.NoError(t, unix.Stat(path, &st))
					assert.Equal(t, c.Inode, st.Ino)
				})
			}
			wait.Wait()
		}
	})
}

// A root may be a symbolic link, or lie behind one. Files have their names below the folder that the kernel knows.
func TestARootMayBeALink(t *testing.T) {
	for name, settings := range map[string]func(disk, data string) (root, path string){
		"the root":     func(_, data string) (root, path string) { return data, data + "/x" },
		"above it":     func(_, data string) (root, path string) { return data + "/kv/", data + "/kv/x" },
		"the path":     func(disk, _ string) (root, path string) { return disk, disk + "/x" },
		"a late one":   func(_, data string) (root, path string) { return data, data + "/x" },
		"its real one": func(disk, data string) (root, path string) { return data, disk + "/x" },
	} {
		t.Run(name, func(t *testing.T) {
			folder, err := filepath.EvalSymlinks(t.TempDir())
			require.NoError(t, err)
			disk, data := filepath.Join(folder, "disk"), filepath.Join(folder, "data")
			require.NoError(t, os.MkdirAll(filepath.Join(disk, "kv"), 0o700))
			root, path := settings(disk, data)
			if name != "a late one" {
				require.NoError(t, os.Symlink(disk, data))
			}
			both(t, Settings{Roots: []string{root}, Descriptors: 1}, func(t *testing.T, r *rig) {
				if name == "a late one" { // behind the transport's open
					require.NoError(t, os.Symlink(disk, data))
					t.Cleanup(func() { require.NoError(t, os.Remove(data)) })
				}
				first := r.open(transport.FileSpec{Path: path, Create: true, Size: 4096})
				r.open(transport.FileSpec{Path: path + "2", Create: true, Size: 4096}) // the first is opened again
				m := r.memory(4096, true)
				s := first.slice(transport.Read, m, 0, 0, 4096)
				r.send(s)
				require.Nil(t, r.wait(s)[0].Err)
				_, err := r.filer().OpenFile(t.Context(), transport.FileSpec{Path: folder + "/other", Create: true})
				require.Equal(t, errs.PermissionDenied, errs.CodeOf(err))
			})
		})
	}
}

func TestRootsCannotBeLeft(t *testing.T) {
	outside, root := t.TempDir(), t.TempDir()
	secret := filepath.Join(outside, "secret")
	require.NoError(t, os.WriteFile(secret, []byte("secret"), 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(root, "in"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(root, "in", "fine"), []byte("fine"), 0o600))
	require.NoError(t, os.Symlink(secret, filepath.Join(root, "absolute")))
	require.NoError(t, os.Symlink("../"+filepath.Base(outside)+"/secret", filepath.Join(root, "relative")))
	require.NoError(t, os.Symlink(outside, filepath.Join(root, "folder")))
	require.NoError(t, os.Symlink("in/fine", filepath.Join(root, "inner")))
	r := newRig(t, BufferedFactory{}, Settings{Roots: []string{root}})
	open := func(path string) error {
		_, err := r.filer().OpenFile(t.Context(), transport.FileSpec{Path: path, Create: true, Size: 4})
		return err
	}
	for _, path := range []string{root + "/in/fine", root + "/inner", root + "/in/../in/fine", root + "/new"} {
		require.NoError(t, open(path), path)
	}
	for _, path := range []string{secret, root + "/absolute", root + "/relative", root + "/folder/secret",
		root + "/folder/new",
		root + "/../" + filepath.Base(outside) + "/secret", root + "x", root + "/in/../../" + filepath.Base(outside) +
			"/secret", "/proc/self/root" + secret} {
		err := open(path)
		require.Equal(t, errs.PermissionDenied, errs.CodeOf(err), "%s: %v", path, err)
		require.ErrorContains(t, err, "transports/file/roots", path)
	}
	_, err := os.Stat(filepath.Join(outside, "new"))
	require.ErrorIs(t, err, fs.ErrNotExist)

	// While a name is swapped between a file inside and a link that leads out, only the file inside is ever opened.
	swap, tmp := filepath.Join(root, "swap"), filepath.Join(root, "tmp")
	stop := make(chan struct{})
	var wait sync.WaitGroup
	wait.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			if i%2 == 0 {
				_ = os.Symlink(secret, tmp)
			} else {
				_ = os.WriteFile(tmp, []byte("fine"), 0o600)
			}
			_ = os.Rename(tmp, swap)
		}
	})
	for range 500 {
		f, err := r.filer().OpenFile(t.Context(), transport.FileSpec{Path: swap})
		if err == nil {
			require.NotEqual(t, secret, f.Path)
			require.EqualValues(t, 4, f.Size)
		}
	}
	close(stop)
	wait.Wait()
}

func TestAFileThatWasReplacedIsNotWritten(t *testing.T) {
	both(t, Settings{Descriptors: 1}, func(t *testing.T, r *rig) {
		path := onDisk(t)
		o := r.open(transport.FileSpec{Path: path, Create: true, Size: 4096})
		m := r.memory(4096, true)
		m.fill(1, 0, 4096)
		r.must(o.slice(transport.Write, m, 0, 0, 4096))
		require.NoError(t, os.Rename(path, path+".old"))
		require.NoError(t, os.WriteFile(path, make([]byte, 4096), 0o600))
		r.open(transport.FileSpec{Path: onDisk(t), Create: true, Size: 4096}) // takes the descriptor of the first
		err := r.fails(o.slice(transport.Write, m, 0, 0, 4096))
		require.Equal(t, errs.Stale, err.Code)
		require.ErrorContains(t, err, "another file has got this name")
		require.Equal(t, make([]byte, 4096), content(t, path))
		synced := make(chan *errs.Error, 1)
		r.filer().Sync(o.link, o.key, func(err *errs.Error) { synced <- err })
		err = <-synced
		require.NotNil(t, err, "nothing is known of the file that was written")
		require.Equal(t, errs.Stale, err.Code)
		require.NoError(t, os.Rename(path+".old", path))
		r.must(o.slice(transport.Write, m, 0, 0, 4096))
	})
}

// ext4 gives a new file the inode of one that was removed. It is another file all the same.
func TestAFileWithTheInodeOfAnotherIsNotWritten(t *testing.T) {
	both(t, Settings{Descriptors: 1}, func(t *testing.T, r *rig) {
		path := onDisk(t)
		o := r.open(transport.FileSpec{Path: path, Create: true, Size: 4096})
		m := r.memory(4096, true)
		m.fill(1, 0, 4096)
		r.must(o.slice(transport.Write, m, 0, 0, 4096))
		r.open(transport.FileSpec{Path: onDisk(t), Create: true, Size: 4096}) // takes the descriptor of the first
		var st unix.Stat_t
		for range 1000 { // the kernel may remove it a moment later
			require.NoError(t, os.Remove(path))
			require.NoError(t, os.WriteFile(path, make([]byte, 4096), 0o600))
			require.NoError(t, unix.Stat(path, &st))
			if st.Ino == o.file.Inode {
				break
			}
		}
		if o.file.BornNs == 0 || st.Ino != o.file.Inode {
			t.Skip("the file system knows no births, or gives every file a number of its own")
		}
		require.Equal(t, errs.Stale, r.fails(o.slice(transport.Write, m, 0, 0, 4096)).Code)
		require.Equal(t, make([]byte, 4096), content(t, path))
		require.Equal(t, errs.Stale, syncOf(r, o).Code)
	})
}

// overlaid mounts an overlayfs with a file in its lower layer, and returns the file's path.
func overlaid(t *testing.T, size int) string {
	folder := t.TempDir()
	in := func(names ...string) string { return filepath.Join(append([]string{folder}, names...)...) }
	for _, layer := range []string{"lower", "upper", "work", "all"} {
		require.NoError(t, os.Mkdir(in(layer), 0o755))
	}
	require.NoError(t, os.WriteFile(in("lower", "kv.bin"), make([]byte, size), 0o600))
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", in("lower"), in("upper"), in("work"))
	if err := unix.Mount("overlay", in("all"), "overlay", 0, options); err != nil {
		t.Skipf("overlayfs cannot be mounted: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(in("all"), unix.MNT_DETACH)) })
	var made, now unix.Timespec
	require.NoError(t, unix.ClockGettime(unix.CLOCK_REALTIME, &made))
	for now.Nano() < made.Nano() { // a birth has the resolution of a tick
		require.NoError(t, unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &now))
	}
	return in("all", "kv.bin")
}

// The first writer of a file in an overlay makes the kernel copy it up, with its number. It stays the same file.
func TestAFileThatAnOverlayCopiesUpIsTheSame(t *testing.T) {
	both(t, Settings{Descriptors: 1, Direct: DirectOff}, func(t *testing.T, r *rig) {
		path, m := overlaid(t, 4096), r.memory(8192, true)
		reader := r.open(transport.FileSpec{Path: path, ReadOnly: true})
		r.must(reader.slice(transport.Read, m, 0, 0, 4096))
		writer := r.open(transport.FileSpec{Path: path}) // takes the descriptor of the reader
		m.fill(1, 0, 4096)
		r.must(writer.slice(transport.Write, m, 0, 0, 4096))
		r.must(reader.slice(transport.Read, m, 4096, 0, 4096))
		require.NoError(t, m.check(1, 0, 4096, 4096))
	})
}

func TestDescriptorsAreBounded(t *testing.T) {
	const files, most = 40, 3
	both(t, Settings{Descriptors: most}, func(t *testing.T, r *rig) {
		before := leaks.Descriptors(t)
		atMost := func(most int) { // files are closed a moment after the completion
			t.Helper()
			for range 1_000_000 {
				if leaks.Descriptors(t)-before <= most {
					break
				}
				runtime.Gosched()
			}
			require.LessOrEqual(t, leaks.Descriptors(t)-before, most)
		}
		m := r.memory(files*4096, true)
		var list []*opened
		folder := t.TempDir()
		for i := range uint64(files) {
			o := r.open(transport.FileSpec{Path: filepath.Join(folder, fmt.Sprint(i)), Create: true, Size: 4096})
			m.fill(i, i*4096, 4096)
			r.must(o.slice(transport.Write, m, i*4096, 0, 4096))
			list = append(list, o)
			atMost(2 * most)
		}
		var all []*transport.Slice
		for i, o := range list {
			all = append(all, o.slice(transport.Read, m, uint64(files-1-i)*4096, 0, 4096))
			r.send(all[i])
		}
		for _, end := range r.wait(all...) {
			require.Nil(t, end.Err)
		}
		for i := range uint64(files) {
			require.NoError(t, m.check(i, i*4096, (files-1-i)*4096, 4096))
		}
		atMost(2 * most)
		for _, o := range list {
			r.tr.Detach(o.link)
		}
		atMost(0) // a detached link keeps nothing open
	})
}

func TestReadOnlyFilesAreNotWritten(t *testing.T) {
	both(t, Settings{}, func(t *testing.T, r *rig) {
		path := onDisk(t)
		require.NoError(t, os.WriteFile(path, make([]byte, 4096), 0o400))
		o := r.open(transport.FileSpec{Path: path, ReadOnly: true})
		m := r.memory(4096, true)
		require.Equal(t, errs.PermissionDenied, r.fails(o.slice(transport.Write, m, 0, 0, 4096)).Code)
		r.must(o.slice(transport.Read, m, 0, 0, 4096))
	})
}

// Submit has refused a slice of a file that is not open, and not finished it yet.
func TestCloseNamesASliceWithoutAFile(t *testing.T) {
	b := newBase("test", Settings{Slices: 16}, nil, nil)
	it := b.take(&transport.Slice{Length: 4096}, new(link))
	it.state, it.err = running, errUnknown
	require.ErrorContains(t, b.stuck(context.DeadlineExceeded),
		"READ of 4096 bytes at offset 0 of a file that is not open")
}

// A close that was given no time does not blame the kernel: nobody needs to keep memory for it.
func TestCloseBlamesTheKernelOnlyForSlicesThatItHolds(t *testing.T) {
	r := newRig(t, BufferedFactory{}, Settings{})
	err := r.tr.(interface{ stuck(error) error }).stuck(context.DeadlineExceeded)
	require.ErrorContains(t, err, "no time was left for it, and the kernel holds nothing of it")
	require.NotContains(t, err.Error(), "given back")
}
