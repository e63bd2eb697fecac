package tests

import (
	"context"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/all"
)

func inRedis(server *miniredis.Miniredis, name string) map[string]any {
	return map[string]any{"metadata_type": "redis", "metadata_servers": server.Addr(), "name": name,
		"metadata_timeout": 0.5}
}

// Engines find each other by name. While the service is away transfers go on, and an open says the cause; the
// entry of an engine that died leads to nobody.
func TestEnginesFindEachOtherByName(t *testing.T) {
	server := miniredis.RunT(t)
	owner, asker := openAll(t, inRedis(server, "decode-0")), openAll(t, inRedis(server, ""))
	kv, source := memory(t, 1<<16), memory(t, 1<<16)
	offer(t, owner, kv, "kv")
	offer(t, asker, source, "")
	to, err := asker.OpenSegment(t.Context(), "decode-0/kv")
	require.NoError(t, err)
	write := func(k int) {
		t.Helper()
		fill(source, k)
		batch, err := asker.Move(&engine.Request{Terms: request.Terms{Op: transport.Write}, Source: address(source),
			Length: uint64(len(source)), Remote: engine.Remote{Segment: to}})
		require.NoError(t, err)
		sum := ended(t, asker, batch)
		require.Equal(t, dispatch.Completed, sum.State, "%v", sum.Err)
		same(t, kv, k, 0)
	}
	write(1)
	_, err = asker.OpenSegment(t.Context(), "decode-1")
	require.Equal(t, errs.InvalidEntry, errs.CodeOf(err), "%v", err)

	server.Close()
	write(2)
	_, err = asker.OpenSegment(t.Context(), "decode-0")
	require.Equal(t, errs.MetadataError, errs.CodeOf(err), "%v", err)
	_, err = asker.OpenSegment(t.Context(), owner.Address()+"/kv")
	require.NoError(t, err, "an address needs no service")
	server.FlushAll()
	require.NoError(t, server.Restart())
	require.Eventually(t, func() bool {
		_, err := asker.OpenSegment(t.Context(), "decode-0/kv")
		return err == nil
	}, patience, 10*time.Millisecond, "a wiped service gets the name again")
	write(3)
}

// A name goes with its engine. One that died leaves an entry, which the next engine of that name takes over at once,
// and which leads to no other engine at that address.
func TestNamesEndWithTheirEngines(t *testing.T) {
	server := miniredis.RunT(t)
	asker := openAll(t, inRedis(server, ""))
	start := func(name string) (*engine.Engine, error) {
		c, err := config.Load(config.Options{Transports: all.Transports()}, inRedis(server, name))
		require.NoError(t, err)
		plugs := engine.Plugs(all.Factories()...)
		return engine.Open(context.Background(), engine.Options{Config: c, Transports: plugs})
	}
	first, err := start("kv-0")
	require.NoError(t, err)
	_, err = start("kv-0")
	require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, first.Address())
	entry, err := server.Get("tent/engines/kv-0")
	require.NoError(t, err)
	require.Empty(t, first.Close(patience, true))
	require.NoError(t, first.Forget())
	require.False(t, server.Exists("tent/engines/kv-0"))

	require.NoError(t, server.Set("tent/engines/kv-0", entry)) // as a process leaves it that was killed
	_, err = asker.OpenSegment(t.Context(), "kv-0")
	require.Error(t, err)
	second, err := start("kv-0")
	require.NoError(t, err)
	opened, err := asker.OpenSegment(t.Context(), "kv-0")
	require.NoError(t, err)
	require.NoError(t, asker.CloseSegment(opened))
	require.NoError(t, server.Set("tent/engines/old", `{"format":1,"address":"`+second.Address()+`","id":"00"}`))
	_, err = asker.OpenSegment(t.Context(), "old")
	require.Equal(t, errs.InvalidEntry, errs.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, "the entry is old")
	require.Empty(t, second.Close(patience, true))
	require.NoError(t, second.Forget())
}

// An entry of another engine at an engine's own address leads to nobody, and not to the memory of the asker. So it is
// where that one has ended, and where it listens on loopback of another network. The asker's own entry leads to itself.
func TestAnEntryOfAnotherEngineAtOnesOwnAddressIsOld(t *testing.T) {
	server := miniredis.RunT(t)
	e := openAll(t, inRedis(server, "prefill"))
	offer(t, e, memory(t, 4096), "kv")
	require.NoError(t, server.Set("tent/engines/decode", `{"format":1,"address":"`+e.Address()+`","id":"00"}`))
	for _, name := range []string{"decode", "decode/kv"} {
		_, err := e.OpenSegment(t.Context(), name)
		require.Equal(t, errs.InvalidEntry, errs.CodeOf(err), "%s: %v", name, err)
		require.ErrorContains(t, err, "the entry is old")
	}
	for _, name := range []string{"prefill", "prefill/kv", e.Address()} {
		opened, err := e.OpenSegment(t.Context(), name)
		require.NoError(t, err, name)
		require.Equal(t, name != "prefill/kv", opened == engine.Local, name)
	}
}

func TestAnEngineWithoutItsServiceDoesNotStart(t *testing.T) {
	server := miniredis.RunT(t)
	settings := inRedis(server, "kv-0")
	server.Close()
	c, err := config.Load(config.Options{Transports: all.Transports()}, settings)
	require.NoError(t, err)
	_, err = engine.Open(context.Background(), engine.Options{Config: c, Transports: engine.Plugs(all.Factories()...)})
	require.Equal(t, errs.MetadataError, errs.CodeOf(err), "%v", err)
}
