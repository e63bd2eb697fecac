package transporttest

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"runtime/pprof"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/leaks"
)

// World is everything that one test opened: nodes, memories, and the ledger of slices. One mutex guards it all, and
// every change wakes the goroutines in Await.
//
// When its test ends, it closes the nodes and checks the invariants of every test: each accepted slice completed
// exactly once and no other did, guard bands are whole, no goroutine and no file descriptor is left, nobody broke the
// contract of Sink and Host.
type World struct {
	t    *testing.T
	h    Harness
	leak goleak.Option
	fds  int

	mu         sync.Mutex
	changed    *sync.Cond
	done       bool
	nodes      map[string]*Node // by address, the nodes that answer there
	opened     []*Node
	ledger     map[uint64]*entry // by Slice.Id
	memories   []*Memory
	complaints []string
	downs      []string // rails that went down, and why: shown where a test fails
	unproved   bool     // a slice may be left without its completion: its peer could not be asked up to the end
	births     uint64
	fences     uint64   // epochs given out
	folders    []string // of files.go; they go at the end

	silenceEnded bool // the process at silentAddress is gone: its host refuses
}

// entry is the life of one slice.
type entry struct {
	slice     *transport.Slice
	submitted bool // at least once handed to Submit
	accepted  bool
	ends      int
	end       transport.Completion
}

// NewWorld starts a test. The world ends with it.
func NewWorld(t *testing.T, h Harness) *World {
	if h.Warm != nil {
		h.Warm(t)
	}
	w := &World{t: t, h: h, leak: goleak.IgnoreCurrent(), fds: leaks.Descriptors(t), nodes: map[string]*Node{},
		ledger: map[uint64]*entry{}}
	w.changed = sync.NewCond(&w.mu)
	t.Cleanup(w.finish)
	return w
}

// Open starts a node at the address "name:1", with as many rails as the transport cares to have.
func (w *World) Open(name string) *Node { return w.open(name, 2, nil) }

// open is Open with a sink that counts, nil for the one that records.
func (w *World) open(name string, rails int, sink *counter) *Node {
	n := &Node{w: w, name: name, described: map[transport.LocalKey]transport.Descriptor{},
		rails: map[railKey]transport.RailInfo{}, newest: map[railKey]uint32{},
		ended: map[transport.Rail]bool{},
		ready: map[transport.Rail]int{}, linkDown: map[transport.Link]*errs.Error{},
		epochs: map[transport.Link]transport.Epoch{}}
	n.Peer = transport.Peer{Address: name + ":1", Name: name, MachineID: "machine", ID: transport.NumberedID(w.birth())}
	if w.h.Join != nil {
		n.plane = w.h.Join(w.t, n)
	}
	var into transport.Sink = (*recorder)(n)
	if sink != nil {
		sink.Sink = into
		into = sink
	}
	n.Transport = w.h.Open(w.t, Config{Name: name, Host: host{n}, Sink: into, Rails: rails})
	require.NotNil(w.t, n.Transport)
	n.Info = n.Transport.Info()
	w.mu.Lock()
	w.nodes[n.Peer.Address] = n
	w.opened = append(w.opened, n)
	w.mu.Unlock()
	return n
}

// Await waits until cond, which is called with the world locked, is true. It fails the test when that lasts too long.
func (w *World) Await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	if !w.wait(cond) {
		var stacks bytes.Buffer
		_ = pprof.Lookup("goroutine").WriteTo(&stacks, 1)
		w.mu.Lock()
		complaints := w.complaints
		w.mu.Unlock()
		require.FailNow(t, "waited in vain for: "+what, "complaints so far: %v\n%s", complaints, stacks.String())
	}
}

// wait is Await for goroutines other than the test's.
func (w *World) wait(cond func() bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if cond() {
		return true
	}
	expired := false
	timer := time.AfterFunc(w.h.Patience, func() {
		w.mu.Lock()
		expired = true
		w.changed.Broadcast()
		w.mu.Unlock()
	})
	defer timer.Stop()
	for !cond() && !expired {
		w.changed.Wait()
	}
	return cond()
}

// locked runs f with the world locked and wakes the waiters.
func (w *World) locked(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
	w.changed.Broadcast()
}

func (w *World) complain(format string, args ...any) {
	w.complaints = append(w.complaints, fmt.Sprintf(format, args...))
}

// report is complain for callers that have not locked the world.
func (w *World) report(format string, args ...any) { w.locked(func() { w.complain(format, args...) }) }

