package shm

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/leaks"
	"github.com/tent-engine/tent/transports/host/access"
	"github.com/tent-engine/tent/transports/host/hazard"
	"github.com/tent-engine/tent/transports/host/manifest"
	"github.com/tent-engine/tent/transports/host/vm"
	"github.com/tent-engine/tent/transports/kit"
)

const within = 20 * time.Second // of things that take no time

// soon fails where a call does not return.
func soon(t *testing.T, call func(), what string) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); call() }()
	select {
	case <-done:
	case <-time.NewTimer(within).C:
		require.FailNow(t, "it does not return: "+what)
	}
}

// A file of the peer is mapped twice, for reading and for writing. The end of the one does not wait for a moment
// without copies by the other.
func TestAMappingGoesWhileAnotherOfItsFileIsInUse(t *testing.T) {
	a, number, _ := newAlone(t, Settings{reach: reachMapped})
	r, err := a.tr.Allocate(transport.Allocation{Size: 2 * 4096, Location: "cpu:0"})
	require.NoError(t, err)
	defer func() { require.NoError(t, a.tr.Free(r)) }()
	l := a.tr.links.Lookup(number)
	part := func(at uintptr, fixed bool) transport.RemoteKey {
		_, d, err := a.tr.Register(t.Context(), mem.Region{Addr: r.Addr + at, Size: 4096, ReadOnly: fixed, Fd: -1})
		require.NoError(t, err)
		key, err := a.tr.Import(number, d)
		require.NoError(t, err)
		return key
	}
	read, written := part(0, true), part(4096, false)
	require.Len(t, l.mappings, 2)
	slot := l.view.Enter(l.find(written).name, 0, 0)
	require.GreaterOrEqual(t, slot, hazard.Slot(0))
	defer l.view.Leave(slot)
	soon(t, func() { a.tr.Forget(number, read) }, "Forget")
	require.Len(t, l.mappings, 1)
}

// A copier that a page fault holds up keeps its mapping, and nobody waits for it for ever.
func TestAMappingOutlivesACopierInside(t *testing.T) {
	a, number, _ := newAlone(t, Settings{reach: reachMapped})
	r, _, remote := a.mapped(t, number)
	mem.Bytes(r.Addr, 4096)[0] = 7
	l := a.tr.links.Lookup(number)
	from := l.find(remote)
	m := from.on
	slot := l.view.Enter(from.name, 0, 0)
	require.GreaterOrEqual(t, slot, hazard.Slot(0))
	soon(t, func() { a.tr.Forget(number, remote) }, "Forget")
	require.EqualValues(t, 7, mem.Bytes(from.base, 4096)[0], "the copier goes on")
	require.Empty(t, l.mappings, "the next import maps it anew")
	l.view.Leave(slot)
	require.NoError(t, unix.MunmapPtr(mem.Pointer(m.addr), m.size))
}

// A link that leaves in the middle of a copy does not say that nobody is inside: the owner would not wait for it.
func TestALinkWithACopierInsideDoesNotSayThatItHasLeft(t *testing.T) {
	for _, inside := range []bool{false, true} {
		a, number, _ := newAlone(t, Settings{reach: reachMapped})
		b := area(t, 4096)
		key, _, err := a.tr.Register(t.Context(), mem.Region{Addr: mem.AddressOf(b), Size: 4096, Fd: -1,
			Permission: mem.GlobalReadWrite})
		require.NoError(t, err)
		name := a.tr.regions.Lookup(key).name
		l := a.tr.links.Lookup(number)
		slot := hazard.Slot(-1)
		if inside {
			slot = l.view.Enter(name, 0, 0)
			require.GreaterOrEqual(t, slot, hazard.Slot(0))
		}
		a.tr.Detach(number)
		soon(t, func() { <-l.Done() }, "the link's goroutine")
		require.Equal(t, inside, a.tr.Grants() == 1)
		if inside {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			self := a.Self()
			require.Error(t, a.tr.Revoke(ctx, key, &self, transport.ForGood), "the copier is inside still")
			cancel()
			l.view.Leave(slot)
			require.NoError(t, a.tr.Revoke(t.Context(), key, &self, transport.ForGood))
		}
	}
}

// All slots of a page say that they are taken, as in one that its owner has spoiled. The slice ends with its link, or
// in time by itself.
func TestASliceThatFindsNoSlotEndsWithItsLink(t *testing.T) {
	for name, end := range map[string]func(a *alone, number transport.Link){
		"detached":         func(a *alone, number transport.Link) { a.tr.Detach(number) },
		"the peer is gone": func(a *alone, number transport.Link) { a.tr.links.Lookup(number).PeerEnded() },
		"nothing ends":     func(*alone, transport.Link) {},
	} {
		t.Run(name, func(t *testing.T) {
			a, number, rail := newAlone(t, Settings{reach: reachMapped})
			_, key, remote := a.mapped(t, number)
			l := a.tr.links.Lookup(number)
			from := l.find(remote)
			var slots []hazard.Slot
			for i := range uint32(hazard.Slots) {
				slots = append(slots, l.view.Enter(from.name, 0, i))
			}
			leave := sync.OnceFunc(func() {
				for _, s := range slots {
					l.view.Leave(s)
				}
			})
			defer leave()
			r := a.tr.regions.Lookup(key)
			s := &transport.Slice{Op: transport.Write, Rail: rail, LocalKey: key, RemoteKey: remote, Local: r.addr,
				Length: 64}
			done := make(chan struct{})
			go func() { defer close(done); a.tr.Submit([]*transport.Slice{s}) }()
			require.Eventually(t, func() bool { return l.owing.Load() == 1 }, within, time.Millisecond)
			end(a, number)
			soon(t, func() { <-done }, "a copier")
			require.Zero(t, l.owing.Load(), "it has completed")
			leave()
			if name != "detached" {
				a.tr.Detach(number)
			}
		})
	}
}

