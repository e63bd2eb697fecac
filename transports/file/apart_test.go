package file

import (
	"context"
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
		for range doingMost + 10 {
			_, err := r.filer().OpenFile(ctx, transport.FileSpec{Path: d.path})
			require.Equal(t, errs.Timeout, errs.CodeOf(err))
		}
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	require.LessOrEqual(t, len(b.doing), doingMost)
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