// finish closes the nodes and checks the invariants of every test.
func (w *World) finish() {
	w.mu.Lock()
	if w.done {
		w.mu.Unlock()
		return
	}
	w.done = true
	opened := w.opened
	w.mu.Unlock()
	for _, n := range opened {
		n.Close(w.t)
	}
	w.mu.Lock()
	for id, e := range w.ledger {
		switch {
		case e.accepted && e.ends == 0 && !w.unproved:
			w.complain("slice %d (%s of %d bytes on %+v) was accepted and never completed", id, e.slice.Op,
				e.slice.Length, e.slice.Rail)
		case !e.accepted && e.ends > 0:
			w.complain("slice %d was not accepted, yet it completed: %v", id, e.end.Err)
		}
	}
	for _, m := range w.memories {
		if err := m.CheckBands(); err != nil {
			w.complain("%v", err)
		}
	}
	for i, c := range w.complaints {
		if i == 10 {
			w.t.Errorf("and %d more complaints", len(w.complaints)-i)
			break
		}
		w.t.Error(c)
	}
	memories, downs := w.memories, w.downs
	for _, folder := range w.folders {
		if err := os.RemoveAll(folder); err != nil {
			w.t.Error(err)
		}
	}
	w.mu.Unlock()
	assert.NoError(w.t, goleak.Find(w.leak))
	if w.t.Failed() { // somebody may still touch the memories, and a crash would hide the reason
		for _, down := range downs[:min(len(downs), 10)] {
			w.t.Log("went down: " + down)
		}
		return
	}
	for _, m := range memories {
		m.Free()
	}
	// Operands may have some, too. Those of an earlier test may have ended meanwhile.
	assert.LessOrEqual(w.t, leaks.Descriptors(w.t), w.fds, "file descriptors after Close")
}

// host is the suite's transport.Host: calls go straight to the other node's Serve.
type host struct{ n *Node }

func (h host) Self() transport.Peer {
	self := h.n.Peer
	self.Protects = h.n.w.h.Protects
	return self
}
func (h host) Describe(key transport.LocalKey, d transport.Descriptor) {
	h.n.w.locked(func() {
		if !h.n.Info.Replaces {
			h.n.w.complain("the descriptor of key %#x is replaced, and Info.Replaces is false", key)
		}
		h.n.described[key] = d
	})
}
func (h host) Refused(transport.Refusal, string, error) {}
func (h host) Addresses() []netip.Addr                  { return nil }

// Log makes a complaint of each error that the transport logs: no rule makes it log one.
func (h host) Log() *slog.Logger {
	return slog.New(slog.NewTextHandler(errorLog(h), &slog.HandlerOptions{Level: slog.LevelError}))
}

// errorLog takes the lines of a node's log.
type errorLog host

func (e errorLog) Write(line []byte) (int, error) {
	e.n.w.report("%s: %s", e.n.Peer.Address, line)
	return len(line), nil
}

func (h host) Call(ctx context.Context, peer transport.Peer, message []byte) ([]byte, error) {
	w := h.n.w
	w.mu.Lock()
	if _, limited := ctx.Deadline(); !limited {
		w.complain("Host.Call without a deadline")
	}
	ended := w.silenceEnded
	target, hung := w.nodes[peer.Address], h.n.hung || (w.nodes[peer.Address] != nil && w.nodes[peer.Address].hung)
	w.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, errs.Wrap(errs.Timeout, "call", err)
	}
	switch {
	case hung || peer.Address == silentAddress && !ended:
		<-ctx.Done()
		return nil, errs.Wrap(errs.Timeout, "call", ctx.Err()).WithScope(errs.ScopeLink, errs.SideUnknown).
			OfPeer(peer.Address)
	case target == nil:
		return nil, errs.New(errs.PeerUnreachable, "call", "connection refused").
			WithScope(errs.ScopeLink, errs.SideRemote).OfPeer(peer.Address)
	case h.n.plane.Call != nil && target != h.n:
		peer.Address = target.plane.Address
		return h.n.plane.Call(ctx, peer, bytes.Clone(message))
	case target.Peer.ID != peer.ID:
		return nil, errs.New(errs.PeerRestarted, "call", "another incarnation answers").
			WithScope(errs.ScopeLink, errs.SideRemote).OfPeer(peer.Address)
	}
	from := h.n.Peer
	from.Self = target == h.n
	answer, err := target.Transport.Serve(ctx, from, bytes.Clone(message))
	return bytes.Clone(answer), err
}

// silentAddress is a peer that does not answer, as one that is stopped; World.silenceEnded ends its process.
const silentAddress = "silent:1"

func (w *World) memory(size int, alignment uint64, d *Device) *Memory {
	var m *Memory
	if d != nil {
		m = newDeviceMemory(w.t, size, alignment, d)
	} else {
		m = newMemory(w.t, size, alignment, w.h.Pool)
	}
	return w.keep(m)
}

// keep checks the guard bands of a memory at the end, and frees it.
func (w *World) keep(m *Memory) *Memory {
	w.locked(func() { w.memories = append(w.memories, m) })
	return m
}

// birth numbers nodes, regions and files.
func (w *World) birth() (number uint64) {
	w.locked(func() { w.births++; number = w.births })
	return number
}

// region describes a memory for Register.
func (m *Memory) region(id uint64, permission mem.Permission) mem.Region {
	location := mem.Location("cpu:0")
	if m.device != nil {
		location = m.device.Location
	}
	return mem.Region{ID: mem.RegionID(id), Addr: m.Addr, Size: m.Size, Kind: m.Kind(), Location: location,
		Permission: permission, Fd: m.fd, FdOffset: m.at}
}
