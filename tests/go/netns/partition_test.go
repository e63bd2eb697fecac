package netns

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/forked"
	"github.com/tent-engine/tent/tests/netbed"
)

func (w *world) all(t *testing.T, f func(*netbed.Rail) error) {
	t.Helper()
	for _, r := range w.Rails {
		require.NoError(t, f(r))
	}
}

// TestAllRailsGoAndComeBack: nothing can move meanwhile, and transfers under way go on.
func TestAllRailsGoAndComeBack(t *testing.T) {
	netbed.EitherWay(t, func(t *testing.T, op transport.Op) {
		w := newWorld(t, nil)
		for _, f := range w.faults() {
			if f.name != "silent both ways" && f.name != "own device down" && f.name != "connections aborted" {
				continue
			}
			t.Run(f.name, func(t *testing.T) {
				mend := func() { w.all(t, f.mend) }
				t.Cleanup(func() {
					if t.Failed() {
						mend() // the next fault is to find all rails well
					}
				})
				out := w.Moves(t, op, func() error {
					w.all(t, f.make)
					if f.name != "connections aborted" { // these are back before one can look
						w.stands(t)
					}
					mend()
					return nil
				})
				t.Logf("%v", out.Took)
				w.AwaitRails(t, rails)
			})
		}
	})
}

// TestLinksThatAreDownForSecondsCostTimeAlone: as long as nobody has said that the peer has gone, its transfers wait.
func TestLinksThatAreDownForSecondsCostTimeAlone(t *testing.T) {
	if os.Getenv("TENT_PAUSES") != "all" {
		t.Skip("TENT_PAUSES=all asks for it")
	}
	netbed.EitherWay(t, func(t *testing.T, op transport.Op) {
		for _, name := range []string{"silent both ways", "own device down", "peer's device down"} {
			t.Run(name, func(t *testing.T) {
				found := false
				w := newWorld(t, nil)
				for _, f := range w.faults() {
					if f.name != name {
						continue
					}
					found = true
					out := w.Moves(t, op, func() error {
						w.all(t, f.make)
						w.stands(t)
						netbed.Await(t, "the peer is silent", func() bool {
							return len(w.Events(t, "peer_silent")) > 0
						})
						<-time.After(10 * time.Second)
						w.all(t, f.mend)
						return nil
					})
					t.Logf("%v", out.Took)
					require.NotEmpty(t, w.Events(t, "peer_back"))
					require.Empty(t, w.Events(t, "peer_gone"))
				}
				require.True(t, found)
			})
		}
	})
}

// stands waits until two looks, 20 ms apart, see the same number of bytes, so that the outage was one.
func (w *world) stands(t *testing.T) {
	t.Helper()
	var last, same uint64
	netbed.Await(t, "nothing moves", func() bool {
		var bytes uint64
		require.NoError(t, w.Near.Call("Actor.Acknowledged", forked.Nothing{}, &bytes))
		if bytes == last {
			same++
		} else {
			last, same = bytes, 0
		}
		return same >= 20 // a look each millisecond
	})
}

// TestAPartitionThatOutlastsEverythingEndsFailedAndDirty: the peer cannot be asked which bytes have landed, so the end
// says so. The question stays open, and while it does nothing goes to the peer. Then the network is healed, the
// question is answered, and the same memory takes the next transfer, in which no byte of the first one turns up.
func TestAPartitionThatOutlastsEverythingEndsFailedAndDirty(t *testing.T) {
	w := newWorld(t, map[string]string{
		"transports/tcp/user_timeout_ms": "400", // so that "all time-outs" is a second and not ten
		"transfer_stall_timeout":         "1.5",
	})
	call := w.Half(t, transport.Write)
	w.all(t, func(r *netbed.Rail) error { return r.Drop(netbed.Both) })
	out := w.End(t, call)
	t.Logf("%+v", out)
	require.Equal(t, "FAILED", out.State)
	require.True(t, out.Dirty, "nobody could ask the peer")
	require.NotEmpty(t, w.Events(t, "dirty"))
	require.Empty(t, w.Events(t, "withdrawn"))

	// The second transfer, to the same memory, is submitted before the first one's question is answered.
	second := w.Begin(t, transport.Write)
	w.all(t, (*netbed.Rail).Heal)
	next := w.End(t, second)
	if next.State != "COMPLETED" { // it may run out of patience while the rails come back; it must not be half there
		require.Equal(t, "FAILED", next.State)
		w.AwaitRails(t, rails)
		next = w.End(t, w.Begin(t, transport.Write))
	}
	require.Equal(t, "COMPLETED", next.State, next.Error)
	require.NotEmpty(t, w.Events(t, "withdrawn"), "the question of the first transfer was answered")
	w.Check(t)
	w.AwaitRails(t, rails)
	w.Move(t, transport.Write)
}
