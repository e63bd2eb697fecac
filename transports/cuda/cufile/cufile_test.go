//go:build cgo

package cufile_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/tests/fakes/cuda"
	fake "github.com/tent-engine/tent/tests/fakes/cufile"
	"github.com/tent-engine/tent/transports/cuda/cufile"
	"github.com/tent-engine/tent/transports/cuda/driver"
)

const (
	size  = 1 << 20
	depth = 4
	limit = 20 * time.Second
)

// rig has a file and memory of a device, known to the library.
type rig struct {
	t      *testing.T
	gpu    *cuda.Loaded
	file   *os.File
	handle uintptr
	addr   uintptr
}

func open(t *testing.T, gpu *cuda.Loaded) *rig {
	_, err := cufile.Driver()
	require.NoError(t, err)
	r := &rig{t: t, gpu: gpu}
	r.file, err = os.OpenFile(filepath.Join(t.TempDir(), "kv"), os.O_RDWR|os.O_CREATE, 0o600)
	require.NoError(t, err)
	require.NoError(t, r.file.Truncate(size))
	r.handle, err = cufile.Adopt(int(r.file.Fd()))
	require.NoError(t, err)
	r.addr, err = driver.Platform{}.Allocate(1, size)
	require.NoError(t, err)
	require.NoError(t, cufile.Keep(1, r.addr, size))
	t.Cleanup(func() {
		require.NoError(t, cufile.Unkeep(1, r.addr, size))
		require.NoError(t, driver.Platform{}.Free(r.addr, size))
		cufile.Drop(r.handle)
		require.NoError(t, r.file.Close())
	})
	return r
}

func (r *rig) run(write bool, at, bytes uint64) *cufile.Run {
	return &cufile.Run{Write: write, File: r.handle, Ordinal: 1, Base: r.addr, Into: at, Offset: at, Bytes: bytes}
}

func pattern(seed, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(uint64(i+seed) * 0x9e37_79b9_7f4a_7c15 >> 56)
	}
	return b
}

// collect returns the ends of n runs, by tag. Each comes once.
func collect(t *testing.T, b *cufile.Batches, n int) map[int]cufile.Ended {
	ends := map[int]cufile.Ended{}
	into := make([]cufile.Ended, depth)
	for until := time.Now().Add(limit); len(ends) < n; {
		require.True(t, time.Now().Before(until), "%d of %d runs have ended", len(ends), n)
		for _, end := range into[:b.Collect(into, time.Second)] {
			require.NotContains(t, ends, end.Tag)
			ends[end.Tag] = end
		}
	}
	return ends
}

func TestWithoutLibrariesThereIsAReason(t *testing.T) {
	for name, c := range map[string]struct {
		library string
		says    string
	}{
		"no library":        {"/nonexistent/libcufile.so.0", "no library: /nonexistent/libcufile.so.0"},
		"another one":       {"libm.so.6", "lacks cuFileDriverOpen"},
		"a symbol is not":   {"", "lacks cuFileBufRegister"},
		"and none, no GPUs": {"none", "no driver"},
	} {
		t.Run(name, func(t *testing.T) {
			check := func(t *testing.T) {
				err := cufile.Check()
				require.ErrorContains(t, err, c.says)
				require.Equal(t, errs.DeviceNotFound, errs.CodeOf(err))
				_, err = cufile.Driver()
				require.ErrorContains(t, err, c.says)
			}
			if c.library == "none" {
				cuda.In(t, []string{"TENT_LIBCUDA=/nonexistent", "TENT_LIBCUFILE=/nonexistent"}, check)
				return
			}
			if c.library == "" {
				c.library = fake.Library(t, "cuFileBufRegister")
			}
			cuda.RunWith(t, cuda.Driver{}, nil, []string{"TENT_LIBCUFILE=" + c.library},
				func(t *testing.T, _ *cuda.Loaded) { check(t) })
		})
	}
}

