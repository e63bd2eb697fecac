//go:build cgo

package gds

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/fakes/cuda"
	fake "github.com/tent-engine/tent/tests/fakes/cufile"
	"github.com/tent-engine/tent/transports/cuda/driver"
	"github.com/tent-engine/tent/transports/file"
	"github.com/tent-engine/tent/transports/transporttest"
)

const (
	size     = 1 << 20
	tag      = 7
	patience = 10 * time.Second
)

// rig is a transport with a region of a device, and a file of the same size.
type rig struct {
	t      *testing.T
	world  *transporttest.World
	node   *transporttest.Node
	conn   *transporttest.Conn
	local  *transporttest.Operand
	remote *transporttest.Remote
}

func open(t *testing.T, s file.Settings) *rig {
	w := transporttest.NewWorld(t, harness(s))
	near, far := w.Open("near"), w.Open("far")
	r := &rig{t: t, world: w, node: near, conn: near.Connect(t, far)}
	r.local = near.Register(t, size, mem.LocalReadWrite)
	r.remote = r.conn.Import(t, far.Register(t, size, mem.GlobalReadWrite))
	r.local.Fill(tag, 0, size)
	return r
}

func (r *rig) slice(op transport.Op, at, n uint64) *transport.Slice {
	return r.conn.Slice(op, r.conn.Rail(r.t), r.local, at, r.remote, at, n)
}

// Each failure of the library fails its slice with the scope of the link, so that the next route is taken. The slices
// beside it and behind it arrive, and nothing stays under way.
func TestAFailureFailsItsSliceAlone(t *testing.T) {
	for name, absent := range map[string][]string{"batches": nil, "threads": fake.BatchCalls} {
		t.Run(name, func(t *testing.T) {
			fake.Run(t, nil, nil, absent, func(t *testing.T, io *fake.Loaded, _ *cuda.Loaded) {
				r := open(t, file.Settings{})
				post := map[bool]string{true: "cuFileBatchIOSubmit", false: "cuFileWrite"}[absent == nil]
				for _, c := range []struct {
					function string
					code     int
					op       transport.Op
					says     string
				}{
					{"io", int(unix.EIO), transport.Write, "WRITE of 65536 bytes at offset "},
					{"io", int(unix.EIO), transport.Read, "input/output error"},
					{"short", 1, transport.Read, "cut short after 32768 of 65536 bytes"},
					{"short", 1, transport.Write, "cut short after 32768 of 65536 bytes"},
					{post, 5011, transport.Write, "an error of the CUDA driver (5011)"},
				} {
					io.Inject(c.function, 3, c.code)
					r.local.Fill(tag, 0, size)
					var list []*transport.Slice
					for i := range uint64(8) {
						list = append(list, r.slice(c.op, i<<16, 1<<16))
					}
					require.Equal(t, len(list), r.conn.Send(list...))
					failed := 0
					for _, end := range r.conn.Wait(t, list...) {
						if end.Err == nil {
							continue
						}
						failed++
						require.Zero(t, end.Bytes)
						require.ErrorContains(t, end.Err, c.says)
						require.Equal(t, errs.StorageError, end.Err.Code)
						require.Equal(t, errs.ScopeLink, end.Err.Scope)
						require.False(t, end.Err.Permanent(), "the next route is tried")
					}
					require.Equal(t, 1, failed, "%+v", c)
				}
				require.Zero(t, io.Stats().UnderWay)
				r.local.Fill(tag, 0, size)
				r.conn.Must(t, r.slice(transport.Write, 0, size))
				require.NoError(t, r.remote.Check(tag, 0, 0, size))
			})
		})
	}
}

// A file that was cut short by somebody else is a fact, and no failure of the library.
func TestAFileThatEndsEarlierIsAFact(t *testing.T) {
	fake.Run(t, nil, nil, nil, func(t *testing.T, _ *fake.Loaded, _ *cuda.Loaded) {
		r := open(t, file.Settings{})
		card, bad := transport.DecodeFileCard(r.remote.Descriptor)
		require.Nil(t, bad)
		require.NoError(t, os.Truncate(card.Path, size/2))
		err := r.conn.One(t, r.slice(transport.Read, size/4, size/2))
		require.Equal(t, errs.AddressNotRegistered, err.Code)
		require.ErrorContains(t, err, "the file ends at or before offset 524288")
		require.NoError(t, os.Truncate(card.Path, size))
	})
}

// A withdrawn slice that is under way ends when the library is done with it, and never before: its memory is in use.
// Those that wait end at once. Close waits in the same way, and names the slice.
func TestAWithdrawnSliceEndsWithItsEvent(t *testing.T) {
	for name, absent := range map[string][]string{"batches": nil, "threads": fake.BatchCalls} {
		t.Run(name, func(t *testing.T) {
			fake.Run(t, nil, nil, absent, func(t *testing.T, io *fake.Loaded, _ *cuda.Loaded) {
				r := open(t, file.Settings{BatchDepth: 1, Threads: 1})
				io.Hold(true)
				under, waits := r.slice(transport.Read, 0, 1<<16), r.slice(transport.Read, 1<<16, 1<<16)
				require.Equal(t, 1, r.conn.Send(under))
				require.Eventually(t, func() bool { return io.Stats().UnderWay == 1 }, patience, time.Millisecond)
				require.Equal(t, 1, r.conn.Send(waits))
				r.node.Transport.Withdraw([]*transport.Slice{under, waits})
				require.Equal(t, errs.Withdrawn, r.conn.Wait(t, waits)[0].Err.Code)
				r.node.Transport.Fence(r.conn.Rail(t))
				short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer cancel()
				closing := make(chan error, 1)
				go func() { closing <- r.node.Transport.Close(short) }()
				require.ErrorContains(t, <-closing, "READ of 65536 bytes at offset 0")
				require.EqualValues(t, 1, io.Stats().UnderWay)
				require.Zero(t, r.world.Ended(under), "its memory is in use")
				require.Zero(t, io.Stats().Cancels, "its event would be lost")
				io.Hold(false)
				end := r.conn.Wait(t, under)[0]
				require.Nil(t, end.Err, "all of its bytes came")
			})
		})
	}
}

