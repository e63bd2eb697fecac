package file

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/transporttest"
)

// onBadDisk runs a test over each transport, on a disk that follows orders.
func onBadDisk(t *testing.T, size int, s Settings, test func(t *testing.T, d *disk, r *rig, o *opened)) {
	for _, f := range []transport.Factory{UringFactory{}, BufferedFactory{}} {
		t.Run(f.Name(), func(t *testing.T) {
			d := newDisk(t, size)
			s.anyFile, s.Direct = true, DirectOff
			r := newRig(t, f, s)
			t.Cleanup(d.release) // before the transport closes, which waits for the disk
			test(t, d, r, r.open(transport.FileSpec{Path: d.path}))
		})
	}
}

func TestShortTransfersGoOnWhereTheyStopped(t *testing.T) {
	const size = 300_000
	onBadDisk(t, size, Settings{}, func(t *testing.T, d *disk, r *rig, o *opened) {
		if r.name == UringName {
			t.Skip("the kernel itself goes on after short operations of FUSE, and in the wrong place: see owner.suits")
		}
		random, calls := seeded(t), 0
		d.answers(func(query) (int, syscall.Errno) {
			if calls++; calls%5 == 0 {
				return 0, unix.EINTR
			}
			return 1 + random.IntN(40_000), 0
		})
		for _, aligned := range []bool{true, false} {
			m := r.memory(size, aligned)
			m.fill(3, 0, size)
			r.must(o.slice(transport.Write, m, 0, 0, size))
			want := make([]byte, size)
			transporttest.Pattern(want, 3, 0)
			require.True(t, bytes.Equal(want, d.content()))
			m.fill(4, 0, size)
			r.must(o.slice(transport.Read, m, 0, 0, size))
			require.NoError(t, m.check(3, 0, 0, size))
		}
	})
}

func TestTroubleOfADiskIsNamed(t *testing.T) {
	for errno, want := range map[syscall.Errno]errs.Code{
		unix.EIO: errs.StorageError, unix.ENOSPC: errs.NoSpace, unix.EDQUOT: errs.NoSpace, unix.EFBIG: errs.NoSpace,
		unix.EROFS: errs.PermissionDenied, unix.EACCES: errs.PermissionDenied, unix.ESTALE: errs.Stale,
		unix.ENOMEM: errs.OutOfMemory,
		// for ever: it is tried again a bounded number of times
		unix.ETIMEDOUT: errs.StorageError, unix.EINTR: errs.StorageError,
	} {
		t.Run(want.String(), func(t *testing.T) {
			onBadDisk(t, 1<<20, Settings{}, func(t *testing.T, d *disk, r *rig, o *opened) {
				m := r.memory(1<<20, true)
				for _, op := range []transport.Op{transport.Write, transport.Read} {
					d.answers(func(q query) (int, syscall.Errno) {
						if q.offset >= 4096 && (q.op == fuseRead || q.op == fuseWrite) {
							return 0, errno
						}
						return 1 << 20, 0
					})
					err := r.fails(o.slice(op, m, 0, 8192, 4096))
					require.Equal(t, want, err.Code, "%v", err)
					require.Equal(t, want != errs.StorageError, err.Permanent(), "%v", err)
					require.Equal(t, want == errs.StorageError, err.Scope == errs.ScopeLink,
						"the other transport is worth a try: %v", err)
					require.Equal(t, errs.SideRemote, err.Side)
					require.ErrorContains(t, err, fmt.Sprintf("%s of 4096 bytes at offset 8192 of %s", op, d.path))
					require.ErrorIs(t, err, errno)
					r.must(o.slice(op, m, 0, 0, 4096)) // the rail lives on
				}
				d.answers(nil)
			})
		})
	}
}

// TestAHungDiskKeepsItsSlicesAndCloseNamesThem: a slice that the kernel does not give back stays outstanding. Neither a
// withdrawal nor a fence changes that, and the memory is left alone once it has ended.
func TestAHungDiskKeepsItsSlicesAndCloseNamesThem(t *testing.T) {
	onBadDisk(t, 1<<20, Settings{}, func(t *testing.T, d *disk, r *rig, o *opened) {
		if r.name == UringName {
			t.Skip("FUSE keeps the ring's owner itself waiting, which a disk does not")
		}
		m := r.memory(1<<20, true)
		m.fill(1, 0, m.size)
		d.hold(fuseRead)
		stuck := o.slice(transport.Read, m, 0, 65536, 4096)
		r.send(stuck)
		d.await(fuseRead, 1)
		r.must(o.slice(transport.Write, m, 0, 0, 4096)) // others go on
		r.tr.Withdraw([]*transport.Slice{stuck})
		r.tr.Fence(o.rail)
		require.Zero(t, r.tr.Submit([]*transport.Slice{o.slice(transport.Read, m, 0, 0, 4096)}),
			"a fenced rail takes nothing")
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		err := r.tr.Close(ctx)
		require.Equal(t, errs.Timeout, errs.CodeOf(err))
		require.ErrorContains(t, err, "READ of 4096 bytes at offset 65536 of "+d.path)
		r.mu.Lock()
		_, ended := r.ends[stuck]
		r.mu.Unlock()
		require.False(t, ended, "it has not ended")
		d.release()
		end := r.wait(stuck)[0]
		if end.Err != nil {
			require.Equal(t, errs.Withdrawn, end.Err.Code, "%v", end.Err)
		}
		m.fill(2, 0, m.size)
		require.NoError(t, r.tr.Close(t.Context()), "it ends by itself afterwards")
		require.NoError(t, m.check(2, 0, 0, m.size), "read into after its end")
	})
}

