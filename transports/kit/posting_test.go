package kit

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// posting is a bench with a device: begin notes the slice, and Finish waits until the test ends it.
type posting struct {
	*bench
	begun []uint64                 // guarded by mu
	end   map[uint64]chan struct{} // of each slice
}

type rest struct {
	p  *posting
	id uint64
}

func (r rest) Finish() *errs.Error {
	r.p.mu.Lock()
	end := r.p.end[r.id]
	r.p.carried = append(r.p.carried, r.id)
	r.p.changed.Broadcast()
	r.p.mu.Unlock()
	<-end
	return nil
}

func newPosting(t *testing.T, ids ...uint64) *posting {
	p := &posting{bench: newIdleBench(), end: map[uint64]chan struct{}{}}
	for _, id := range ids {
		p.end[id] = make(chan struct{})
	}
	p.StartPosting(16, p.bench, p.isUp, func(s *transport.Slice, _ *bench) (Posted, *errs.Error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.begun = append(p.begun, s.Id)
		p.changed.Broadcast()
		return rest{p, s.Id}, nil
	})
	t.Cleanup(p.Stop)
	return p
}

// begin waits until just these slices were begun, in order.
func (p *posting) begin(t *testing.T, ids ...uint64) {
	t.Helper()
	p.await(func() bool { return len(p.begun) >= len(ids) })
	p.mu.Lock()
	defer p.mu.Unlock()
	require.Equal(t, ids, p.begun)
}

// waits waits until a carrier waits for a slice.
func (p *posting) waits(id uint64) {
	p.await(func() bool { return len(p.carried) > 0 && p.carried[len(p.carried)-1] == id })
}

func (p *posting) accept(t *testing.T, op transport.Op, ids ...uint64) {
	list := slicesOf(ids...)
	for _, s := range list {
		s.Op = op
	}
	require.Equal(t, len(ids), p.Accept(list, p.here))
}

// Two slices of a class and direction are posted, so the device has its next work. The rest waits for its turn, and a
// more urgent slice passes it.
func TestTwoSlicesOfALaneArePosted(t *testing.T) {
	p := newPosting(t, 200, 201, 202, 203, 1, 2)
	p.accept(t, transport.Write, 200, 201, 202, 203)
	p.begin(t, 200, 201)
	p.waits(200)
	p.accept(t, transport.Write, 1)
	p.accept(t, transport.Read, 2)
	close(p.end[200])
	p.begin(t, 200, 201, 1, 2, 202)
	p.waits(2) // before 201: it is more urgent
	close(p.end[1])
	close(p.end[2])
	p.waits(201)
	close(p.end[201])
	p.begin(t, 200, 201, 1, 2, 202, 203)
	close(p.end[202])
	close(p.end[203])
	p.await(func() bool { return len(p.ends) == 6 })
	require.EqualValues(t, 10, p.ends[203].Bytes)
}

// Slices that a waiter has posted and not waited for are the worker's when the waiter leaves. They are not dropped, and
// Evict waits for them.
func TestPostedSlicesEndByThemselves(t *testing.T) {
	p := newPosting(t, 1, 2, 3)
	require.Zero(t, p.Poll(1))
	p.accept(t, transport.Write, 1, 2, 3)
	close(p.end[1])
	require.Equal(t, 1, p.Poll(1))
	p.begin(t, 1, 2)
	cause := errs.New(errs.Withdrawn, "x", "asked back")
	p.Drop(cause, func(*transport.Slice, *bench) bool { return true })
	require.Same(t, cause, p.ends[3].Err)
	require.NotContains(t, p.ends, uint64(2))
	p.Arm()
	p.waits(2)
	var evicted atomic.Bool
	done := make(chan struct{})
	go func() {
		p.Evict(cause, func(*transport.Slice, *bench) bool { return true })
		evicted.Store(true)
		close(done)
	}()
	require.False(t, evicted.Load())
	close(p.end[2])
	<-done
	p.await(func() bool { return len(p.ends) == 3 })
	require.Nil(t, p.ends[2].Err)
}
