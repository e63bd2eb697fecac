//go:build cgo

package staged

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	terms "github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/cuda"
	"github.com/tent-engine/tent/tests/fakes/cufile"
	"github.com/tent-engine/tent/transports/all"
)

// stored is an engine with memory of a device and a file of the same size, beside gds.
type stored struct {
	t    *testing.T
	e    *engine.Engine
	m    memory
	path string
	file engine.SegmentID
	mine []byte // the bytes that memory and file should hold
	disk []byte
}

var switchedOn = map[string]any{"transports/gds/enable": true}

func store(t *testing.T, folder string, more map[string]any) *stored {
	e, m := hereWith(t, 0, more)
	s := &stored{t: t, e: e, m: m, path: filepath.Join(folder, "cache"), mine: pattern(2, size+2*band),
		disk: pattern(5, size)}
	require.NoError(t, os.WriteFile(s.path, s.disk, 0o600))
	var err error
	s.file, err = e.OpenFile(t.Context(), s.path, engine.FileOptions{})
	require.NoError(t, err)
	return s
}

func (s *stored) request(op transport.Op, at, n uint64) *engine.Request {
	return &engine.Request{Terms: engine.Terms{Op: op}, Source: s.m.at + band + uintptr(at),
		Remote: engine.Remote{Segment: s.file, Offset: at}, Length: n}
}

// move carries out a request, and looks at every byte of memory and file.
func (s *stored) move(r *engine.Request) dispatch.Summary {
	id, err := s.e.Move(r)
	require.NoError(s.t, err)
	end := finish(s.t, s.e, id)
	require.Equal(s.t, dispatch.Completed, end.State, "%v", end.Err)
	at, n := r.Remote.Offset, r.Length
	if r.Op == transport.Write {
		copy(s.disk[at:at+n], s.mine[band+at:])
	} else {
		copy(s.mine[band+at:], s.disk[at:at+n])
	}
	content, err := os.ReadFile(s.path)
	require.NoError(s.t, err)
	require.Equal(s.t, s.disk, content, "%v of %d bytes at %d", r.Op, n, at)
	now, err := s.m.all()
	require.NoError(s.t, err)
	require.Equal(s.t, s.mine, now, "%v of %d bytes at %d", r.Op, n, at)
	return end
}

// routes are those of a request, "+" for the staged ones.
func (s *stored) routes(r *engine.Request) (list []string, x *engine.Explanation) {
	x, err := s.e.Explain(r)
	require.NoError(s.t, err)
	for _, route := range x.Routes {
		list = append(list, strings.Repeat("+", route.Hops-1)+route.Transport)
	}
	return list, x
}

func why(x *engine.Explanation, transport string) string {
	i := slices.IndexFunc(x.Rejected, func(r engine.ExplainedRejected) bool { return r.Transport == transport })
	if i < 0 {
		return ""
	}
	return x.Rejected[i].Reason
}

// Memory of a device reaches a file and comes back, without a slot of a pool, at any offset and length. A sync comes
// behind the last byte as for other transports.
func TestFilesAndDevicesMeetByGDS(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	io := cufile.Settings{"NATIVE": "2", "DELAY_US": "50", "SEED": fmt.Sprint(seed >> 40)}
	cufile.Run(t, io, nil, nil, func(t *testing.T, io *cufile.Loaded, _ *fake.Loaded) {
		s := store(t, t.TempDir(), switchedOn)
		list, x := s.routes(s.request(transport.Write, 0, size))
		require.Equal(t, "gds", x.Taken)
		require.Equal(t, []string{"gds", "+io-uring", "+buf-io"}, list)
		require.Contains(t, x.Routes[0].Detail, "cuFile 1.9 with nvidia-fs")
		r := rand.New(rand.NewPCG(seed, 0))
		for range 6 {
			n := 1 + r.Uint64N(size)
			s.move(s.request(transport.Op(r.IntN(2)), r.Uint64N(size-n+1), n))
		}
		durable := s.request(transport.Write, 0, size)
		durable.Durability = terms.DurabilityData
		s.move(durable)
		require.Positive(t, io.Stats().Moved)
	})
}