func TestARailComesBackWhenTheLastSliceOfItsGenerationHasEnded(t *testing.T) {
	onBadDisk(t, 1<<20, Settings{}, func(t *testing.T, d *disk, r *rig, o *opened) {
		m := r.memory(1<<20, true)
		d.hold(fuseWrite)
		stuck := o.slice(transport.Write, m, 0, 0, 4096)
		r.send(stuck)
		d.await(fuseWrite, 1)
		r.tr.Fence(o.rail)
		d.release()
		r.wait(stuck)
		r.await("the next generation", func() bool { return r.rails[o.link].Generation > o.rail.Generation })
		o.rail = r.rails[o.link]
		r.must(o.slice(transport.Write, m, 0, 0, 4096))
	})
}

func TestHighGoesFirst(t *testing.T) {
	onBadDisk(t, 1<<20, Settings{Workers: 1, Depth: 1}, func(t *testing.T, d *disk, r *rig, o *opened) {
		m := r.memory(1<<20, true)
		d.hold(fuseRead)
		first := o.slice(transport.Read, m, 0, 0, 4096)
		r.send(first)
		d.await(fuseRead, 1)
		var list []*transport.Slice
		for i := range uint64(12) {
			s := o.slice(transport.Read, m, 4096*i, 4096*i, 4096)
			s.Class = []uint8{2, 1, 0}[i/4] // LOW first, HIGH last
			list = append(list, s)
		}
		r.send(list...)
		d.release()
		r.wait(list...)
		require.Equal(t, append([]*transport.Slice{first}, append(append(list[8:12:12], list[4:8]...), list[:4]...)...),
			r.order)
	})
}

// TestSyncWaitsForNobodyAndNobodyForIt: fdatasync of one file holds up neither its own slices nor other files. Calls
// that come meanwhile share the next one, and a failure is told.
func TestSyncWaitsForNobodyAndNobodyForIt(t *testing.T) {
	onBadDisk(t, 1<<20, Settings{Workers: 1, Depth: 1}, func(t *testing.T, d *disk, r *rig, o *opened) {
		m := r.memory(1<<20, true)
		other := r.open(transport.FileSpec{Path: onDisk(t), Create: true, Size: 1 << 20})
		d.hold(fuseFsync)
		var ended atomic.Int32
		done := make(chan *errs.Error, 10)
		sync := func() {
			r.filer().Sync(o.link, o.key, func(err *errs.Error) { ended.Add(1); done <- err })
		}
		sync()
		d.await(fuseFsync, 1)
		for range 5 {
			sync()
		}
		r.must(o.slice(transport.Read, m, 8192, 0, 4096)) // WRITEs wait for fsync in FUSE itself
		r.must(other.slice(transport.Write, m, 0, 0, 4096))
		r.filer().Sync(other.link, other.key, func(err *errs.Error) { done <- err })
		require.Nil(t, <-done, "the other file's")
		require.Zero(t, ended.Load())
		d.answers(func(q query) (int, syscall.Errno) {
			if q.op == fuseFsync && d.seen[fuseFsync] > 1 {
				return 0, unix.EIO
			}
			return 1 << 20, 0
		})
		d.release()
		require.Nil(t, <-done, "the first one's")
		for range 5 {
			err := <-done
			require.NotNil(t, err)
			require.Equal(t, errs.StorageError, err.Code)
			require.ErrorContains(t, err, d.path)
		}
		require.Equal(t, 2, d.count(fuseFsync), "five calls that came meanwhile share one")
		d.answers(nil)
		r.tr.Detach(o.link)
		sync()
		require.Equal(t, errs.Stale, (<-done).Code, "the link has ended")
	})
}

