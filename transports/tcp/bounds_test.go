package tcp

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

func TestAnOutboxKeepsToWindowAndCredit(t *testing.T) {
	var o outbox
	o.init(4, 115, 40)
	write := &transport.Slice{Op: transport.Write, Length: 60}
	_, ok := o.accept(write)
	require.True(t, ok)
	_, ok = o.accept(write)
	require.False(t, ok, "beyond the window")

	read := &transport.Slice{Op: transport.Read, Length: 30}
	seq, ok := o.accept(read)
	require.True(t, ok)
	_, ok = o.accept(&transport.Slice{Op: transport.Read, Length: 10})
	require.True(t, ok)
	_, ok = o.accept(&transport.Slice{Op: transport.Read, Length: 11})
	require.False(t, ok, "beyond the credit of READs")
	require.Same(t, read, o.dropWaiting(seq))
	require.EqualValues(t, 10, o.readBytes, "a READ that was not sent gives its credit back")
}

func TestRefusalsAreRememberedForTheWholeWindow(t *testing.T) {
	b := inbox{window: 4}
	b.applied = 5
	for seq := uint64(1); seq <= 5; seq++ {
		b.refuse(seq, uint32(errs.PermissionDenied))
	}
	require.Equal(t, verdictApplied, int(b.verdictOf(1)), "nobody may ask any more")
	for seq := uint64(2); seq <= 5; seq++ {
		require.EqualValues(t, errs.PermissionDenied, b.verdictOf(seq))
	}
}

// The answer to a fence has a frame's room for refusals. Beyond that it says less, never that a refused slice landed.
func TestAFenceAnswerNeverCallsARefusedSliceApplied(t *testing.T) {
	for _, refused := range []uint64{0, 1, recordsMax - 1, recordsMax, 1000} {
		v := verdicts{applied: 2000}
		for seq := uint64(1); seq <= refused; seq++ {
			v.refused = append(v.refused, record{id: 2 * seq, length: uint32(errs.PermissionDenied)})
		}
		answer := v.fenceAnswer()
		require.LessOrEqual(t, len(answer), recordsMax)
		heard := verdicts{applied: answer[0].id, refused: answer[1:]}
		for seq := uint64(1); seq <= refused; seq++ {
			require.NotEqualValues(t, verdictApplied, heard.verdictOf(2*seq), "number %d of %d", seq, refused)
		}
		if refused < recordsMax {
			require.EqualValues(t, v.applied, heard.applied)
		}
	}
}

func TestAnAttachmentIsItsOwnPeersAndAPeerHasAFew(t *testing.T) {
	as := &newTestEndpoint(t, Settings{}).tr.(*Transport).attachments
	a, refused := as.issue(visitor, version, shield{})
	require.Nil(t, refused)
	require.Same(t, a, as.lookUp(a.id, visitor.ID))
	require.Nil(t, as.lookUp(a.id, transport.NumberedID(78)), "another peer knows its id")
	for range 3 * attachmentsPerPeer {
		_, refused = as.issue(visitor, version, shield{})
		require.Nil(t, refused)
	}
	require.Len(t, as.ofPeer(&visitor), attachmentsPerPeer)
}

func TestSecretsAreNotPrinted(t *testing.T) {
	k := secret{1, 2, 3}
	require.Equal(t, "secret secret", fmt.Sprintf("%v %s", k, k))
}

func TestEachFieldOfATranscriptChangesBothProofs(t *testing.T) {
	k, other := secret{1}, secret{2}
	sound := transcript{hello: []byte("hello"), nonce: nonce{1}, initiator: transport.NumberedID(1),
		responder: transport.NumberedID(2)}
	for name, change := range map[string]func(*transcript){
		"hello":     func(s *transcript) { s.hello = []byte("hallo") },
		"nonce":     func(s *transcript) { s.nonce[0]++ },
		"initiator": func(s *transcript) { s.initiator = transport.NumberedID(3) },
		"responder": func(s *transcript) { s.responder = transport.NumberedID(3) },
	} {
		changed := sound
		change(&changed)
		for _, by := range []role{byInitiator, byResponder} {
			require.NotEqual(t, sound.sign(&k, by), changed.sign(&k, by), "%s, %s", name, by)
		}
	}
	require.NotEqual(t, sound.sign(&k, byInitiator), sound.sign(&k, byResponder))
	require.NotEqual(t, sound.sign(&k, byInitiator), sound.sign(&other, byInitiator))
}

