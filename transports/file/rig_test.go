package file

import (
	"context"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"math/rand/v2"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/leaks"
	"github.com/tent-engine/tent/transports/transporttest"
)

// patience is how long a wait may last before its test fails.
const patience = 20 * time.Second

// rig is one transport with a sink that records, for properties that the conformance suite cannot ask: real files and
// their troubles.
type rig struct {
	t    testing.TB
	tr   transport.Transport
	name string

	mu      sync.Mutex
	changed *sync.Cond
	rails   map[transport.Link]transport.Rail
	ends    map[*transport.Slice]transport.Completion
	order   []*transport.Slice // as they completed
}

// both runs a test over each transport of the family.
func both(t *testing.T, s Settings, test func(t *testing.T, r *rig)) {
	for _, f := range []transport.Factory{UringFactory{}, BufferedFactory{}} {
		t.Run(f.Name(), func(t *testing.T) { test(t, newRig(t, f, s)) })
	}
}

// newRig opens a transport. When its test ends it closes it, and looks whether anything was left.
func newRig(t testing.TB, f transport.Factory, s Settings) *rig {
	if err := f.Check(); err != nil {
		t.Skipf("%s cannot work here: %v", f.Name(), err)
	}
	before, fds := goleak.IgnoreCurrent(), leaks.Descriptors(t)
	r := &rig{t: t, name: f.Name(), rails: map[transport.Link]transport.Rail{},
		ends: map[*transport.Slice]transport.Completion{}}
	r.changed = sync.NewCond(&r.mu)
	var err error
	r.tr, err = f.Open(t.Context(), s, r, r)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, r.tr.Close(ctx))
		require.NoError(t, goleak.Find(before))
		require.Equal(t, fds, leaks.Descriptors(t), "file descriptors")
	})
	return r
}

func (r *rig) Complete(list []transport.Completion) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range list {
		if _, twice := r.ends[c.Slice]; twice {
			r.t.Errorf("a slice completed twice: %v", c.Err)
		}
		r.ends[c.Slice] = c
		r.order = append(r.order, c.Slice)
	}
	r.changed.Broadcast()
}

func (r *rig) RailUp(info transport.RailInfo) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rails[info.Rail.Link] = info.Rail
	r.changed.Broadcast()
}

func (r *rig) Ready(transport.Rail)                 { r.mu.Lock(); r.changed.Broadcast(); r.mu.Unlock() }
func (r *rig) Progress(transport.Rail)              {}
func (r *rig) RailDown(transport.Rail, *errs.Error) {}
func (r *rig) LinkDown(transport.Link, *errs.Error) {}
func (r *rig) Notified(transport.Peer, []byte) bool { return true }
func (r *rig) Self() transport.Peer                 { return transport.Peer{Address: "self:1"} }

func (r *rig) Describe(transport.LocalKey, transport.Descriptor) {}
func (r *rig) Refused(transport.Refusal, string, error)          {}

func (r *rig) Log() *slog.Logger {
	return slog.New(slog.NewTextHandler(io.Discard, nil))
}

func (r *rig) Addresses() []netip.Addr { return nil }

// Fenced implements transport.Sink.
func (r *rig) Fenced(transport.Link, transport.RemoteKey, transport.Epoch) {}

func (r *rig) Call(context.Context, transport.Peer, []byte) ([]byte, error) {
	return nil, errs.New(errs.NotImplemented, "call", "files answer nothing")
}

// await waits for a condition on the record.
func (r *rig) await(what string, cond func() bool) {
	r.t.Helper()
	late := time.AfterFunc(patience, func() { r.mu.Lock(); r.changed.Broadcast(); r.mu.Unlock() })
	defer late.Stop()
	limit := time.Now().Add(patience)
	r.mu.Lock()
	defer r.mu.Unlock()
	for !cond() {
		require.True(r.t, time.Now().Before(limit), "waited in vain for %s", what)
		r.changed.Wait()
	}
}

// opened is a file as slices name it.
type opened struct {
	r    *rig
	file transport.FileCard
	link transport.Link
	rail transport.Rail
	key  transport.RemoteKey
}

func (r *rig) filer() transport.Filer {
	f, is := transport.Find[transport.Filer](r.tr)
	require.True(r.t, is)
	return f
}