// In compat mode the library copies through memory of the host. Then a staged route comes first, unless the request or
// a policy asks for gds.
func TestCompatModeComesBehindStaging(t *testing.T) {
	cufile.Run(t, nil, nil, nil, func(t *testing.T, io *cufile.Loaded, _ *fake.Loaded) {
		s := store(t, t.TempDir(), switchedOn)
		staged := s.request(transport.Write, 0, size)
		list, x := s.routes(staged)
		require.Equal(t, []string{"+io-uring", "+buf-io", "gds"}, list)
		require.Contains(t, x.Routes[2].Detail, "cuFile 1.9 in compat mode")
		s.move(staged)
		require.Zero(t, io.Stats().Moved)
		hinted := s.request(transport.Read, 0, size)
		hinted.Hint = uint8(numberOf(t, "gds"))
		list, _ = s.routes(hinted)
		require.Equal(t, []string{"gds", "+io-uring", "+buf-io"}, list)
		s.move(hinted)
		require.EqualValues(t, size, io.Stats().Moved)
	})
}

func TestAPolicyPutsCompatModeFirst(t *testing.T) {
	cufile.Run(t, nil, nil, nil, func(t *testing.T, io *cufile.Loaded, _ *fake.Loaded) {
		s := store(t, t.TempDir(), map[string]any{"transports/gds/enable": true,
			"policy": []any{map[string]any{
				"segment_type": "file", "transports": []any{"gds", "io-uring"}}}})
		list, _ := s.routes(s.request(transport.Write, 0, size))
		require.Equal(t, []string{"gds", "+io-uring"}, list)
		s.move(s.request(transport.Write, 0, size))
		require.Positive(t, io.Stats().Moved)
	})
}

func numberOf(t *testing.T, name string) int {
	lines := all.Transports()
	i := slices.IndexFunc(lines, func(l config.Transport) bool { return l.Name == name })
	require.GreaterOrEqual(t, i, 0)
	return int(lines[i].Number)
}

// Each failure of cuFile leads to the staged route, and the user sees bytes that arrived.
func TestFailuresOfGDSFallToStaging(t *testing.T) {
	type failure struct {
		function string
		code     int
	}
	late := []failure{{"io", int(unix.EIO)}, {"short", 1}}
	for name, c := range map[string]struct {
		absent []string
		list   []failure
	}{
		"batches": {nil, append(late, failure{"cuFileBatchIOSubmit", 5030}, failure{"cuFileBatchIOSetUp", 5030},
			failure{"cuFileBatchIOGetStatus", 5030})},
		"threads": {cufile.BatchCalls, append(late, failure{"cuFileRead", 5011}, failure{"cuFileWrite", 5036})},
	} {
		t.Run(name, func(t *testing.T) {
			cufile.Run(t, cufile.Settings{"NATIVE": "2"}, nil, c.absent,
				func(t *testing.T, io *cufile.Loaded, _ *fake.Loaded) {
					for _, f := range c.list {
						for _, op := range []transport.Op{transport.Write, transport.Read} {
							t.Run(fmt.Sprint(f.function, op), func(t *testing.T) {
								fallsToStaging(t, io, f.function, f.code, op)
							})
						}
					}
					require.Zero(t, io.Stats().UnderWay)
				})
		})
	}
}