func TestFramesOfAHandshakeHaveNoPlaceOnAnOpenLane(t *testing.T) {
	for _, h := range []header{{kind: kindHello, length: greetingSize}, {kind: kindProof, length: macSize}} {
		require.Error(t, h.check(true, 0), "%v", h.kind)
		require.NoError(t, h.check(true, h.kind), "%v", h.kind)
	}
}

func TestAFixedRegionIsNotWritten(t *testing.T) {
	c := newCreditor(t, 1<<12)
	m := regionOf(c.memory)
	m.ReadOnly = true // the engine refuses to offer this; the transport does not rely on that
	key, _, err := c.responderLane.t.Register(context.Background(), m)
	require.NoError(t, err)
	_, verdict := c.place(uint64(key), 0, 1, 0, true)
	require.EqualValues(t, errs.PermissionDenied, verdict)
	_, verdict = c.place(uint64(key), 0, 1, 0, false)
	require.EqualValues(t, verdictApplied, verdict)
}

func TestAWithdrawalReachesTheSliceUnderWay(t *testing.T) {
	c := newCreditor(t, 1<<12)
	c.arrive(append(appendFrame(nil, header{kind: kindWrite, length: 4, seq: 1}, record{id: uint64(c.key), length: 4}),
		"done"...))
	c.arrive(append(appendFrame(nil, header{kind: kindWrite, length: 8, seq: 2},
		record{id: uint64(c.key), offset: 8, length: 8}), "half"...))
	answer := c.voidUnlanded([]record{{id: 1}, {id: 2}, {id: 3}})
	require.Equal(t, []record{{id: 1, length: verdictApplied}, {id: 2, length: verdictVoid},
		{id: 3, length: verdictVoid}}, answer)
	before := bytes.Clone(c.memory)
	c.arrive([]byte("late"))
	require.True(t, bytes.Equal(before, c.memory), "it landed after it had been called void")
}

func TestLeaveFencesTheLanes(t *testing.T) {
	c := newCreditor(t, 1<<12)
	c.attachment.Load().leaveCame()
	require.True(t, c.isDown())
}

func TestABrokenLaneAsksAboutTheWritesThatHadLeft(t *testing.T) {
	d := newDebtor(t)
	d.lane.broke(errs.New(errs.Lost, "test", "broken"))
	d.lane.link.settleLane(d.lane, d.w)
	var ended []*transport.Slice
	for _, c := range d.w.ended {
		require.NotNil(t, c.Err)
		ended = append(ended, c.Slice)
	}
	require.ElementsMatch(t, d.slices[2:], ended, "READs, and those that had not left")
}

func TestAFrameHasSlicesOfOneEpoch(t *testing.T) {
	tr := newTestEndpoint(t, Settings{Workers: 1}).tr.(*Transport)
	memory := mapping(t, 1<<12)
	key, _, err := tr.Register(context.Background(), regionOf(memory))
	require.NoError(t, err)
	lane, peer := handLane(t, tr)
	var list []*transport.Slice
	for i, epoch := range []transport.Epoch{4, 4, 5} {
		list = append(list, &transport.Slice{Op: transport.Write, LocalKey: key, RemoteKey: 1, Epoch: epoch,
			Local: mem.AddressOf(memory) + uintptr(i), Length: 1})
	}
	var w *worker
	n, _ := lane.accept(list, &w)
	require.Equal(t, 3, n)
	lane.pump(submitBudget)
	b := make([]byte, 1<<12)
	n, err = unix.Read(peer, b)
	require.NoError(t, err)
	var said []string
	for b = b[:n]; len(b) > 0; {
		h := getHeader(b)
		b = b[headerBytes+int(h.count)*recordBytes+int(h.length):]
		said = append(said, fmt.Sprintf("%v %d", h.kind, max(uint64(h.count), h.seq)))
	}
	require.Equal(t, []string{"epoch 4", "write 2", "epoch 5", "write 3"}, said)
	w = tr.newWorker()
	lane.link.settleLane(lane, w)
	lane.link.fenced(1, []record{{}}, w)
}