// A peer that left while its greeting was answered is not named as tracer: nobody would take its place from it.
func TestTheTracerIsNoPeerThatHasLeft(t *testing.T) {
	a := &alone{up: make(chan transport.RailInfo, 8)}
	tr, err := Factory{}.Open(t.Context(), Settings{reach: reachMapped}, a, a)
	require.NoError(t, err)
	a.tr = tr.(*Transport)
	defer func() { require.NoError(t, tr.Close(context.Background())) }()
	var met *access.Grant
	a.tr.Welcome = func(g *access.Grant) int32 { met = g; return vm.AnyTracer }
	number, err := tr.Attach(a.Self())
	require.NoError(t, err)
	<-a.up
	first := &access.Grant{PID: 1}
	list := tracerList{named: first}
	require.EqualValues(t, 1, list.enter(met, false))
	require.Len(t, list.wait, 1, "it is the next one")
	list.release(met)
	require.Empty(t, list.wait)
	tr.Detach(number)
	require.Eventually(t, met.Ended, within, time.Millisecond)
	list.enter(met, false)
	require.Empty(t, list.wait)
}

// Memory that is allocated beside Close is either freed later, without files meanwhile, or was never there.
func TestAllocationsBesideCloseKeepNoFile(t *testing.T) {
	before := leaks.Descriptors(t)
	a := &alone{up: make(chan transport.RailInfo, 8)}
	tr, err := Factory{}.Open(t.Context(), Settings{}, a, a)
	require.NoError(t, err)
	a.tr = tr.(*Transport)
	late := &allocation{size: 4096, fd: -1, readable: -1}
	require.NoError(t, a.tr.create(late, -1), "it has begun before Close")
	require.NoError(t, tr.Close(t.Context()))
	require.False(t, a.tr.memory.add(late))
	late.release()
	require.Equal(t, before, leaks.Descriptors(t))
}

// A signal in the middle of a call is no reason to fail.
func TestAnInterruptedCallIsMadeAgain(t *testing.T) {
	calls := 0
	err := uninterrupted(func() error {
		if calls++; calls < 3 {
			return unix.EINTR
		}
		return unix.ENOSPC
	})
	require.ErrorIs(t, err, unix.ENOSPC)
	require.Equal(t, 3, calls)
}

// A greeting is answered while its peer leaves. The answer names the file of the page, never one that has its number by
// now.
func TestAnAnswerNamesThePageAlone(t *testing.T) {
	a := &alone{up: make(chan transport.RailInfo, 8)}
	tr, err := Factory{}.Open(t.Context(), Settings{}, a, a)
	require.NoError(t, err)
	a.tr = tr.(*Transport)
	defer func() { require.NoError(t, tr.Close(context.Background())) }()
	hello := access.Hello(version, access.NewToken(), manifest.Claim{})
	answer := func() []byte {
		b, err := tr.Serve(t.Context(), a.Self(), hello)
		require.NoError(t, err)
		return b
	}
	expected := answer()
	token := expected[1:][:len(access.Token{})]
	a.tr.Welcome = func(*access.Grant) int32 {
		_, err := tr.Serve(t.Context(), a.Self(), access.Call(version, access.CallLeave, access.Token(token)))
		require.NoError(t, err)
		return vm.AnyTracer
	}
	require.Equal(t, expected, answer())
	require.Zero(t, a.tr.Grants())
}

// A peer says that it has left while one of its copiers is inside. The owner believes the page.
func TestARevocationWaitsForACopierOfAPeerThatSaysItHasLeft(t *testing.T) {
	a := &alone{up: make(chan transport.RailInfo, 8)}
	tr, err := Factory{}.Open(t.Context(), Settings{}, a, a)
	require.NoError(t, err)
	a.tr = tr.(*Transport)
	defer func() { require.NoError(t, tr.Close(context.Background())) }()
	b := area(t, 4096)
	key, _, err := tr.Register(t.Context(), mem.Region{Addr: mem.AddressOf(b), Size: 4096, Fd: -1})
	require.NoError(t, err)
	welcome, err := tr.Serve(t.Context(), a.Self(), access.Hello(version, access.NewToken(), manifest.Claim{}))
	require.NoError(t, err)
	r := kit.NewReader(welcome)
	r.U8()
	token := access.Token(r.Bytes(len(access.Token{})))
	_, _, _, _, _ = r.U32(), r.U64(), r.U32(), r.U64(), r.U64() // the claim
	view, err := hazard.NewView(int(r.U32()))
	require.NoError(t, err)
	slot := view.Enter(a.tr.regions.Lookup(key).name, 0, 0)
	require.GreaterOrEqual(t, slot, hazard.Slot(0))

	left := make(chan struct{})
	go func() {
		defer close(left)
		_, _ = tr.Serve(context.Background(), a.Self(), access.Call(version, access.CallLeave, token))
	}()
	require.Eventually(t, func() bool { return a.tr.Grants() == 0 }, within, time.Millisecond)
	self := a.Self()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	require.Error(t, tr.Revoke(ctx, key, &self, transport.ForGood))
	view.Leave(slot)
	require.NoError(t, tr.Revoke(t.Context(), key, &self, transport.ForGood))
	<-left
}