// The library's driver refuses machines without nvidia-fs, unless compat mode is allowed.
func TestModesOfTheDriver(t *testing.T) {
	for name, c := range map[string]struct {
		settings       fake.Settings
		absent         []string
		native, batch  bool
		refused, words string
	}{
		"native":           {fake.Settings{"NATIVE": "2"}, nil, true, true, "", "cuFile 1.9 with nvidia-fs"},
		"compat":           {nil, nil, false, true, "", "cuFile 1.9 in compat mode"},
		"neither":          {fake.Settings{"COMPAT": "0"}, nil, false, false, "compat mode is not allowed (5001)", ""},
		"without batches":  {nil, fake.BatchCalls, false, false, "", "compat"},
		"one call is not":  {nil, fake.BatchCalls[3:4], false, false, "", "compat"},
		"batches are off":  {fake.Settings{"BATCHES": "0"}, nil, false, false, "", "compat"},
		"without versions": {nil, []string{"cuFileGetVersion"}, false, true, "", "cuFile in compat mode"},
	} {
		t.Run(name, func(t *testing.T) {
			fake.Run(t, c.settings, nil, c.absent, func(t *testing.T, io *fake.Loaded, _ *cuda.Loaded) {
				require.NoError(t, cufile.Check())
				require.Zero(t, io.Stats().Drivers, "Check opens no driver")
				facts, err := cufile.Driver()
				if c.refused != "" {
					require.ErrorContains(t, err, c.refused)
					require.Equal(t, errs.DeviceNotFound, errs.CodeOf(err))
					return
				}
				require.NoError(t, err)
				require.Equal(t, c.native, facts.Native)
				require.Equal(t, c.batch, facts.Batches)
				require.EqualValues(t, 16<<20, facts.RunMost)
				require.Contains(t, facts.String(), c.words)
				_, err = cufile.Driver()
				require.NoError(t, err)
				require.EqualValues(t, 1, io.Stats().Drivers)
			})
		})
	}
}

// A library of 1.11 or newer never returns from its opening where the kernel shows no modules. It is not opened there.
func TestItIsNotOpenedWhereItWouldNotReturn(t *testing.T) {
	fake.Run(t, fake.Settings{"VERSION": "1140"}, nil, nil, func(t *testing.T, io *fake.Loaded, _ *cuda.Loaded) {
		facts, err := cufile.Driver()
		if _, gone := os.Stat("/proc/modules"); gone == nil {
			require.NoError(t, err)
			require.Contains(t, facts.String(), "cuFile 1.14")
			return
		}
		require.Equal(t, errs.DeviceNotFound, errs.CodeOf(err))
		require.ErrorContains(t, err, "it reads /proc/modules")
		require.Zero(t, io.Stats().Drivers)
	})
}

// Bytes go both ways, by calls that wait and by batches, and those around them stay as they are.
func TestBytesGoBothWays(t *testing.T) {
	seed := rand.IntN(1 << 30)
	t.Logf("seed %d", seed)
	fake.Run(t, fake.Settings{"DELAY_US": "200", "SEED": fmt.Sprint(seed)}, nil, nil,
		func(t *testing.T, io *fake.Loaded, gpu *cuda.Loaded) {
			r := open(t, gpu)
			device, disk := pattern(1, size), make([]byte, size)
			require.NoError(t, gpu.Poke(r.addr, device))
			b := cufile.NewBatches(depth)
			const part = size / 16
			for first := 0; first < 16; first += depth {
				for i := range depth {
					at := uint64(first+i) * part
					require.NoError(t, b.Post(r.run(true, at, part), i))
					copy(disk[at:at+part], device[at:])
				}
				for _, end := range collect(t, b, depth) {
					require.NoError(t, end.Err)
					require.EqualValues(t, part, end.Bytes)
				}
			}
			content, err := os.ReadFile(r.file.Name())
			require.NoError(t, err)
			require.Equal(t, disk, content)

			disk = pattern(2, size)
			require.NoError(t, os.WriteFile(r.file.Name(), disk, 0o600))
			n, err := cufile.Move(r.run(false, 8192, 12345))
			require.NoError(t, err)
			require.EqualValues(t, 12345, n)
			copy(device[8192:], disk[8192:8192+12345])
			got := make([]byte, size)
			require.NoError(t, gpu.Peek(got, r.addr))
			require.Equal(t, device, got)
			n, err = cufile.Move(r.run(true, 4096, 4096))
			require.NoError(t, err)
			require.EqualValues(t, 4096, n)
			b.Close()
		})
}

