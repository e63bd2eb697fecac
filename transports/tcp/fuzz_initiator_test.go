package tcp

import (
	"bytes"
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// FuzzInitiator feeds any bytes to an initiator's lane, which has four slices outstanding. No slice ends twice, a
// READ ends well only with all its bytes, and nothing is written but destinations of READs.
func FuzzInitiator(f *testing.F) {
	f.Add(appendFrame(nil, header{kind: kindAck, seq: 2}))
	f.Add(appendFrame(nil, header{kind: kindNack}, record{id: 3, length: 300}))
	f.Add(append(appendFrame(nil, header{kind: kindData, length: 64}, record{id: 3, length: 64}), make([]byte, 64)...))
	f.Add(append(appendFrame(nil, header{kind: kindData, length: 8}, record{id: 4, length: 8}), "abcdefgh"...))
	f.Add(appendFrame(nil, header{kind: kindConfirm, seq: 1}, record{id: 1}, record{id: 2, length: verdictVoid}))
	f.Add(appendFrame(appendFrame(nil, header{kind: kindFenced, seq: 1}, record{id: 2}),
		header{kind: kindRaised, seq: 3}))
	f.Add(appendFrame(appendFrame(nil, header{kind: kindNotified, seq: 1}), header{kind: kindPong, seq: 1}))
	f.Add(append(appendFrame(nil, header{kind: kindData, flag: flagChecked, length: 8},
		record{id: 3, length: 8, classOrSum: 7}), "abcdefgh"...))
	f.Add(appendFrame(append(appendFrame(nil, header{kind: kindData, length: 64}, record{id: 3, length: 64}),
		make([]byte, 64)...), header{kind: kindServed}))
	f.Add(appendFrame(nil, header{kind: kindBye}))
	e := newTestEndpoint(f, Settings{Workers: 1})
	t := e.tr.(*Transport)
	memory := mapping(f, 3<<12)
	key, _, err := e.tr.Register(context.Background(), regionOf(memory))
	require.NoError(f, err)
	before := bytes.Clone(memory)
	var one sync.Mutex
	f.Fuzz(func(tt *testing.T, stream []byte) {
		one.Lock()
		defer one.Unlock()
		if len(stream) > 60<<10 {
			return
		}
		copy(memory, before)
		lane, other := handLane(tt, t)
		l := lane.link
		slices := make([]*transport.Slice, 4)
		for i := range slices {
			slices[i] = &transport.Slice{Op: transport.Op(1 - i/2), LocalKey: key, RemoteKey: 1,
				Local: mem.AddressOf(memory) + 1<<12 + uintptr(i)*64, Length: 64}
		}
		var w *worker
		n, _ := lane.accept(slices, &w)
		require.Equal(tt, 4, n)
		lane.pump(submitBudget)
		_, err := unix.Write(other, stream)
		require.NoError(tt, err)
		w = t.newWorker()
		lane.readMu.Lock()
		for n, open := 1, true; n > 0 && open; {
			n, open = lane.drain(w, 1<<20)
		}
		lane.readMu.Unlock()
		l.settleLane(lane, w)
		l.fenced(1, []record{{}}, w)
		ends := map[*transport.Slice]int{}
		for _, c := range w.ended {
			ends[c.Slice]++
		}
		for _, s := range slices {
			require.Equal(tt, 1, ends[s])
		}
		require.Equal(tt, before[:1<<12+128], memory[:1<<12+128], "the sources of WRITEs and what lies before")
		require.Equal(tt, before[1<<12+256:], memory[1<<12+256:], "what lies behind")
	})
}
