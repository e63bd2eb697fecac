package tcp

import (
	"context"
	"crypto/rand"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/transport"
)

// newSelf is an endpoint that is attached to itself, so that a test has both ends of each lane.
func newSelf(t *testing.T, s Settings, size int) *couple {
	e, err := newEndpoint(s)
	require.NoError(t, err)
	c := &couple{endpoint: e}
	t.Cleanup(func() { c.close(t) })
	c.memory = mapping(t, size)
	var d transport.Descriptor
	c.key, d, err = c.tr.Register(context.Background(), regionOf(c.memory))
	require.NoError(t, err)
	self := e.Self()
	self.Self = true
	c.link, err = c.tr.Attach(self)
	require.NoError(t, err)
	c.remote, err = c.tr.Import(c.link, d)
	require.NoError(t, err)
	c.await(t, "rails", 5*time.Second, func() bool { return len(c.rails) == 1 })
	return c
}

// Buffers are for lanes that move bytes: behind READs and WRITEs of all sizes no lane keeps any, at neither end.
func TestAnIdleLaneHasNoBuffers(t *testing.T) {
	const half = 4 << 20
	c := newSelf(t, Settings{}, 2*half)
	_, _ = rand.Read(c.memory[:half])
	for _, size := range []int{64, 4 << 10, 300 << 10, 1 << 20} {
		for _, op := range []transport.Op{transport.Write, transport.Read} {
			var list []*transport.Slice
			for at := 0; at+size <= half && len(list) < 100; at += size {
				s := c.slice(op, 0, at, size)
				if s.Remote += half; op == transport.Read {
					s.Local, s.Remote = s.Local+half, s.Remote-half
				}
				list = append(list, s)
			}
			c.carry(t, list)
			end := len(list) * size
			require.Equal(t, c.memory[:end], c.memory[half:half+end])
			clear(c.memory[half:])
		}
	}
	lanes := 0
	for _, l := range c.tr.(*Transport).conns.All() {
		lanes++
		l.readMu.Lock()
		require.Nil(t, l.rx.readBuffers)
		l.readMu.Unlock()
		l.writeMu.Lock()
		require.Nil(t, l.tx.writeBuffers)
		require.LessOrEqual(t, cap(l.tx.ctl), ctlKept)
		l.writeMu.Unlock()
	}
	require.Equal(t, 2*(Settings{}.lanes()+1), lanes, "as many as before the first large slice of another class")
}

func (s Settings) lanes() int {
	s.Compute()
	return s.Lanes
}

// An outbox has room for some slices at first and for all that the peer allows in the end; each keeps its number.
func TestAnOutboxGrowsUpToTheCredit(t *testing.T) {
	const credit = 256
	var o outbox
	o.init(credit, 1<<30, 1<<30)
	require.Len(t, o.ring, ringMin)
	slices := map[uint64]*transport.Slice{}
	fill := func() {
		for {
			s := &transport.Slice{Op: transport.Write, Length: 1}
			seq, ok := o.accept(s)
			if !ok {
				break
			}
			require.Nil(t, slices[seq])
			slices[seq] = s
		}
		for seq := o.head; seq < o.tail; seq++ {
			require.Same(t, slices[seq], o.at(seq).slice)
		}
		require.Equal(t, uint64(credit), o.tail-o.head)
		require.Len(t, o.ring, credit)
	}
	for range 5 { // the ring doubles while its begin is in its middle
		s := &transport.Slice{Op: transport.Write, Length: 1}
		seq, ok := o.accept(s)
		require.True(t, ok)
		require.Same(t, s, o.dropWaiting(seq))
	}
	fill()
	for seq := o.head; seq < o.head+100; seq++ {
		o.next = seq + 1
		require.Same(t, slices[seq], o.detachSlice(o.at(seq)))
		o.at(seq).done = true
	}
	o.head = o.next
	fill()
}
