package file

import (
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// Another program appends to a file while an engine grows it. Nothing of that is cut off.
func TestGrowingCutsNothingOff(t *testing.T) {
	r, path := newRig(t, BufferedFactory{}, Settings{}), onDisk(t)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	require.NoError(t, err)
	defer f.Close()
	var stop atomic.Bool
	var wait sync.WaitGroup
	lost := int64(0)
	wait.Go(func() {
		b, end := make([]byte, 4096), int64(0) // the size was end at least
		for !stop.Load() {
			var st unix.Stat_t
			if unix.Fstat(int(f.Fd()), &st) != nil || st.Size < end {
				lost = end - st.Size
				return
			}
			n, _ := f.Write(b)
			end = st.Size + int64(n)
		}
	})
	for range 5000 {
		var st unix.Stat_t
		require.NoError(t, unix.Stat(path, &st))
		if st.Size > 1<<28 {
			break
		}
		_, err := r.filer().OpenFile(t.Context(), transport.FileSpec{Path: path, Create: true,
			Size: uint64(st.Size) + 1})
		require.NoError(t, err)
	}
	stop.Store(true)
	wait.Wait()
	require.Zero(t, lost, "bytes that were appended are gone")
}

func TestAFileThatCannotHaveItsNewSizeKeepsItsBytes(t *testing.T) {
	r, path := newRig(t, BufferedFactory{}, Settings{}), onDisk(t)
	require.NoError(t, os.WriteFile(path, []byte("precious"), 0o600))
	for _, spec := range []transport.FileSpec{{Create: true, Size: 1 << 62}, {Size: 3}} {
		spec.Path, spec.Truncate = path, true
		_, err := r.filer().OpenFile(t.Context(), spec)
		require.Error(t, err)
		require.Equal(t, "precious", string(content(t, path)))
	}
	for _, size := range []uint64{0, 3, 100_000} {
		require.NoError(t, os.WriteFile(path, []byte("precious"), 0o600))
		c, err := r.filer().OpenFile(t.Context(), transport.FileSpec{Path: path, Create: true, Truncate: true,
			Size: size})
		require.NoError(t, err)
		require.Equal(t, size, c.Size)
		require.Equal(t, make([]byte, size), content(t, path))
	}
	_, err := r.filer().OpenFile(t.Context(), transport.FileSpec{Path: t.TempDir(), Truncate: true})
	require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), "%v", err)
}
