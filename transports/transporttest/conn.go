package transporttest

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// Conn is a link of a node, seen from the side that attached.
type Conn struct {
	Node *Node
	To   *Node
	Link transport.Link

	fence struct{ local, remote *Operand } // operands of Barrier
	key   transport.RemoteKey

	records []*transport.Slice // of slices that have completed, see retire
}

// Remote is an operand of a peer, imported on a link.
type Remote struct {
	*Operand
	Key transport.RemoteKey

	imported transport.Descriptor
}

// by is the operand by another key.
func (r *Remote) by(key transport.RemoteKey) *Remote { return &Remote{Operand: r.Operand, Key: key} }

// Connect attaches to a peer and waits for a rail.
func (n *Node) Connect(t *testing.T, to *Node) *Conn {
	t.Helper()
	link, err := n.Transport.Attach(to.seenBy(t, n))
	require.NoError(t, err)
	require.True(t, link.Valid(), "neither half of a Link is ever 0")
	c := &Conn{Node: n, To: to, Link: link}
	n.w.Await(t, "a rail from "+n.name+" to "+to.name, func() bool { return len(c.railsLocked()) > 0 })
	return c
}

// Import makes a peer's operand usable on the link.
func (c *Conn) Import(t *testing.T, o *Operand) *Remote {
	t.Helper()
	key, err := c.Node.Transport.Import(c.Link, o.Descriptor)
	require.NoError(t, err)
	require.NotZero(t, key, "a RemoteKey is never 0")
	return &Remote{Operand: o, Key: key, imported: o.Descriptor}
}

// Renew imports an operand again if its owner has described it anew, as the engine does.
func (c *Conn) Renew(t *testing.T, remote *Remote) {
	t.Helper()
	if !bytes.Equal(remote.imported, remote.Descriptor) {
		*remote = *c.Import(t, remote.Operand)
	}
}

// Fence fences an operand, waits until tasks that begin now carry the new epoch, and renews the operand.
func (c *Conn) Fence(t *testing.T, remote *Remote, peer *transport.Peer) {
	t.Helper()
	c.Hear(t, remote.Operand.Fence(t, peer))
	c.Renew(t, remote)
}

// Rail returns a rail of the link that is up, waiting for one if need be.
func (c *Conn) Rail(t *testing.T) transport.Rail {
	t.Helper()
	var up []transport.Rail
	c.Node.w.Await(t, "a rail that is up", func() bool { up = c.railsLocked(); return len(up) > 0 })
	return up[0]
}

// Rails returns the rails that are up now.
func (c *Conn) Rails() []transport.Rail {
	c.Node.w.mu.Lock()
	defer c.Node.w.mu.Unlock()
	return c.railsLocked()
}

func (c *Conn) railsLocked() []transport.Rail {
	var up []transport.Rail
	for key, info := range c.Node.rails {
		if key.link != c.Link {
			continue
		}
		up = append(up, info.Rail)
		if last := len(up) - 1; up[last].Index < up[0].Index { // the lowest first: a test that needs one takes that
			up[0], up[last] = up[last], up[0]
		}
	}
	return up
}

// Epoch is that of tasks which begin now, as the engine finds it.
func (c *Conn) Epoch() transport.Epoch {
	c.Node.w.mu.Lock()
	epoch := c.Node.epochs[c.Link]
	c.Node.w.mu.Unlock()
	if reader, is := transport.Find[transport.EpochReader](c.Node.Transport); is {
		epoch = max(epoch, reader.Epoch(c.Link))
	}
	return epoch
}

// Hear waits until tasks that begin now carry an epoch. Where Revoke waits for that itself, it is there already.
func (c *Conn) Hear(t *testing.T, epoch transport.Epoch) {
	t.Helper()
	if c.Node.w.h.HearsLater == "" {
		require.GreaterOrEqual(t, c.Epoch(), epoch, "Revoke has returned, and its peer has not heard of it")
		return
	}
	c.Node.w.Await(t, "the news of a fence", func() bool { return c.Node.epochs[c.Link] >= epoch })
}

// retire keeps records of slices that have completed, and reuse gives them to slices that were made since. A completion
// of an earlier life names an entry of the ledger that has ended.
func (c *Conn) retire(list []*transport.Slice) { c.records = append(c.records, list...) }

func (c *Conn) reuse(list []*transport.Slice) {
	w := c.Node.w
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range list {
		record := c.records[i]
		*record = *list[i]
		list[i], w.ledger[record.Id].slice = record, record
	}
	c.records = c.records[len(list):]
}

// Slice makes a slice of a task that begins now; it is entered in the ledger, not submitted.
func (c *Conn) Slice(op transport.Op, rail transport.Rail, local *Operand, lo uint64, remote *Remote,
	ro, length uint64) *transport.Slice {
	w, epoch := c.Node.w, c.Epoch()
	w.mu.Lock()
	defer w.mu.Unlock()
	s := &transport.Slice{Op: op, Rail: rail, LocalKey: local.Key, RemoteKey: remote.Key, Epoch: epoch,
		Local: local.Addr + uintptr(lo), Remote: ro, Length: length, Id: uint64(len(w.ledger) + 1)}
	w.ledger[s.Id] = &entry{slice: s}
	return s
}

