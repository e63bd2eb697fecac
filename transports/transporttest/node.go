package transporttest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// Node is one engine's worth of the transport under test.
type Node struct {
	Peer      transport.Peer // as others see it
	Transport transport.Transport
	Info      transport.Info

	w     *World
	name  string
	plane Plane // where the harness has Join
	// Guarded by World.mu.
	closed      bool
	hung        bool // calls from and to it are not answered
	rails       map[railKey]transport.RailInfo
	newest      map[railKey]uint32
	ended       map[transport.Rail]bool // generations that RailDown ended
	ready       map[transport.Rail]int
	linkDown    map[transport.Link]*errs.Error
	epochs      map[transport.Link]transport.Epoch // by Fenced
	fenced      []fenced
	described   map[transport.LocalKey]transport.Descriptor // by Host.Describe
	notes       []note
	noteRefused int
	refuseNotes bool
	onComplete  func(transport.Completion) // called unlocked, before the completion is recorded
	files       string                     // its folder, see files.go
}

type railKey struct {
	link  transport.Link
	index uint16
}

// fenced is the news of a fence.
type fenced struct {
	link  transport.Link
	key   transport.RemoteKey
	epoch transport.Epoch
}

type note struct {
	from    string
	message string
}

// Close closes the transport and takes the node off its address. It may be called twice.
func (n *Node) Close(t *testing.T) {
	n.w.mu.Lock()
	closed := n.closed
	n.closed = true
	n.w.mu.Unlock()
	if closed {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), n.w.h.Patience)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- n.Transport.Close(ctx) }()
	late := time.NewTimer(2 * n.w.h.Patience)
	defer late.Stop()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("%s: Close: %v", n.name, err)
		}
	case <-late.C:
		t.Errorf("%s: Close does not return, its context is long over", n.name)
	}
	if n.plane.Close != nil {
		n.plane.Close()
	}
	n.w.locked(func() {
		if n.w.nodes[n.Peer.Address] == n {
			delete(n.w.nodes, n.Peer.Address)
		}
	})
}

// cause says why a link has ended; another one may end meanwhile.
func (n *Node) cause(link transport.Link) (why *errs.Error) {
	n.w.locked(func() { why = n.linkDown[link] })
	return why
}

// recorder is the node as the transport's Sink.
type recorder Node

func (r *recorder) Complete(list []transport.Completion) {
	n := (*Node)(r)
	n.w.mu.Lock()
	hook := n.onComplete
	n.w.mu.Unlock()
	if hook != nil {
		for _, c := range list {
			hook(c)
		}
	}
	n.w.locked(func() {
		for _, c := range list {
			n.end(c)
		}
	})
}

func (n *Node) end(c transport.Completion) {
	e := n.w.ledger[c.Id]
	switch {
	case e == nil || e.slice != c.Slice:
		n.w.complain("%s: completion of a slice that nobody submitted", n.name)
		return
	case e.ends > 0:
		n.w.complain("slice %d completed again: %v, before: %v", c.Id, c.Err, e.end.Err)
	case c.Err == nil && c.Bytes != c.Slice.Length:
		n.w.complain("slice %d of %d bytes completed with %d bytes and no error", c.Id, c.Slice.Length, c.Bytes)
	case c.Err != nil && c.Bytes >= c.Slice.Length:
		n.w.complain("slice %d failed (%v) although all bytes are said to be there", c.Id, c.Err)
	case c.Err != nil && c.Err.Code == errs.OK:
		n.w.complain("slice %d failed with the code OK", c.Id)
	}
	e.ends++
	e.end = c
}

func (r *recorder) Ready(rail transport.Rail) {
	r.w.locked(func() { r.ready[rail]++ })
}

func (r *recorder) Progress(transport.Rail) {}

func (r *recorder) RailUp(info transport.RailInfo) {
	key := railKey{info.Rail.Link, info.Rail.Index}
	r.w.locked(func() {
		if info.Rail.Generation <= r.newest[key] && r.newest[key] > 0 {
			r.w.complain("%s: rail %+v comes up, but generation %d was there before", r.name, info.Rail, r.newest[key])
		}
		r.newest[key] = info.Rail.Generation
		r.rails[key] = info
	})
}

