package file

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// disk is a file system of one file, kv.bin, that the kernel asks this process about (FUSE, by its wire protocol). It
// is a disk that answers short, late, with any error, or not at all. The page cache is left out (FOPEN_DIRECT_IO), so
// that each operation of a transport arrives here as it is.
//
// Nobody opens the file by package os: that asks for events of it, in a system call of which Go's scheduler does not
// know, and with a collection of garbage under way no goroutine would be left to answer.
type disk struct {
	t    *testing.T
	fd   int
	path string

	mu     sync.Mutex
	moved  *sync.Cond
	data   []byte
	answer func(q query) (limit int, errno syscall.Errno) // nil: everything works
	held   map[uint32]bool                                // operations that wait for release
	seen   map[uint32]int
}

// query is a request of the kernel.
type query struct {
	op     uint32
	node   uint64
	offset uint64
	size   uint32
}

// Operations of the protocol, linux/fuse.h.
const (
	fuseLookup     = 1
	fuseForget     = 2
	fuseGetattr    = 3
	fuseSetattr    = 4
	fuseOpen       = 14
	fuseRead       = 15
	fuseWrite      = 16
	fuseStatfs     = 17
	fuseRelease    = 18
	fuseFsync      = 20
	fuseFlush      = 25
	fuseInit       = 26
	fuseOpendir    = 27
	fuseReleasedir = 29
	fuseFsyncdir   = 30
	fuseBreak      = 36
	fuseBatch      = 42
)

// newDisk mounts one with a file of a size. It skips the test where that is not possible.
func newDisk(t *testing.T, size int) *disk {
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("no FUSE: %v", err)
	}
	folder := t.TempDir()
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)
	if err := unix.Mount("tent-test", folder, "fuse.tent", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		_ = unix.Close(fd)
		t.Skipf("FUSE cannot be mounted: %v", err)
	}
	d := &disk{t: t, fd: fd, path: filepath.Join(folder, "kv.bin"), data: make([]byte, size), held: map[uint32]bool{},
		seen: map[uint32]int{}}
	d.moved = sync.NewCond(&d.mu)
	var wait sync.WaitGroup
	for range 8 { // so that a held operation holds nothing else
		wait.Go(d.serve)
	}
	t.Cleanup(func() {
		d.release()
		_ = unix.Unmount(folder, unix.MNT_FORCE|unix.MNT_DETACH)
		wait.Wait()
		_ = unix.Close(fd)
	})
	return d
}

// holdMost bounds a hold. A process that is killed while the kernel waits for its own answer would never be gone.
const holdMost = 10 * time.Second

// hold makes operations of a kind wait, and release lets all go on.
func (d *disk) hold(op uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.held[op] = true
	time.AfterFunc(holdMost, d.release)
}

func (d *disk) release() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.held)
	d.moved.Broadcast()
}

func (d *disk) answers(f func(q query) (int, syscall.Errno)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answer = f
}

// await waits until n operations of a kind have arrived.
func (d *disk) await(op uint32, n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.seen[op] < n {
		d.moved.Wait()
	}
}

func (d *disk) count(op uint32) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.seen[op]
}

// content is the file's bytes now.
func (d *disk) content() []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	return bytes.Clone(d.data)
}

// serve answers the kernel until the mount is gone.
func (d *disk) serve() {
	in := make([]byte, 1<<20+4096)
	for {
		n, err := unix.Read(d.fd, in)
		switch err {
		case nil:
		case unix.EINTR, unix.EAGAIN, unix.ENOENT:
			continue
		default:
			return
		}
		q := query{op: binary.LittleEndian.Uint32(in[4:]), node: binary.LittleEndian.Uint64(in[16:])}
		if q.op == fuseForget || q.op == fuseBatch || q.op == fuseBreak {
			continue // nobody waits for an answer
		}
		body := in[40:n]
		if q.op == fuseRead || q.op == fuseWrite {
			q.offset, q.size = binary.LittleEndian.Uint64(body[8:]), binary.LittleEndian.Uint32(body[16:])
		}
		out, errno := d.carryOut(q, body)
		reply := make([]byte, 16+len(out))
		binary.LittleEndian.PutUint32(reply, uint32(len(reply)))
		binary.LittleEndian.PutUint32(reply[4:], uint32(-int32(errno)))
		copy(reply[8:], in[8:16])
		copy(reply[16:], out)
		_, _ = unix.Write(d.fd, reply)
	}
}