// Each run has a batch of its own, which the next run with its tag uses again.
func TestBatchesAreUsedAgain(t *testing.T) {
	fake.Run(t, nil, nil, nil, func(t *testing.T, io *fake.Loaded, gpu *cuda.Loaded) {
		r := open(t, gpu)
		b := cufile.NewBatches(depth)
		into := make([]cufile.Ended, 1)
		free := []int{0, 1, 2, 3}
		for posted, taken := 0, 0; taken < 50; {
			for posted < 50 && len(free) > 0 {
				tag := free[0]
				free = free[1:]
				require.NoError(t, b.Post(r.run(posted%2 == 0, uint64(posted)*4096, 4096), tag))
				posted++
			}
			if b.Collect(into, time.Second) == 1 {
				require.NoError(t, into[0].Err)
				free = append(free, into[0].Tag)
				taken++
			}
		}
		require.EqualValues(t, depth, io.Stats().Batches)
		b.Close()
	})
}

// The library is asked for the ends of runs of a device that is lost, too. Their batches end, and those of another
// device go on.
func TestRunsOfALostDeviceEnd(t *testing.T) {
	library := fake.Settings{}.Environment(fake.Library(t))
	cuda.RunWith(t, cuda.Driver{}, nil, library, func(t *testing.T, gpu *cuda.Loaded) {
		io, err := fake.Load()
		require.NoError(t, err)
		r := open(t, gpu)
		gone, err := driver.Platform{}.Allocate(0, size)
		require.NoError(t, err)
		require.NoError(t, cufile.Keep(0, gone, size))
		b := cufile.NewBatches(depth)
		io.Hold(true)
		run := &cufile.Run{File: r.handle, Ordinal: 0, Base: gone, Bytes: 4096}
		for tag := range depth - 1 {
			require.NoError(t, b.Post(run, tag))
		}
		gpu.Inject("copy", 1, 700, true)
		require.Error(t, driver.Platform{}.Copy(gone, gone+2048, 1024))
		require.Error(t, b.Post(run, depth-1), "no new ones")
		require.NoError(t, b.Post(r.run(false, 0, 4096), depth-1))
		io.Hold(false)
		ends := collect(t, b, depth)
		require.NoError(t, ends[depth-1].Err)
		require.NoError(t, b.Post(r.run(false, 0, 4096), 0), "on another device than before")
		require.NoError(t, collect(t, b, 1)[0].Err)
		b.Close()
		require.Zero(t, io.Stats().Batches)
		require.Zero(t, io.Stats().UnderWay)
		gpu.Forgive()
		require.NoError(t, driver.Platform{}.Free(gone, size))
	})
}

// Where the library does not answer for a device that is lost, its runs stay. They hold up none of another device.
func TestALostDeviceHoldsNoOtherUp(t *testing.T) {
	library := fake.Settings{"LOST": "0"}.Environment(fake.Library(t))
	cuda.RunWith(t, cuda.Driver{}, nil, library, func(t *testing.T, gpu *cuda.Loaded) {
		io, err := fake.Load()
		require.NoError(t, err)
		const lost, rounds = 40, 40
		r := open(t, gpu)
		gone, err := driver.Platform{}.Allocate(0, size)
		require.NoError(t, err)
		require.NoError(t, cufile.Keep(0, gone, size))
		b := cufile.NewBatches(lost + 1)
		carry := func() time.Duration {
			begin := time.Now()
			for range rounds {
				require.NoError(t, b.Post(r.run(false, 0, 4096), lost))
				require.NoError(t, collect(t, b, 1)[lost].Err)
			}
			return time.Since(begin)
		}
		before := carry()
		io.Hold(true)
		for tag := range lost {
			require.NoError(t, b.Post(&cufile.Run{File: r.handle, Ordinal: 0, Base: gone, Bytes: 4096}, tag))
		}
		gpu.Inject("copy", 1, 700, true)
		require.Error(t, driver.Platform{}.Copy(gone, gone+2048, 1024))
		io.Hold(false)
		require.Less(t, carry(), before+rounds*lost*time.Millisecond/2, "half a pause for each lost one is too much")
		require.Eventually(t, func() bool { return io.Stats().UnderWay == 0 }, limit, time.Millisecond)
		require.Zero(t, b.Collect(make([]cufile.Ended, depth), time.Second), "no end of a lost one")
		b.Close()
		gpu.Forgive()
		require.NoError(t, driver.Platform{}.Free(gone, size))
	})
}