func (r *recorder) RailDown(rail transport.Rail, cause *errs.Error) {
	key := railKey{rail.Link, rail.Index}
	r.w.locked(func() {
		r.w.downs = append(r.w.downs, fmt.Sprintf("%s: rail %+v: %v", r.name, rail, cause))
		if r.ended[rail] {
			r.w.complain("%s: rail %+v goes down twice", r.name, rail)
		}
		if rail.Generation > r.newest[key] {
			r.w.complain("%s: rail %+v goes down and never was up", r.name, rail)
		}
		r.ended[rail] = true
		if r.rails[key].Rail == rail {
			delete(r.rails, key)
		}
	})
}

func (r *recorder) LinkDown(link transport.Link, cause *errs.Error) {
	r.w.locked(func() {
		if cause == nil {
			r.w.complain("%s: LinkDown without a cause", r.name)
		}
		r.linkDown[link] = cause
		for key := range r.rails {
			if key.link == link {
				delete(r.rails, key)
			}
		}
	})
}

func (r *recorder) Fenced(link transport.Link, key transport.RemoteKey, epoch transport.Epoch) {
	r.w.locked(func() {
		r.epochs[link] = max(r.epochs[link], epoch)
		r.fenced = append(r.fenced, fenced{link, key, epoch})
	})
}

func (r *recorder) Notified(from transport.Peer, message []byte) bool {
	taken := false
	r.w.locked(func() {
		if taken = !r.refuseNotes; taken {
			r.notes = append(r.notes, note{from.Address, string(message)})
		} else {
			r.noteRefused++
		}
	})
	return taken
}

// Operand is registered memory of a node.
type Operand struct {
	*Memory
	Node       *Node
	Key        transport.LocalKey
	Descriptor transport.Descriptor
}

// Register maps memory of at least size bytes and registers it.
func (n *Node) Register(t *testing.T, size uint64, permission mem.Permission) *Operand {
	t.Helper()
	if n.Info.Files && permission != mem.LocalReadWrite {
		return n.registerFile(t, size, permission)
	}
	device := n.w.h.Local
	if permission != mem.LocalReadWrite && n.w.h.Remote != nil {
		device = n.w.h.Remote
	}
	return n.RegisterMemory(t, n.w.memory(int(max(size, n.Info.Alignment)), n.Info.Alignment, device), permission)
}

// RegisterMemory registers memory that is there already.
func (n *Node) RegisterMemory(t *testing.T, m *Memory, permission mem.Permission) *Operand {
	t.Helper()
	key, descriptor, err := n.Transport.Register(t.Context(), m.region(n.w.birth(), permission))
	require.NoError(t, err)
	require.NotZero(t, key, "a LocalKey is never 0")
	return &Operand{Memory: m, Node: n, Key: key, Descriptor: descriptor}
}

// Revoke takes the operand back for good and requires that to succeed.
func (o *Operand) Revoke(t *testing.T, peer *transport.Peer) {
	t.Helper()
	require.NoError(t, o.Node.Transport.Revoke(t.Context(), o.Key, peer, transport.ForGood))
	o.Update()
}

// Fence fences the operand in the next epoch, which it returns.
func (o *Operand) Fence(t *testing.T, peer *transport.Peer) transport.Epoch {
	t.Helper()
	epoch := o.Node.w.nextEpoch()
	require.NoError(t, o.Node.Transport.Revoke(t.Context(), o.Key, peer, epoch))
	o.Update()
	return epoch
}

// Update takes the descriptor that the owner's transport has described last.
func (o *Operand) Update() {
	o.Node.w.locked(func() {
		if newest := o.Node.described[o.Key]; newest != nil {
			o.Descriptor = newest
		}
	})
}

// nextEpoch counts the fences of all nodes together, as each engine counts its own.
func (w *World) nextEpoch() transport.Epoch {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fences++
	return transport.Epoch(w.fences)
}

// Deregister calls Deregister and requires it to succeed.
func (o *Operand) Deregister(t *testing.T) {
	t.Helper()
	require.NoError(t, o.Node.Transport.Deregister(t.Context(), o.Key))
}
