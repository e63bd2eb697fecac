package all

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// compiled builds a plug-in of ../plugin as a user would.
func compiled(t testing.TB, source, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.Chmod(filepath.Dir(path), 0o755))
	out, err := exec.Command("gcc", "-std=c99", "-O2", "-shared", "-fPIC", "-pthread", "-I../plugin/include",
		source, "-o", path).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NoError(t, os.Chmod(path, 0o755))
	return path
}

// openedWith opens an engine as the binding does: the setting names the plug-ins, which bring settings of their own.
func openedWith(t *testing.T, settings map[string]any) (*engine.Engine, error) {
	t.Helper()
	sources, err := config.Read(nil, settings)
	require.NoError(t, err)
	paths, err := sources.PlugIns()
	require.NoError(t, err)
	plugIns := PlugIns(paths)
	c, err := sources.Load(Transports(plugIns...))
	if err != nil {
		return nil, err
	}
	e, err := engine.Open(t.Context(), engine.Options{Config: c, Platforms: Platforms(paths...),
		Transports: engine.Plugs(Factories(plugIns...)...)})
	if err == nil {
		t.Cleanup(func() { require.Empty(t, e.Close(patience, true)); require.NoError(t, e.Forget()) })
	}
	return e, err
}

// moved writes from one engine to another, and returns the transport that an explanation names.
func moved(t *testing.T, a, b *engine.Engine) *engine.Explanation {
	t.Helper()
	for i := range from {
		from[i] = byte(i*13 + i>>8)
	}
	clear(to[:])
	_, err := a.Register(memoryOf(from, "", mem.LocalReadWrite))
	require.NoError(t, err)
	r := write(t, a, b, uintptr(unsafe.Pointer(from)))
	require.Equal(t, *from, *to)
	explained, err := a.Explain(r)
	require.NoError(t, err)
	return explained
}

// write writes the bytes at an address into the memory of another engine.
func write(t *testing.T, a, b *engine.Engine, source uintptr) *engine.Request {
	t.Helper()
	_, err := b.Register(memoryOf(to, "to", mem.GlobalReadWrite))
	require.NoError(t, err)
	peer, err := a.OpenSegment(context.Background(), b.Address()+"/to")
	require.NoError(t, err)
	r := &engine.Request{Terms: engine.Terms{Op: transport.Write}, Source: source,
		Length: uint64(len(from)), Remote: engine.Remote{Segment: peer}}
	id, err := a.Move(r)
	require.NoError(t, err)
	require.True(t, a.Wait(id, 20*time.Second).Terminal())
	sum, err := a.Summary(id)
	require.NoError(t, err)
	require.Equal(t, dispatch.Completed, sum.State, "%+v", sum)
	require.NoError(t, a.FreeBatch(id))
	return r
}

func TestAPlugInIsATransportLikeAnyOther(t *testing.T) {
	path := compiled(t, "../plugin/example/inside.c", "inside.so")
	settings := map[string]any{"plugins": []any{filepath.Dir(path)}, "transports/inside/trusting": true,
		"transports/inside/rail_error_threshold": 5}
	a, err := openedWith(t, settings)
	require.NoError(t, err)
	b, err := openedWith(t, settings)
	require.NoError(t, err)
	require.Equal(t, "inside", a.Transports()[0])
	explained := moved(t, a, b)
	require.Equal(t, "inside", explained.Taken, "it is preferred: somebody asked for it")
	require.Equal(t, "plug-in "+path, explained.Routes[0].Detail)
}

// The others are off: on a machine that starves the plug-in's worker they would rightly take the bytes over.
func TestTheBytesOfAPlugInAreCountedAsAnyOthers(t *testing.T) {
	path := compiled(t, "../plugin/example/inside.c", "inside.so")
	settings := map[string]any{"plugins": []any{path}, "transports/inside/trusting": true,
		"transports/shm/enable": false, "transports/tcp/enable": false}
	a, err := openedWith(t, settings)
	require.NoError(t, err)
	b, err := openedWith(t, settings)
	require.NoError(t, err)
	require.Equal(t, "inside", moved(t, a, b).Taken)
	require.EqualValues(t, len(from), a.Metrics()[`tent_write_bytes_total{transport="inside"}`])
}

func TestAPlugInThatBreaksTheContractLeavesItsWorkToOthers(t *testing.T) {
	path := compiled(t, "../plugin/testdata/abuse.c", "libtwice.so")
	settings := map[string]any{"plugins": []any{path}, "transports/shm/enable": false}
	a, err := openedWith(t, settings)
	require.NoError(t, err)
	b, err := openedWith(t, settings)
	require.NoError(t, err)
	require.Equal(t, "tcp", moved(t, a, b).Taken)
}

func TestAPlugInThatCannotBeUsedIsNamedAndNobodyIsHeldUp(t *testing.T) {
	path := compiled(t, "../plugin/testdata/abuse.c", "libother-major.so")
	e, err := openedWith(t, map[string]any{"plugins": []any{path}})
	require.NoError(t, err)
	explained := moved(t, e, e)
	require.NotEmpty(t, explained.Taken)
	require.Contains(t, explained.Rejected, engine.ExplainedRejected{Transport: "other-major",
		Reason: "plug-in " + path + ": it is made for version 2.2 of the interface, and this is 1.2"})
	_, err = openedWith(t, map[string]any{"plugins": []any{path}, "transports/other-major/enable": true})
	require.Equal(t, errs.DeviceNotFound, errs.CodeOf(err), "somebody counts on it: %v", err)
}

func TestMemoryOfADevicePlugInIsFoundAndMoved(t *testing.T) {
	path := compiled(t, "../plugin/example/memory.c", "memory.so")
	platforms := Platforms(path)
	device := platforms[len(platforms)-1]
	addr, err := device.Allocate(1, uint64(len(from)))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, device.Free(addr, uint64(len(from)))) }) // behind the ends of the engines
	a, err := openedWith(t, map[string]any{"plugins": []any{path}})
	require.NoError(t, err)
	b, err := openedWith(t, map[string]any{})
	require.NoError(t, err)
	require.Contains(t, a.Platforms(), "memory")
	for i := range from {
		from[i] = byte(i*17 + i>>8)
	}
	clear(to[:])
	require.NoError(t, device.Copy(addr, uintptr(unsafe.Pointer(from)), uint64(len(from))))
	_, err = a.Register(engine.Memory{Addr: addr, Size: uint64(len(from)), Location: mem.Wildcard,
		Permission: mem.LocalReadWrite})
	require.NoError(t, err)
	write(t, a, b, addr)
	require.Equal(t, *from, *to)
}

func TestAPlugInMayBringATransportThatThisBuildLacks(t *testing.T) {
	path := compiled(t, "../plugin/testdata/abuse.c", "libub.so")
	c, err := config.Load(config.Options{Transports: Transports(PlugIns([]string{path})...)})
	require.NoError(t, err)
	require.True(t, c.Enabled("ub"))
	require.EqualValues(t, 11, c.NumberOf("ub"), "with the number that upstream gave it")
}