func (d *disk) carryOut(q query, body []byte) (out []byte, errno syscall.Errno) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.seen[q.op]++
	d.moved.Broadcast()
	for d.held[q.op] {
		d.moved.Wait()
	}
	limit := int(q.size)
	if d.answer != nil {
		if limit, errno = d.answer(q); errno != 0 {
			return nil, errno
		}
	}
	switch q.op {
	case fuseRead:
		end := min(q.offset+uint64(min(limit, int(q.size))), uint64(len(d.data)))
		return append([]byte(nil), d.data[min(q.offset, end):end]...), 0
	case fuseWrite:
		n := copy(d.data[min(q.offset, uint64(len(d.data))):], body[40:40+min(limit, int(q.size))])
		return binary.LittleEndian.AppendUint64(nil, uint64(n)), 0
	case fuseLookup:
		if string(body) != "kv.bin\x00" {
			return nil, unix.ENOENT
		}
		return append(words64(2, 0, 0, 0, 0), d.attributes(2)...), 0
	case fuseGetattr, fuseSetattr:
		return append(words64(0, 0), d.attributes(q.node)...), 0
	case fuseOpen:
		return words64(1, 1), 0 // FOPEN_DIRECT_IO
	case fuseOpendir:
		return words64(2, 0), 0
	case fuseStatfs:
		return append(words64(1<<20, 1<<20, 1<<20, 8, 8, 4096|255<<32, 4096), make([]byte, 24)...), 0
	case fuseInit:
		return initReply(), 0
	case fuseFsync, fuseFlush, fuseRelease, fuseReleasedir, fuseFsyncdir:
		return nil, 0
	}
	return nil, unix.ENOSYS
}

// attributes are struct fuse_attr.
func (d *disk) attributes(node uint64) []byte {
	mode, size := uint32(unix.S_IFREG|0o644), uint64(len(d.data))
	if node == 1 {
		mode, size = unix.S_IFDIR|0o755, 0
	}
	b := words64(node, size, (size+511)/512, 0, 0, 0)
	for _, w := range []uint32{0, 0, 0, mode, 1, 0, 0, 0, 4096, 0} {
		b = binary.LittleEndian.AppendUint32(b, w)
	}
	return b
}

func initReply() []byte {
	b := make([]byte, 64)
	binary.LittleEndian.PutUint32(b, 7)
	binary.LittleEndian.PutUint32(b[4:], 31)
	binary.LittleEndian.PutUint32(b[12:], 1|1<<5|1<<22) // async reads, big writes, more pages than 32
	binary.LittleEndian.PutUint16(b[16:], 64)           // in the background
	binary.LittleEndian.PutUint32(b[20:], 1<<20)        // of a WRITE
	binary.LittleEndian.PutUint32(b[24:], 1)
	binary.LittleEndian.PutUint16(b[28:], 256)
	return b
}

func words64(list ...uint64) (b []byte) {
	for _, w := range list {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

func TestTheDiskOfTestsWorks(t *testing.T) {
	d := newDisk(t, 10_000)
	fd, err := unix.Open(d.path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	n, err := unix.Pwrite(fd, []byte("hello"), 7)
	require.NoError(t, err)
	require.Equal(t, 5, n)
	b := make([]byte, 20_000)
	n, err = unix.Pread(fd, b, 0)
	require.NoError(t, err)
	require.Equal(t, 10_000, n)
	require.Equal(t, "\x00\x00hello\x00", string(b[5:13]))
}
