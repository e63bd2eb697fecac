package tcp

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// TestNothingLandsAfterARevocationDuringAHandshake holds a lane between its HELLO and its PROOF. Meanwhile hellos of
// other peers make the table forget attachments without lanes, or its own peer leaves. A lane that joined one that is
// forgotten would live on unseen by Revoke and Close.
func TestNothingLandsAfterARevocationDuringAHandshake(t *testing.T) {
	for _, leaves := range []bool{false, true} {
		t.Run(fmt.Sprintf("its peer leaves: %v", leaves), func(t *testing.T) {
			e := newTestEndpoint(t, Settings{})
			tr, ctx := e.tr.(*Transport), context.Background()
			as := &tr.attachments
			memory := mapping(t, 3<<12)
			key, _, err := tr.Register(ctx, regionOf(memory[1<<12:2<<12]))
			require.NoError(t, err)
			a, refused := as.issue(visitor, version, shield{})
			require.Nil(t, refused)
			l := strangerLane(t, tr)
			t.Cleanup(func() { require.NoError(t, unix.Close(l.other)) })
			t.Cleanup(l.closeLane)
			_, _, refused = as.expect(l.responderLane, a.id, 1)
			require.Nil(t, refused)
			l.readMu.Lock() // before it can be refused: then it gives its buffers back, on a goroutine
			l.mayBuffer(nil, nil)
			l.readMu.Unlock()
			as.mu.Lock()
			a.since = clock.Now().Add(-2 * forgetAfter)
			as.mu.Unlock()
			for id := range uint64(2 * attachmentsIdle) {
				_, refused = as.issue(transport.Peer{ID: transport.NumberedID(id)}, version, shield{})
				require.Nil(t, refused)
			}
			if leaves {
				a.leaveCame()
			}
			refused = as.admit(l.responderLane, a)
			require.Equal(t, leaves, refused != nil, "%v", refused)
			require.Zero(t, e.refused(transport.RefusedProof), "it has proved itself, and came too late")
			w := tr.newWorker()
			arrive := func(b []byte) {
				_, _ = unix.Write(l.other, b) // fails on a lane that was refused
				l.readMu.Lock()
				defer l.readMu.Unlock()
				l.drain(w, 1<<20)
			}
			const half = 2048
			arrive(append(appendFrame(nil, header{kind: kindWrite, length: 2 * half, seq: 1},
				record{id: uint64(key), length: 2 * half}), make([]byte, half)...))
			require.NoError(t, tr.Revoke(ctx, key, nil, transport.ForGood))
			require.NoError(t, tr.Deregister(ctx, key))
			before := bytes.Clone(memory)
			arrive(bytes.Repeat([]byte("AFTER THE REVOCATION"), half/20))
			require.True(t, bytes.Equal(before, memory), "bytes landed after Revoke had returned")
		})
	}
}

// TestClosedLanesLeaveTheirVerdicts: late questions get the same answers, from no more than these.
func TestClosedLanesLeaveTheirVerdicts(t *testing.T) {
	near, far := neighbours(t, 1<<20)
	a := far.tr.(*Transport).attachments.ofPeer(nil)[0]
	bad := near.slice(transport.Write, 0, 0, 4096)
	bad.Remote = 1 << 40 // outside its region: refused
	list := []*transport.Slice{near.slice(transport.Write, 0, 0, 4096), bad, near.slice(transport.Write, 0, 0, 4096)}
	require.Equal(t, 3, near.tr.Submit(list))
	near.awaitEnds(t, 5*time.Second, list...)
	id := near.tr.(*Transport).setOf(list[0].Rail).groups[0].lanes()[0].id
	ask := func() (answers [][]record) {
		take := func(_ header, r []record) { answers = append(answers, r) }
		a.withdraw(id, []record{{id: 1}, {id: 2}, {id: 3}, {id: 4}}, take)
		a.fence(id, take)
		return answers
	}
	for _, l := range a.allLanes() {
		l.broke(kit.Closed("test"))
	}
	require.Eventually(t, func() bool { l, _, _ := a.find(id); return l == nil }, 5*time.Second, time.Millisecond)
	got := ask()
	require.Equal(t, verdictApplied, int(got[0][0].length))
	require.NotEqual(t, verdictApplied, int(got[0][1].length))
	require.Equal(t, verdictApplied, int(got[0][2].length))
	require.Equal(t, verdictVoid, int(got[0][3].length), "it was never sent, and cannot land any more")
	require.Equal(t, []record{{id: 3}, {id: 2, length: got[0][1].length}}, got[1])
	for i := range uint64(2 * endedLanesMax) {
		l := strangerLane(t, far.tr.(*Transport))
		l.join(t, a, 1000+i)
		l.closeLane()
		require.NoError(t, unix.Close(l.other))
	}
	as := &far.tr.(*Transport).attachments
	as.mu.Lock()
	defer as.mu.Unlock()
	require.LessOrEqual(t, len(a.ended), endedLanesMax)
	require.LessOrEqual(t, len(a.old), endedLanesMax)
}

// Many peers have no more lanes together than their share of the descriptors. One that closes makes room.
func TestLanesOfAllPeersHaveABound(t *testing.T) {
	const most = 12
	e := newTestEndpoint(t, Settings{})
	tr := e.tr.(*Transport)
	tr.attachments.lanesMax = most
	var lanes []pairLane
	open := func() *errs.Error {
		l := strangerLane(t, tr)
		lanes = append(lanes, l)
		peer := transport.Peer{Address: "many", ID: transport.NumberedID(uint64(100 + len(lanes)))}
		a, refused := tr.attachments.issue(peer, version, shield{})
		require.Nil(t, refused)
		_, dropped, refused := tr.attachments.expect(l.responderLane, a.id, 1)
		require.Nil(t, dropped)
		if refused == nil {
			l.mayBuffer(nil, nil)
			require.Nil(t, tr.attachments.admit(l.responderLane, a))
		}
		return refused
	}
	for range most {
		require.Nil(t, open())
	}
	require.NotNil(t, open())
	require.EqualValues(t, 1, e.refused(transport.RefusedLimit))
	lanes[3].closeLane()
	require.Nil(t, open())
	require.NotNil(t, open())
	for _, l := range lanes {
		l.closeLane()
		require.NoError(t, unix.Close(l.other))
	}
	require.Zero(t, tr.attachments.lanes)
}