func TestAFileThatWasCutShortFailsItsReadsWithTheOffset(t *testing.T) {
	both(t, Settings{}, func(t *testing.T, r *rig) {
		o := r.open(transport.FileSpec{Path: onDisk(t), Create: true, Size: 1 << 20})
		m := r.memory(1<<20, true)
		err := r.fails(o.slice(transport.Read, m, 0, 1<<20-4095, 4096))
		require.Equal(t, errs.InvalidArgument, err.Code)
		require.ErrorContains(t, err, "READ of 4096 bytes at offset 1044481 is past the end")
		require.NoError(t, unix.Truncate(o.file.Path, 100_000))
		for _, offset := range []uint64{65536, 99_999, 100_000, 500_000} {
			err := r.fails(o.slice(transport.Read, m, 0, offset, 65536))
			require.Equal(t, errs.AddressNotRegistered, err.Code, "%v", err)
			require.True(t, err.Permanent())
			require.ErrorContains(t, err, fmt.Sprintf("at offset %d of %s: the file ends at or before offset", offset,
				o.file.Path))
		}
		r.must(o.slice(transport.Read, m, 0, 0, 100_000))
	})
}

// TestAnOperationGoesOnWhereItStopped plays the kernel for one operation of the ring, which real file systems hardly
// ever answer short.
func TestAnOperationGoesOnWhereItStopped(t *testing.T) {
	const length = 5*4096 + 100
	b, err := newBounces()
	require.NoError(t, err)
	defer b.close()
	for _, shift := range []uint64{0, 1} { // of memory: as O_DIRECT takes it, and bounced
		random := seeded(t)
		around := transporttest.NewMemory(t, length+8192, 1)
		local := (around.Addr+4095)&^4095 + uintptr(shift)
		f := &file{unit: 4096, memory: 512}
		f.direct.Store(true)
		f.straight.Store(7)
		f.plain.Store(8)
		it := &item{file: f, slice: &transport.Slice{Op: transport.Write, Local: local, Remote: 8192, Length: length}}
		var o operation
		require.True(t, o.begin(it, b))
		require.Equal(t, uint64(5*4096), o.length, "whole units")
		require.Equal(t, shift != 0, o.bounce >= 0)
		from := local
		for o.prepare(b); ; o.prepare(b) {
			if o.bounce >= 0 {
				from = b.addr(o.bounce)
			}
			require.Equal(t, 8192+o.done, o.offset)
			require.Equal(t, from+uintptr(o.done), o.vectors[0].Addr)
			require.Equal(t, o.length-o.done, o.vectors[0].Length)
			want := 8
			if o.done%4096 == 0 {
				want = 7
			}
			require.Equal(t, want, o.fd(), "what stopped inside a unit goes on through the page cache")
			left := int(o.length - o.done)
			if o.land(nil, int32(1+random.IntN(left))) == opDone {
				break
			}
		}
		require.Equal(t, o.length, it.done)
		o.end(b)
		require.Len(t, b.free, bounceCount)
		around.Free()
	}
}

// TestABouncedReadGoesOnWhereItStopped has a kernel that brings the bytes of a READ into the bounce buffer a few at a
// time.
func TestABouncedReadGoesOnWhereItStopped(t *testing.T) {
	const length = 5 * 4096
	b, err := newBounces()
	require.NoError(t, err)
	defer b.close()
	random := seeded(t)
	around := transporttest.NewMemory(t, length+8192, 1)
	defer around.Free()
	local := (around.Addr+4095)&^4095 + 1
	f := &file{unit: 4096, memory: 512}
	f.direct.Store(true)
	it := &item{file: f, slice: &transport.Slice{Op: transport.Read, Local: local, Length: length}}
	var o operation
	require.True(t, o.begin(it, b))
	require.GreaterOrEqual(t, o.bounce, 0)
	disk := make([]byte, length)
	for i := range disk {
		disk[i] = byte(random.Uint32())
	}
	for o.prepare(b); ; o.prepare(b) {
		n := 1 + random.IntN(int(o.length-o.done))
		copy(b.bytes(o.bounce)[o.done:], disk[o.done:o.done+uint64(n)])
		o.copyBack(b, uint64(n))
		if o.land(nil, int32(n)) == opDone {
			break
		}
	}
	require.Equal(t, disk, mem.Bytes(local, length))
	o.end(b)
}

func TestFUSEIsLeftToBufferedIO(t *testing.T) {
	d := newDisk(t, 4096)
	r := newRig(t, UringFactory{}, Settings{})
	f, err := r.filer().OpenFile(t.Context(), transport.FileSpec{Path: d.path})
	require.NoError(t, err)
	link, err := r.tr.Attach(transport.Peer{Address: scheme + f.Path})
	require.NoError(t, err)
	_, err = r.tr.Import(link, f.Encode())
	require.ErrorContains(t, err, "FUSE")
}