// An entry that is refused moves nothing. Its batch ends, and those beside it go on.
func TestARefusedEntryEndsItsBatch(t *testing.T) {
	fake.Run(t, nil, nil, nil, func(t *testing.T, io *fake.Loaded, gpu *cuda.Loaded) {
		r := open(t, gpu)
		b := cufile.NewBatches(depth)
		io.Hold(true)
		require.NoError(t, b.Post(r.run(true, 0, 4096), 0))
		bad := r.run(true, 0, 4096)
		bad.Into = size // past the end of the memory
		err := b.Post(bad, 1)
		require.ErrorContains(t, err, "cuFileBatchIOSubmit")
		require.Equal(t, errs.StorageError, errs.CodeOf(err))
		require.EqualValues(t, 1, io.Stats().Batches, "the refused one has ended")
		require.EqualValues(t, 1, io.Stats().Cancels)
		require.NoError(t, b.Post(r.run(false, 4096, 4096), 1))
		io.Hold(false)
		for _, end := range collect(t, b, 2) {
			require.NoError(t, end.Err)
			require.EqualValues(t, 4096, end.Bytes)
		}
		require.EqualValues(t, 1, io.Stats().Cancels, "Cancel would lose events")
		b.Close()
	})
}

// Each failure of the library is an error with its call and code, and leaves the next call alone.
func TestFailuresAreNamed(t *testing.T) {
	fake.Run(t, nil, nil, nil, func(t *testing.T, io *fake.Loaded, gpu *cuda.Loaded) {
		r := open(t, gpu)
		b := cufile.NewBatches(depth)
		post := func() error {
			if err := b.Post(r.run(false, 0, 8192), 0); err != nil {
				return err
			}
			end := collect(t, b, 1)[0]
			if end.Err == nil && end.Bytes < 8192 {
				return fmt.Errorf("short: %d", end.Bytes)
			}
			return end.Err
		}
		move := func() error {
			n, err := cufile.Move(r.run(false, 0, 8192))
			if err == nil && n < 8192 {
				return fmt.Errorf("short: %d", n)
			}
			return err
		}
		for _, c := range []struct {
			function string
			code     int
			call     func() error
			says     string
		}{
			{"cuFileBatchIOSetUp", 5030, post, "cuFileBatchIOSetUp: an internal error"},
			{"cuFileBatchIOSubmit", 5035, post, "cuFileBatchIOSubmit: the batch was not accepted"},
			{"cuFileBatchIOGetStatus", 5030, post, ""}, // asked again
			{"cuFileRead", 5011, move, "cuFileRead: an error of the CUDA driver (5011)"},
			{"io", int(unix.EIO), post, "input/output error"},
			{"io", int(unix.EIO), move, "input/output error"},
			{"short", 1, post, "short: 4096"},
			{"short", 1, move, "short: 4096"},
			{"cuFileBufRegister", 5036, func() error { return cufile.Keep(0, 1<<30, 4096) }, "(5036)"},
			{"cuFileHandleRegister", 5099, func() error { _, err := cufile.Adopt(0); return err }, "error 5099"},
		} {
			io.Inject(c.function, 1, c.code)
			if err := c.call(); c.says == "" {
				require.NoError(t, err, c.function)
			} else {
				require.ErrorContains(t, err, c.says, c.function)
			}
		}
		require.NoError(t, post())
		require.NoError(t, move())
		b.Close()
	})
}

// The library takes a descriptor and memory once.
func TestHandlesAndMemory(t *testing.T) {
	fake.Run(t, nil, nil, nil, func(t *testing.T, io *fake.Loaded, gpu *cuda.Loaded) {
		r := open(t, gpu)
		_, err := cufile.Adopt(int(r.file.Fd()))
		require.ErrorContains(t, err, "registered already (5028)")
		require.NoError(t, cufile.Keep(1, r.addr, size), "a range is counted")
		require.EqualValues(t, 1, io.Stats().Buffers)
		require.ErrorContains(t, cufile.Keep(1, r.addr, size/2), "(5023)")
		require.NoError(t, cufile.Unkeep(1, r.addr, size))
		require.EqualValues(t, 1, io.Stats().Buffers)
	})
}

func TestFilesOfTmpfsAreRefused(t *testing.T) {
	fake.Run(t, fake.Settings{"TMPFS": "0"}, nil, nil, func(t *testing.T, _ *fake.Loaded, _ *cuda.Loaded) {
		_, err := cufile.Driver()
		require.NoError(t, err)
		fd, err := unix.MemfdCreate("tmpfs", unix.MFD_CLOEXEC)
		require.NoError(t, err)
		_, err = cufile.Adopt(fd)
		require.ErrorContains(t, err, "tmpfs")
		require.NoError(t, unix.Close(fd))
	})
}
