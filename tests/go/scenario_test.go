package tests

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/transport"
)

// eachWorld runs a test over every kind of transport.
func eachWorld(t *testing.T, test func(t *testing.T, w world)) {
	for _, w := range worlds() {
		t.Run(w.name, func(t *testing.T) { test(t, w) })
	}
}

func TestBytesOfAnySizeAndAlignmentArriveAndNothingElseIsTouched(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		here, there := w.open(t, nil), w.open(t, nil)
		for k, size := range []int{1, 2, 63, 64, 4095, 4096, 4097, 65536, 1<<20 + 1, 5<<20 + 13} {
			for _, op := range []transport.Op{transport.Write, transport.Read} {
				t.Run(fmt.Sprintf("%s of %d bytes", op, size), func(t *testing.T) {
					name := fmt.Sprintf("r%d%s", k, op)
					source, destination := memory(t, size+13)[13:], newGuarded(t, size)
					fill(source, k)
					mine, theirs := source, destination.bytes
					if op == transport.Read {
						mine, theirs = theirs, mine
					}
					offer(t, here, mine, "")
					offer(t, there, theirs, name)
					id, err := here.Move(&engine.Request{Terms: engine.Terms{Op: op}, Source: address(mine),
						Length: uint64(size),
						Remote: engine.Remote{Segment: segment(t, here, there, name)}})
					require.NoError(t, err)
					sum := ended(t, here, id)
					require.Equal(t, dispatch.Completed, sum.State, "%v", sum.Err)
					require.EqualValues(t, size, sum.Bytes)
					same(t, destination.bytes, k, 0)
					destination.check(t)
				})
			}
		}
	})
}

func TestANotificationComesAfterItsData(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		here, there := w.open(t, nil), w.open(t, nil)
		source, destination := memory(t, 1<<20), newGuarded(t, 1<<20)
		fill(source, 7)
		offer(t, here, source, "")
		offer(t, there, destination.bytes, "kv")
		s := segment(t, here, there, "kv")
		for i := range 20 {
			clear(destination.bytes)
			b, err := here.NewBatch(1)
			require.NoError(t, err)
			_,
				err = here.Submit(b, []engine.Request{{Terms: engine.Terms{Op: transport.Write},
				Source: address(source), Length: 1 << 20,
				Remote: engine.Remote{Segment: s}}}, &engine.Note{Name: []byte("done"), Message: fmt.Append(nil, i)})
			require.NoError(t, err)
			require.Equal(t, 1, there.NotesWait(patience))
			same(t, destination.bytes, 7, 0)
			there.NotesDrain(func(n *engine.Notification) bool {
				require.Equal(t, "done", string(n.Name))
				require.Equal(t, fmt.Sprint(i), string(n.Message))
				require.Equal(t, here.Address(), n.Peer)
				return true
			})
			require.Equal(t, dispatch.Completed, ended(t, here, b).State)
		}
	})
}