// Submit hands slices over once and returns how many were accepted. Any goroutine may call it.
func (c *Conn) Submit(list ...*transport.Slice) int {
	w := c.Node.w
	n := c.Node.Transport.Submit(list)
	w.locked(func() {
		if n < 0 || n > len(list) {
			w.complain("Submit of %d slices accepted %d", len(list), n)
			n = 0
		}
		for i, s := range list {
			e := w.ledger[s.Id]
			if e.submitted = true; i < n {
				e.accepted = true
			}
		}
	})
	return n
}

// Send submits slices of one rail until all are accepted, waiting for Ready where Submit took less. It returns how many
// were accepted: fewer than all only when the rail ended or Ready never came, which is a complaint.
func (c *Conn) Send(list ...*transport.Slice) int {
	w, sent := c.Node.w, 0
	for sent < len(list) {
		rail := list[sent].Rail
		w.mu.Lock()
		before := c.Node.ready[rail]
		w.mu.Unlock()
		n := c.Submit(list[sent:]...)
		if sent += n; sent == len(list) {
			break
		}
		back, gone := list[sent:], false
		for _, s := range back {
			s.Rail = transport.Rail{} // the core may make other slices of them at once
		}
		came := w.wait(func() bool {
			gone = c.Node.rails[railKey{rail.Link, rail.Index}].Rail != rail
			return gone || c.Node.ready[rail] > before
		})
		for _, s := range back {
			s.Rail = rail
		}
		if !came {
			w.report("Submit on %+v took %d slices and Ready never came", rail, n)
			break
		}
		if gone {
			break
		}
	}
	return sent
}

// Wait waits for the completions of slices and returns them in the order of the slices.
func (c *Conn) Wait(t *testing.T, list ...*transport.Slice) []transport.Completion {
	t.Helper()
	c.Node.w.Await(t, "the completions of slices", func() bool { return c.endedLocked(list) })
	return c.ends(list)
}

// Ended counts the slices that have completed by now.
func (w *World) Ended(list ...*transport.Slice) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range list {
		n += min(w.ledger[s.Id].ends, 1)
	}
	return n
}

func (c *Conn) endedLocked(list []*transport.Slice) bool {
	for _, s := range list {
		if c.Node.w.ledger[s.Id].ends == 0 {
			return false
		}
	}
	return true
}

func (c *Conn) ends(list []*transport.Slice) []transport.Completion {
	c.Node.w.mu.Lock()
	defer c.Node.w.mu.Unlock()
	ends := make([]transport.Completion, len(list))
	for i, s := range list {
		ends[i] = c.Node.w.ledger[s.Id].end
	}
	return ends
}

// Must sends slices and requires each to succeed.
func (c *Conn) Must(t *testing.T, list ...*transport.Slice) {
	t.Helper()
	require.Equal(t, len(list), c.Send(list...), "slices accepted")
	c.Succeed(t, list...)
}

// Succeed waits for the completions of slices and requires each to be a success.
func (c *Conn) Succeed(t *testing.T, list ...*transport.Slice) {
	t.Helper()
	for _, end := range c.Wait(t, list...) {
		require.Nil(t, end.Err, "slice %d: %s of %d bytes", end.Slice.Id, end.Slice.Op, end.Slice.Length)
	}
}

// One sends one slice and returns its end.
func (c *Conn) One(t *testing.T, s *transport.Slice) *errs.Error {
	t.Helper()
	require.Equal(t, 1, c.Send(s), "the slice was not accepted")
	return c.Wait(t, s)[0].Err
}

// Carry sends a slice of a task that is under way, again with the newer key if the owner has replaced the older one.
func (c *Conn) Carry(t *testing.T, local *Operand, remote *Remote, s *transport.Slice) {
	t.Helper()
	err := c.One(t, s)
	if c.Renew(t, remote); err != nil && err.Code == errs.Replaced && s.RemoteKey != remote.Key {
		again := c.Slice(s.Op, s.Rail, local, uint64(s.Local-local.Addr), remote, s.Remote, s.Length)
		again.Epoch = s.Epoch
		err = c.One(t, again)
	}
	require.Nil(t, err, "slice %d", s.Id)
}

// Barrier is the second look: slices of both directions, several sizes and classes on every rail that is up, all begun
// after every earlier slice. Bytes that an earlier slice has under way have landed, or never will, when it returns.
func (c *Conn) Barrier(t *testing.T) {
	t.Helper()
	size := fit(c, 128<<10)
	if c.fence.local == nil {
		c.fence.local = c.Node.Register(t, size, mem.LocalReadWrite)
		c.fence.remote = c.To.Register(t, size, mem.GlobalReadWrite)
		c.key = c.Import(t, c.fence.remote).Key
	}
	remote := &Remote{Operand: c.fence.remote, Key: c.key}
	for _, rail := range c.Rails() {
		var list []*transport.Slice
		for i := range 16 {
			s := c.Slice(transport.Op(i&1), rail, c.fence.local, 0, remote, 0, []uint64{fit(c, 8), size}[i>>3])
			s.Class = uint8(i % 3)
			list = append(list, s)
		}
		if c.Send(list...) == len(list) {
			c.Wait(t, list...)
		}
	}
}

// fit rounds a wished size to one that the transport takes in one slice.
func fit(c *Conn, n uint64) uint64 {
	a := c.Node.Info.Alignment
	return max(a, min(n, c.Node.Info.SliceMax)/a*a)
}