// open opens, attaches and imports a file.
func (r *rig) open(spec transport.FileSpec) *opened {
	r.t.Helper()
	f, err := r.filer().OpenFile(context.Background(), spec)
	require.NoError(r.t, err)
	o := &opened{r: r, file: f}
	o.link, err = r.tr.Attach(transport.Peer{Address: scheme + f.Path})
	require.NoError(r.t, err)
	o.key, err = r.tr.Import(o.link, f.Encode())
	require.NoError(r.t, err)
	o.rail = r.rails[o.link]
	return o
}

// region is registered memory. Its bytes count from where it begins; the memory around it has guard bands.
type region struct {
	around *transporttest.Memory
	from   uint64 // in around
	size   uint64
	addr   uintptr
	key    transport.LocalKey
}

// memory registers size bytes that begin at a page, or at an odd address.
func (r *rig) memory(size int, aligned bool) *region {
	r.t.Helper()
	around := transporttest.NewMemory(r.t, size+8192, 1)
	m := &region{around: around, size: uint64(size)}
	if aligned {
		m.from = uint64(4096-around.Addr%4096) % 4096
	}
	m.addr = around.Addr + uintptr(m.from)
	around.Fill(999, 0, around.Size)
	var d transport.Descriptor
	var err error
	m.key, d, err = r.tr.Register(r.t.Context(), mem.Region{Addr: m.addr, Size: m.size, Kind: mem.Host,
		Location: "cpu:0", Fd: -1})
	require.NoError(r.t, err)
	require.Nil(r.t, d)
	r.t.Cleanup(func() { // every slice has ended: tests wait for theirs
		require.NoError(r.t, around.CheckBands())
		require.NoError(r.t, around.Check(999, 0, 0, m.from), "in front of the region")
		end := m.from + m.size
		require.NoError(r.t, around.Check(999, end, end, around.Size-end), "behind the region")
		around.Free()
	})
	return m
}

func (m *region) fill(tag, at, n uint64) {
	b := make([]byte, n)
	transporttest.Pattern(b, tag, at)
	m.around.Store(m.from+at, b)
}

// check returns the mistake in [at, at+n), which should hold the pattern of a tag as it is at from.
func (m *region) check(tag, from, at, n uint64) error { return m.around.Check(tag, from, m.from+at, n) }

func (o *opened) slice(op transport.Op, m *region, at, offset, length uint64) *transport.Slice {
	return &transport.Slice{Op: op, Rail: o.rail, LocalKey: m.key, RemoteKey: o.key, Local: m.addr + uintptr(at),
		Remote: offset, Length: length}
}

// send submits slices until all are taken.
func (r *rig) send(list ...*transport.Slice) {
	for rest := list; len(rest) > 0; {
		n := r.tr.Submit(rest)
		if rest = rest[n:]; len(rest) > 0 {
			r.mu.Lock()
			before := len(r.ends)
			r.mu.Unlock()
			if n == 0 {
				r.await("room", func() bool { return len(r.ends) >= before })
			}
		}
	}
}

// wait returns the ends of slices.
func (r *rig) wait(list ...*transport.Slice) []transport.Completion {
	r.t.Helper()
	r.await("completions", func() bool {
		for _, s := range list {
			if _, ended := r.ends[s]; !ended {
				return false
			}
		}
		return true
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	var ends []transport.Completion
	for _, s := range list {
		ends = append(ends, r.ends[s])
	}
	return ends
}

// must moves slices and requires success.
func (r *rig) must(list ...*transport.Slice) {
	r.t.Helper()
	r.send(list...)
	for _, end := range r.wait(list...) {
		require.Nil(r.t, end.Err)
		require.Equal(r.t, end.Slice.Length, end.Bytes)
	}
}

// fails moves one slice and returns why it could not be.
func (r *rig) fails(s *transport.Slice) *errs.Error {
	r.t.Helper()
	r.send(s)
	end := r.wait(s)[0]
	require.NotNil(r.t, end.Err, "%s of %d bytes at %d was carried out", s.Op, s.Length, s.Remote)
	require.Zero(r.t, end.Bytes)
	return end.Err
}

// seeded gives the random numbers of a test, from TENT_TEST_SEED or anew, and prints the seed when the test fails.
func seeded(t *testing.T) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("TENT_TEST_SEED"); text != "" {
		parsed, err := strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, "TENT_TEST_SEED")
		seed = parsed
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("TENT_TEST_SEED=%d", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 0))
}

// onDisk is the path of a file that does not exist yet.
func onDisk(t testing.TB) string { return filepath.Join(t.TempDir(), "kv.bin") }

// content reads a file past everything of ours.
func content(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return b
}
