package security

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// connectionsMany is more than an engine takes.
const connectionsMany = 1100

// Connections that have shaken hands and call nobody do not keep anybody out, at any limit.
func TestIdleConnectionsKeepNobodyOut(t *testing.T) {
	for name, each := range map[string]struct {
		attack   int
		settings map[string]any
	}{
		"defaults": {connectionsMany, nil},
		"few": {100, map[string]any{"security": map[string]any{"limits": map[string]any{"connections": 16,
			"strangers": 16}}}},
	} {
		t.Run(name, func(t *testing.T) {
			e := victim(t, each.settings)
			var all conns
			defer all.close()
			for range each.attack {
				all.add(wire(t, e.Address()))
			}
			opensInTime(t, e)
		})
	}
}

// Connections that say nothing do not keep anybody out, also when they come again as fast as they are closed.
func TestSilentConnectionsKeepNobodyOut(t *testing.T) {
	e := victim(t)
	var all conns
	halt := make(chan struct{})
	var attack sync.WaitGroup
	defer func() {
		close(halt)
		attack.Wait()
		all.close()
	}()
	full := make(chan struct{})
	fill := sync.OnceFunc(func() { close(full) })
	attack.Go(func() {
		defer fill() // also where no connection can be made any more, which ends the attack
		for {
			for range connectionsMany {
				select {
				case <-halt:
					return
				default:
					all.add(silent(t, e.Address()))
				}
			}
			fill()
			select {
			case <-halt:
				return
			case <-time.After(1800 * time.Millisecond): // before the victim has closed them
				all.close()
			}
		}
	})
	<-full
	opensInTime(t, e)
}

// Messages that never arrive whole take little memory, and not for ever.
func TestUnfinishedMessagesTakeLittleMemory(t *testing.T) {
	const connections, calls, size = 4, 256, 1 << 20
	e := victim(t)
	halt := make(chan struct{})
	var sent atomic.Int64
	var attacks []*sync.WaitGroup
	before := heap()
	for range connections {
		attacks = append(attacks, flood(t, e.Address(), calls, size, halt, func(n int) { sent.Add(int64(n)) }))
	}
	settled(t, &sent)
	grown := heap() - before
	opensInTime(t, e)
	close(halt)
	for _, a := range attacks {
		a.Wait()
	}
	require.Less(t, grown, int64(96<<20), "of %d bytes that were sent", sent.Load())
}

// settled waits until a sum no longer grows.
func settled(t *testing.T, sum *atomic.Int64) {
	t.Helper()
	last := int64(-1)
	require.Eventually(t, func() bool {
		now := sum.Load()
		same := now == last && now > 0
		last = now
		return same
	}, patience, 300*time.Millisecond)
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse)
}

// Notifications fill no more than the queue's bytes, one sender an eighth of them. Each that is refused is refused to
// its sender, and another sender still finds room.
func TestNotificationsOfOnePeerFillAnEighthOfTheQueue(t *testing.T) {
	const size, share = 64 << 10, 64 << 20 / 8
	e := victim(t)
	a := newAttacker(t, transport.Peer{Address: "10.0.0.1:1", ID: transport.NumberedID(4711)})
	taken := 0
	for i := range 12_000 {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		err := a.Notify(ctx, e.Self(), uint64(i+1), note(uint64(i+1), "junk", make([]byte, size)))
		cancel()
		if err != nil {
			break
		}
		taken++
	}
	require.Less(t, taken, share/size+1, "notifications of 64 KiB that one peer left")
	require.Greater(t, taken, share/size*9/10)
	honest := victim(t)
	s, err := honest.OpenSegment(context.Background(), e.Address())
	require.NoError(t, err)
	notifies(t, honest, s, "honest")
	require.Equal(t, taken+1, e.NotesWait(0))
}

// Asking for a large description over and over slows the asker down, and nobody else.
func TestDescribingInALoopKeepsNobodyOut(t *testing.T) {
	const regions = 5000
	e := victim(t)
	b := memory(t, regions*64)
	for i := range regions {
		_, err := e.Register(engine.Memory{Addr: mem.AddressOf(b) + uintptr(i)*64, Size: 64, Name: fmt.Sprint("r", i),
			Location: "cpu:0", Permission: mem.GlobalReadOnly})
		require.NoError(t, err)
	}
	a := newAttacker(t, transport.Peer{Address: "10.0.0.1:1", ID: transport.NumberedID(4711)})
	ctx, cancel := context.WithCancel(context.Background())
	var attack sync.WaitGroup
	var calls atomic.Int64
	for range 16 {
		attack.Go(func() {
			for ctx.Err() == nil {
				_, _ = a.Describe(ctx, e.Self(), nil)
				calls.Add(1)
			}
		})
	}
	require.Eventually(t, func() bool { return calls.Load() > 16 }, patience, time.Millisecond)
	opensInTime(t, e)
	cancel()
	attack.Wait()
}