// fallsToStaging lets a call of the library fail in the middle of a transfer, for an engine of its own.
func fallsToStaging(t *testing.T, io *cufile.Loaded, function string, code int, op transport.Op) {
	s := store(t, t.TempDir(), switchedOn)
	before := io.Stats().Faults
	nth := 2
	if function == "cuFileBatchIOSetUp" {
		nth = 1
	}
	io.Inject(function, nth, code)
	s.move(s.request(op, 777, size-7777))
	other := function == "cuFileRead" && op == transport.Write || function == "cuFileWrite" && op == transport.Read
	require.Equal(t, !other, io.Stats().Faults > before)
	if other { // so that the next engine does not meet it
		s.move(s.request(1-op, 0, size))
	}
	s.move(s.request(1-op, 4096, 100_000))
	awaitSlots(t, s.e)
}

// Where cuFile takes no file or no memory, the reason stands in the explanation, and staging carries the bytes.
func TestRefusalsOfCuFileFallToStaging(t *testing.T) {
	for name, c := range map[string]struct {
		settings cufile.Settings
		folder   string
		more     map[string]any
		says     string
	}{
		"a file of tmpfs": {cufile.Settings{"NATIVE": "2", "TMPFS": "0"}, "/dev/shm", switchedOn, "as tmpfs"},
		"memory": {cufile.Settings{"NATIVE": "2", "PIN_MOST": "4096"}, "", switchedOn,
			"cannot be pinned (5036)"},
		"the driver":         {cufile.Settings{"COMPAT": "0"}, "", switchedOn, "compat mode is not allowed"},
		"it is switched off": {nil, "", nil, "transports/gds/enable is false"},
	} {
		t.Run(name, func(t *testing.T) {
			cufile.Run(t, c.settings, nil, nil, func(t *testing.T, io *cufile.Loaded, _ *fake.Loaded) {
				folder, err := os.MkdirTemp(c.folder, "tent-gds-")
				if err != nil && c.folder != "" {
					t.Skipf("no tmpfs: %v", err)
				}
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, os.RemoveAll(folder)) })
				s := store(t, folder, c.more)
				list, x := s.routes(s.request(transport.Write, 0, size))
				require.NotContains(t, list, "gds")
				require.Contains(t, why(x, "gds"), c.says)
				s.move(s.request(transport.Write, 0, size))
				s.move(s.request(transport.Read, 4096, 8192))
				require.Zero(t, io.Stats().Moved)
			})
		})
	}
}

// An engine that is told to use gds opens without the library, and says why it is not used.
func TestWithoutTheLibraryThereIsAReason(t *testing.T) {
	environment := []string{"TENT_LIBCUFILE=/nonexistent/libcufile.so.0"}
	fake.RunWith(t, fake.Driver{}, nil, environment, func(t *testing.T, _ *fake.Loaded) {
		s := store(t, t.TempDir(), switchedOn)
		_, x := s.routes(s.request(transport.Write, 0, size))
		require.Contains(t, why(x, "gds"), "no library: /nonexistent/libcufile.so.0")
		s.move(s.request(transport.Write, 0, size))
	})
}

// A cancelled transfer with a run under way in the library ends when that is done, or dirty. Its memory is given to
// nobody before.
func TestACancelledTransferWaitsForTheLibrary(t *testing.T) {
	cufile.Run(t, cufile.Settings{"NATIVE": "2"}, nil, nil, func(t *testing.T, io *cufile.Loaded, _ *fake.Loaded) {
		s := store(t, t.TempDir(), switchedOn)
		io.Hold(true)
		id, err := s.e.Move(s.request(transport.Read, 0, 1<<16))
		require.NoError(t, err)
		require.Eventually(t, func() bool { return io.Stats().UnderWay > 0 }, patience, time.Millisecond)
		_, err = s.e.Cancel(id, -1)
		require.NoError(t, err)
		require.False(t, s.e.Wait(id, 50*time.Millisecond).Terminal(), "the library still has its memory")
		io.Hold(false)
		end := finish(t, s.e, id)
		require.Contains(t, []dispatch.State{dispatch.Canceled, dispatch.Completed}, end.State)
		require.Zero(t, io.Stats().UnderWay)
	})
}
