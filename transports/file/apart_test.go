package file

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// soon runs f, which must not wait for a disk that hangs until it is released.
func soon(t *testing.T, d *disk, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(holdMost / 2):
		d.release()
		<-done
		t.Fatal("it waited for the disk")
	}
}

func TestAnOpeningEndsWithItsCallerWhereADiskHangs(t *testing.T) {
	d := newDisk(t, 4096)
	r := newRig(t, BufferedFactory{}, Settings{})
	d.hold(fuseOpen)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	soon(t, d, func() {
		_, err := r.filer().OpenFile(ctx, transport.FileSpec{Path: d.path})
		require.Equal(t, errs.Timeout, errs.CodeOf(err))
		require.ErrorContains(t, err, d.path+": the file system has not answered")
	})
	d.release() // the end of newRig looks for descriptors that are left
}

// Openings that hang are bounded, and one that finds no room ends with its caller.
func TestOpeningsThatHangAreBounded(t *testing.T) {
	d := newDisk(t, 4096)
	r := newRig(t, BufferedFactory{}, Settings{})
	t.Cleanup(d.release)
	d.hold(fuseOpen)
	b := r.tr.(interface{ itself() *base }).itself()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	soon(t, d, func() {
		for i := range 2*doingMost + 10 { // those of the first names, and those of this file system
			_, err := r.filer().OpenFile(ctx, transport.FileSpec{Path: d.path})
			require.Equal(t, errs.Timeout, errs.CodeOf(err))
			if i >= 2*doingMost {
				require.ErrorContains(t, err, d.path+": 64 others wait for its file system")
			}
		}
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	require.LessOrEqual(t, len(b.doing), 2*doingMost)
}

func TestADiskThatHangsInCloseHoldsUpNobody(t *testing.T) {
	for name, leave := range map[string]func(*rig, *opened){
		"detached":  func(r *rig, o *opened) { r.tr.Detach(o.link) },
		"forgotten": func(r *rig, o *opened) { r.tr.Forget(o.link, o.key) },
		"closed":    func(*rig, *opened) {},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDisk(t, 4096)
			r := newRig(t, BufferedFactory{}, Settings{})
			o := r.open(transport.FileSpec{Path: d.path})
			d.hold(fuseFlush)
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			soon(t, d, func() {
				leave(r, o)
				err := r.tr.Close(ctx)
				require.Equal(t, errs.Timeout, errs.CodeOf(err))
				require.ErrorContains(t, err, "close of "+d.path)
			})
			d.release()
			require.NoError(t, r.tr.Close(t.Context()), "it ends by itself afterwards")
		})
	}
}

func TestACompletionWaitsForTheCloseOfNoOtherFile(t *testing.T) {
	d := newDisk(t, 4096)
	r := newRig(t, BufferedFactory{}, Settings{Descriptors: 1})
	t.Cleanup(d.release)
	m := r.memory(8192, true)
	healthy := r.open(transport.FileSpec{Path: onDisk(t), Create: true, Size: 8192})
	bad := r.open(transport.FileSpec{Path: d.path})
	r.must(bad.slice(transport.Read, m, 0, 0, 4096)) // bad is open, healthy is not
	d.hold(fuseFlush)
	soon(t, d, func() {
		for range 3 { // healthy is opened again, bad is given up
			r.must(healthy.slice(transport.Write, m, 0, 0, 4096))
		}
	})
}

// Closings and openings that hang keep no place of another file system: its files are opened, opened again and closed.
func TestADiskThatHangsHoldsUpNoOtherFileSystem(t *testing.T) {
	d := newDisk(t, 4096)
	r := newRig(t, BufferedFactory{}, Settings{Descriptors: doingMost})
	t.Cleanup(d.release)
	m, b := r.memory(4096, true), r.tr.(interface{ itself() *base }).itself()
	path := onDisk(t)
	healthy := r.open(transport.FileSpec{Path: path, Create: true, Size: 4096})
	var bad []*opened
	for range doingMost { // the last one takes the descriptor of the healthy file
		bad = append(bad, r.open(transport.FileSpec{Path: d.path}))
	}
	d.hold(fuseFlush)
	d.hold(fuseOpen)
	soon(t, d, func() {
		var wait sync.WaitGroup
		for _, o := range bad {
			wait.Go(func() { r.tr.Detach(o.link) })
		}
		wait.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		for range doingMost {
			_, err := r.filer().OpenFile(ctx, transport.FileSpec{Path: d.path})
			require.Equal(t, errs.Timeout, errs.CodeOf(err))
		}
		r.must(healthy.slice(transport.Write, m, 0, 0, 4096))
		_, err := r.filer().OpenFile(t.Context(), transport.FileSpec{Path: path})
		require.NoError(t, err)
		r.tr.Detach(healthy.link)
		b.mu.Lock()
		defer b.mu.Unlock()
		ofHealthy := func(other *doing) bool { return other.path == path }
		for slices.ContainsFunc(slices.Collect(maps.Keys(b.doing)), ofHealthy) {
			b.changed.Wait()
		}
	})
	d.release()
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.doing) > 0 {
		b.changed.Wait()
	}
	require.Empty(t, b.rooms)
}

// A file that lost its descriptors is opened again for its slices. Where that hangs they end, and later ones try anew.
func TestSlicesEndWhereTheirFileIsNotOpenedAgain(t *testing.T) {
	d := newDisk(t, 4096)
	r := newRig(t, BufferedFactory{}, Settings{Descriptors: 1})
	t.Cleanup(d.release)
	m, b := r.memory(4096, true), r.tr.(interface{ itself() *base }).itself()
	bad := r.open(transport.FileSpec{Path: d.path})
	r.open(transport.FileSpec{Path: onDisk(t), Create: true, Size: 4096}) // takes the descriptor
	b.openMost = 20 * time.Millisecond
	d.hold(fuseOpen)
	soon(t, d, func() {
		err := r.fails(bad.slice(transport.Read, m, 0, 0, 4096))
		require.Equal(t, errs.Timeout, err.Code)
		require.ErrorContains(t, err, d.path+": the file system has not answered")
	})
	d.release()
	b.openMost = importMost
	r.must(bad.slice(transport.Read, m, 0, 0, 4096))
}

func TestTheMountAboveANameIsTheNearest(t *testing.T) {
	table := `22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 27 0:25 / /mnt/a rw - nfs server:/a rw
31 30 0:26 / /mnt/a/b\040c rw - nfs server:/b rw
a line that is cut
`
	for path, want := range map[string]string{"/x": "/", "/mnt/a": "/mnt/a", "/mnt/a/x": "/mnt/a", "/mnt/ab/x": "/",
		"/mnt/a/b c/x": "/mnt/a/b c", "/mnt/a/b": "/mnt/a", "/proc/self": "/proc"} {
		require.Equal(t, want, mountAbove(table, path), path)
	}
	require.Empty(t, mountAbove("", "/x"))
}
