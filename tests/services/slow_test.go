package services

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
)

// relay stands between engines and a service, and makes it slow.
type relay struct {
	listener net.Listener
	to       string
	delay    atomic.Int64 // nanoseconds of each piece, in both directions
	piece    atomic.Int64 // bytes
	over     chan struct{}
	running  sync.WaitGroup
}

func newRelay(t *testing.T, to string) *relay {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &relay{listener: listener, to: to, over: make(chan struct{})}
	r.slow(0, 64<<10)
	r.running.Go(r.run)
	t.Cleanup(func() {
		close(r.over)
		_ = listener.Close()
		r.running.Wait()
	})
	return r
}

func (r *relay) slow(delay time.Duration, piece int64) {
	r.piece.Store(piece)
	r.delay.Store(int64(delay))
}

func (r *relay) run() {
	for {
		asker, err := r.listener.Accept()
		if err != nil {
			return
		}
		service, err := net.Dial("tcp", r.to)
		if err != nil {
			_ = asker.Close()
			continue
		}
		r.running.Go(func() { r.carry(asker, service) })
		r.running.Go(func() { r.carry(service, asker) })
	}
}

// carry passes bytes on until one of the two ends, or the relay.
func (r *relay) carry(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	over := make(chan struct{})
	defer close(over)
	r.running.Go(func() {
		select {
		case <-r.over:
			_ = from.Close()
		case <-over:
		}
	})
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b[:r.piece.Load()])
		if delay := time.Duration(r.delay.Load()); delay > 0 {
			select {
			case <-time.After(delay):
			case <-r.over:
				return
			}
		}
		if _, failed := to.Write(b[:n]); failed != nil || err != nil {
			return
		}
	}
}

// A service that answers slowly makes opens by name slow. Where its answers take longer than metadata_timeout, opens
// fail within that, also when a byte comes now and then. Transfers under way do not notice.
func TestASlowService(t *testing.T) {
	eachKind(t, func(t *testing.T, kind string) {
		s := newService(t, kind, "", "")
		r := newRelay(t, s.address)
		slow := *s // as engines see it
		slow.address = r.listener.Addr().String()
		owner, asker := open(t, slow.settings("decode-0")), open(t, slow.settings(""))
		kv, source := offer(t, owner, "kv"), offer(t, asker, "")
		to, err := asker.OpenSegment(t.Context(), "decode-0/kv")
		require.NoError(t, err)
		moves := run(t, asker, to, source, kv)
		moves.goesOn()

		const each = limit / 10
		r.slow(each, 64<<10)
		began := time.Now()
		_, err = asker.OpenSegment(t.Context(), "decode-1")
		require.Equal(t, errs.InvalidEntry, errs.CodeOf(err), "a slow answer is one: %v", err)
		require.Greater(t, time.Since(began), each, "the service was asked, by way of the relay")
		opens(t, asker, "decode-0/kv")
		moves.goesOn()

		for name, pace := range map[string]struct {
			delay time.Duration
			piece int64
		}{"late": {4 * limit, 64 << 10}, "byte by byte": {limit / 5, 1}} {
			t.Log(name)
			r.slow(pace.delay, pace.piece)
			unanswered(t, asker, &slow, owner.Address())
			moves.goesOn()
		}

		r.slow(0, 64<<10)
		opens(t, asker, "decode-0/kv")
		moves.goesOn()
	})
}
