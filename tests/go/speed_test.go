package tests

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/transport"
)

// mover is one prepared transfer that can be carried out again and again.
type mover struct {
	engine  *engine.Engine
	request engine.Request
}

func (m *mover) move(tb testing.TB) {
	id, err := m.engine.Move(&m.request)
	if err != nil {
		tb.Fatal(err)
	}
	if state := m.engine.Wait(id, patience); state != dispatch.Completed {
		tb.Fatalf("the transfer is %s", state)
	}
	if err := m.engine.FreeBatch(id); err != nil {
		tb.Fatal(err)
	}
}

func TestNothingIsAllocatedBetweenSubmitAndCompletion(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector allocates by itself")
	}
	here, there := openTCP(t, nil), openTCP(t, nil)
	own, theirs := memory(t, 1<<20), memory(t, 1<<20)
	offer(t, here, own, "")
	offer(t, there, theirs, "kv")
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		m := mover{here, engine.Request{Terms: engine.Terms{Op: op}, Source: address(own), Length: 4096,
			Remote: engine.Remote{Segment: segment(t, here, there, "kv")}}}
		for range 2000 { // pools and slabs reach their size
			m.move(t)
		}
		// Both ends are in this process, so the receiver's side is counted too. Timers of waits that had to park are the
		// one thing that may allocate now and then.
		allocations := testing.AllocsPerRun(5000, func() { m.move(t) })
		require.Less(t, allocations, 0.5, "%s allocates", op)
	}
}

func BenchmarkMove4KiB(b *testing.B) {
	here, there := openTCP(b, nil), openTCP(b, nil)
	own, theirs := memory(b, 1<<20), memory(b, 1<<20)
	offer(b, here, own, "")
	offer(b, there, theirs, "kv")
	m := mover{here, engine.Request{Terms: engine.Terms{Op: transport.Write}, Source: address(own), Length: 4096,
		Remote: engine.Remote{Segment: segment(b, here, there, "kv")}}}
	b.ReportAllocs()
	for b.Loop() {
		m.move(b)
	}
}