// Files that cuFile does not take, and memory that it cannot pin, are left to other transports, with the reason.
func TestRefusalsAreReasons(t *testing.T) {
	settings := fake.Settings{"PIN_MOST": "65536", "TMPFS": "0"}
	fake.Run(t, settings, nil, nil, func(t *testing.T, io *fake.Loaded, _ *cuda.Loaded) {
		w := transporttest.NewWorld(t, harness(file.Settings{}))
		node := w.Open("near")
		addr, err := driver.Platform{}.Allocate(0, size)
		require.NoError(t, err)
		defer func() { require.NoError(t, driver.Platform{}.Free(addr, size)) }()
		for location, says := range map[mem.Location]string{"cuda:0": "cannot be pinned (5036)",
			"cuda": "names no device"} {
			_, _, err = node.Transport.Register(t.Context(), mem.Region{Addr: addr, Size: size, Kind: mem.Cuda,
				Location: location})
			require.Equal(t, errs.NotHere, errs.CodeOf(err))
			require.ErrorContains(t, err, says)
		}
		_, _, err = node.Transport.Register(t.Context(), mem.Region{Addr: 4096, Size: 4096, Kind: mem.Host})
		require.Equal(t, errs.NotHere, errs.CodeOf(err))

		folder, err := os.MkdirTemp("/dev/shm", "tent-gds-")
		if err != nil {
			t.Skipf("no tmpfs: %v", err)
		}
		defer os.RemoveAll(folder)
		path := filepath.Join(folder, "kv")
		filer := node.Transport.(transport.Filer)
		card, err := filer.OpenFile(t.Context(), transport.FileSpec{Path: path, Create: true, Size: 4096})
		require.NoError(t, err)
		link, err := node.Transport.Attach(transport.Peer{Address: "file://" + path})
		require.NoError(t, err)
		_, err = node.Transport.Import(link, card.Encode())
		require.Equal(t, errs.NotImplemented, errs.CodeOf(err))
		require.ErrorContains(t, err, path)
		require.ErrorContains(t, err, "as tmpfs")
		require.Zero(t, io.Stats().Handles)
		node.Transport.Detach(link)
	})
}

// A driver of cuFile that does not open is a reason as one of Check is.
func TestADriverThatDoesNotOpenIsAReason(t *testing.T) {
	fake.Run(t, fake.Settings{"COMPAT": "0"}, nil, nil, func(t *testing.T, io *fake.Loaded, _ *cuda.Loaded) {
		require.NoError(t, Factory{}.Check())
		_, err := Factory{}.Open(t.Context(), nil, nil, nil)
		require.Equal(t, errs.DeviceNotFound, errs.CodeOf(err))
		require.ErrorContains(t, err, "compat mode is not allowed")
		require.Contains(t, strings.Join(Factory{}.Survey(), " "), "its driver does not open")
	})
}

// Survey and Explain say which mode the library is in; native routes do not stand behind staged ones.
func TestTheModeIsReported(t *testing.T) {
	for native, words := range map[string]string{"0": "in compat mode, without nvidia-fs", "2": "with nvidia-fs"} {
		t.Run(native, func(t *testing.T) {
			fake.Run(t, fake.Settings{"NATIVE": native}, nil, nil, func(t *testing.T, _ *fake.Loaded, _ *cuda.Loaded) {
				require.Contains(t, strings.Join(Factory{}.Survey(), "\n"), words)
				r := open(t, file.Settings{})
				require.Equal(t, native == "0", r.node.Info.Bounces)
				said := r.node.Transport.(transport.Explainer).Explain(r.conn.Link)
				require.Contains(t, said, words)
				require.Contains(t, said, "up to 32 runs at once by cuFile 1.9")
			})
		})
	}
}

// Neighbours that write the same unit at once lose no byte: its ends go through the page cache.
func TestNeighboursInAUnitLoseNoByte(t *testing.T) {
	fake.Run(t, fake.Settings{"DELAY_US": "100"}, nil, nil, func(t *testing.T, _ *fake.Loaded, _ *cuda.Loaded) {
		r := open(t, file.Settings{})
		for range 20 {
			r.remote.Fill(1, 0, size)
			var list []*transport.Slice
			for at, n := uint64(100), uint64(0); at+10_000 < size; at += n {
				n = 5000 + at%7777
				list = append(list, r.slice(transport.Write, at, n))
			}
			r.conn.Must(t, list...)
			last := list[len(list)-1]
			end := last.Remote + last.Length
			require.NoError(t, r.remote.Check(1, 0, 0, 100))
			require.NoError(t, r.remote.Check(tag, 100, 100, end-100))
			require.NoError(t, r.remote.Check(1, end, end, size-end))
		}
	})
}
