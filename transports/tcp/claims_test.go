package tcp

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// debtor is an initiator's lane of which the test is the responder. Slices 1 and 2 are WRITEs, 3 and 4 are READs of 64
// bytes with a checksum; all are sent but for a fifth and a sixth, one of each.
type debtor struct {
	*testing.T
	lane   *initiatorLane
	peer   int
	memory []byte
	before []byte
	slices []*transport.Slice
	w      *worker
}

func newDebtor(t *testing.T) *debtor {
	tr := newTestEndpoint(t, Settings{Workers: 1}).tr.(*Transport)
	d := &debtor{T: t, memory: mapping(t, 1<<12), w: tr.newWorker()}
	key, _, err := tr.Register(context.Background(), regionOf(d.memory))
	require.NoError(t, err)
	d.before = bytes.Clone(d.memory)
	d.lane, d.peer = handLane(t, tr)
	for i, op := range []transport.Op{transport.Write, transport.Write, transport.Read, transport.Read, transport.Write,
		transport.Read} {
		d.slices = append(d.slices, &transport.Slice{Op: op, Checked: op == transport.Read, LocalKey: key, RemoteKey: 1,
			Local: mem.AddressOf(d.memory) + uintptr(i)*64, Length: 64})
	}
	var w *worker
	for _, list := range [][]*transport.Slice{d.slices[:4], d.slices[4:]} {
		n, _ := d.lane.accept(list, &w)
		require.Len(t, list, n)
		if len(list) == 4 {
			d.lane.pump(submitBudget)
		}
	}
	t.Cleanup(func() { // the lane and its socket go with the link
		d.lane.link.settleLane(d.lane, d.w)
		d.lane.link.fenced(1, []record{{}}, d.w)
	})
	return d
}

// says sends frames of the responder, and has the lane read them.
func (d *debtor) says(stream []byte) {
	_, err := unix.Write(d.peer, stream)
	require.NoError(d, err)
	d.lane.readMu.Lock()
	defer d.lane.readMu.Unlock()
	for n, open := 1, true; n > 0 && open; {
		n, open = d.lane.drain(d.w, 1<<20)
	}
}

// dataFrame is a DATA frame of zeros, with the given records, and its SERVED.
func dataFrame(flag uint8, records ...record) []byte {
	sum := uint32(0)
	for _, r := range records {
		sum += r.length
	}
	b := appendFrame(nil, header{kind: kindData, flag: flag, length: sum}, records...)
	return appendFrame(append(b, make([]byte, sum)...), header{kind: kindServed})
}

// TestAResponderEndsNoSliceThatItHasNotServed plays broken and hostile responders. Their frames may end the lane. They
// never make a slice COMPLETED, and never touch memory that was not given to them.
func TestAResponderEndsNoSliceThatItHasNotServed(t *testing.T) {
	const checked = flagChecked
	for name, frames := range map[string][]byte{
		"an acknowledgement of a WRITE that was not sent": appendFrame(nil, header{kind: kindAck, seq: 5}),
		"an acknowledgement of nothing":                   appendFrame(nil, header{kind: kindAck, seq: 1 << 40}),
		"a verdict about a WRITE that was not sent": appendFrame(nil, header{kind: kindConfirm, seq: 1},
			record{id: 5}),
		"a verdict about a READ that was not sent": appendFrame(nil, header{kind: kindConfirm, seq: 1},
			record{id: 6}),
		"a READ that was applied": appendFrame(nil, header{kind: kindConfirm, seq: 1}, record{id: 3},
			record{id: 4}),
		"a fence that nobody has asked for": appendFrame(nil, header{kind: kindFenced, seq: 1}, record{id: 2}),
		"a refusal without a reason":        appendFrame(nil, header{kind: kindNack}, record{id: 1}),
		"payload of a WRITE":                dataFrame(0, record{id: 1, length: 64}),
		"payload of what was not sent":      dataFrame(checked, record{id: 6, length: 64}),
		"payload that is longer":            dataFrame(checked, record{id: 3, length: 65}),
		"payload that begins in the middle": dataFrame(checked, record{id: 3, offset: 32, length: 32}),
		"payload without its checksum":      dataFrame(0, record{id: 3, length: 64}),
		"payload with a wrong checksum":     dataFrame(checked, record{id: 3, length: 64, classOrSum: 1}),
		"payload twice in a frame": dataFrame(checked, record{id: 3, length: 32}, record{id: 3, offset: 32,
			length: 32}),
		"payload of no bytes": dataFrame(checked, record{id: 3}),
		"payload that was not said to be whole": append(dataFrame(checked, record{id: 3, length: 64})[:headerBytes+
			recordBytes+64], dataFrame(checked, record{id: 4, length: 64})...),
		"whole without payload": appendFrame(nil, header{kind: kindServed}),
	} {
		t.Run(name, func(t *testing.T) {
			d := newDebtor(t)
			d.says(frames)
			for _, c := range d.w.ended {
				require.NotNil(t, c.Err, "slice %d", c.Slice.Local-mem.AddressOf(d.memory))
			}
			for _, s := range d.slices[4:] {
				for _, c := range d.w.ended {
					require.NotSame(t, s, c.Slice, "it was never sent")
				}
			}
			if strings.HasPrefix(name, "payload") && name != "payload with a wrong checksum" {
				require.True(t, d.lane.isDown(), "a lane with such a responder goes on")
			}
			require.Equal(t, d.before[:128], d.memory[:128], "sources")
			require.Equal(t, d.before[256:], d.memory[256:], "what is behind the READs that were sent")
		})
	}
}

// TestAnHonestResponderIsBelieved shows that the lane of the test above takes right frames.
func TestAnHonestResponderIsBelieved(t *testing.T) {
	d := newDebtor(t)
	d.says(appendFrame(nil, header{kind: kindAck, seq: 2}))
	zeros, _ := checksum(mem.AddressOf(make([]byte, 64)), 64)
	d.says(dataFrame(flagChecked, record{id: 3, length: 64, classOrSum: zeros}))
	require.Len(t, d.w.ended, 3)
	for _, c := range d.w.ended {
		require.Nil(t, c.Err)
	}
	require.Equal(t, make([]byte, 64), d.memory[128:192])
}

// creditor is a responder's lane with a region; the test is its initiator.
type creditor struct {
	pairLane
	t      *testing.T
	memory []byte
	key    transport.LocalKey
	w      *worker
}

func newCreditor(t *testing.T, size int) *creditor {
	tr := newTestEndpoint(t, Settings{}).tr.(*Transport)
	c := &creditor{pairLane: strangerLane(t, tr), t: t, memory: mapping(t, size), w: tr.newWorker()}
	t.Cleanup(func() { require.NoError(t, unix.Close(c.other)) })
	t.Cleanup(c.closeLane)
	var err error
	c.key, _, err = tr.Register(context.Background(), regionOf(c.memory))
	require.NoError(t, err)
	c.admitted(t, 1)
	return c
}

func (c *creditor) arrive(b []byte) {
	_, err := unix.Write(c.other, b)
	require.NoError(c.t, err)
	c.readMu.Lock()
	defer c.readMu.Unlock()
	c.drain(c.w, 1<<20)
}

// frames reads the kinds of the frames that the responder has sent.
func (c *creditor) frames() (list []header) {
	b := make([]byte, 1<<16)
	n, _ := unix.Read(c.other, b)
	for b = b[:max(n, 0)]; len(b) >= headerBytes; {
		h := getHeader(b)
		list = append(list, h)
		b = b[headerBytes+int(h.count)*recordBytes:]
	}
	return list
}

// TestNothingLandsAfterFenced fences a lane in the middle of a slice. The bytes that the kernel has taken from the
// peer, and those that were received together with the header, stay where they are.
func TestNothingLandsAfterFenced(t *testing.T) {
	const half = 1 << 16
	frame := func(c *creditor) []byte {
		return appendFrame(nil, header{kind: kindWrite, length: 2 * half, seq: 1},
			record{id: uint64(c.key), length: 2 * half})
	}
	more := bytes.Repeat([]byte("AFTER FENCED WAS ANSWERED, "), half/27)
	for name, step := range map[string]func(c *creditor){
		"in the socket": func(c *creditor) { _, _, _ = c.receivePayload() },
		"in the buffer": func(c *creditor) {
			c.rx.r, c.rx.w = 0, copy(c.rx.staging, more)
			_ = c.parse()
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCreditor(t, 4*half)
			c.arrive(append(frame(c), bytes.Repeat([]byte{7}, half)...))
			require.Equal(t, bytes.Repeat([]byte{7}, half), c.memory[:half], "the first half has landed")
			_, err := unix.Write(c.other, more)
			require.NoError(t, err)
			before := bytes.Clone(c.memory)
			c.readMu.Lock() // a thread that reads the lane looks at the fence with each piece
			answer := c.fence()
			step(c)
			c.readMu.Unlock()
			require.Equal(t, []record{{id: 0}}, answer, "nothing was whole")
			require.True(t, bytes.Equal(before, c.memory), "bytes landed after FENCED was answered")
		})
	}
}

// TestRevokeWaitsForThePieceUnderWay holds a lane in the middle of a piece.
func TestRevokeWaitsForThePieceUnderWay(t *testing.T) {
	c := newCreditor(t, 1<<12)
	c.copyMu.Lock()
	done := make(chan error, 1)
	go func() { done <- c.responderLane.t.Revoke(context.Background(), c.key, nil, transport.ForGood) }()
	r := c.responderLane.t.regions.Lookup(uint64(c.key))
	require.Eventually(t, func() bool { return r.door.Admits(visitor.ID, 1) != 0 }, 5*time.Second, time.Millisecond)
	select {
	case <-done:
		require.Fail(t, "Revoke has returned in the middle of a piece")
	case <-time.After(20 * time.Millisecond): // it can only pass by mistake, never fail by one
	}
	c.copyMu.Unlock()
	require.NoError(t, <-done)
}

// TestASliceGoesOnWhereItStoodWhenAnotherRegionIsRevoked revokes in the middle of a slice, whose place is then looked
// up again.
func TestASliceGoesOnWhereItStoodWhenAnotherRegionIsRevoked(t *testing.T) {
	const size, part = 1 << 12, 1000
	c := newCreditor(t, size)
	other, _, err := c.responderLane.t.Register(t.Context(), regionOf(mapping(t, size)))
	require.NoError(t, err)
	payload := make([]byte, size)
	for i := range payload {
		payload[i] = byte(i*7 + i>>8)
	}
	frame := appendFrame(nil, header{kind: kindWrite, length: size, seq: 1}, record{id: uint64(c.key), length: size})
	c.arrive(append(frame, payload[:part]...))
	require.EqualValues(t, part, c.rx.at)
	require.NoError(t, c.responderLane.t.Revoke(t.Context(), other, nil, transport.ForGood))
	c.arrive(payload[part:])
	require.Equal(t, payload, c.memory[:size])
	require.Equal(t, []header{{kind: kindAck, seq: 1}}, c.frames())
}

// TestWithdrawalsOfAHostilePeerAreBounded asks about ever more numbers that never come.
func TestWithdrawalsOfAHostilePeerAreBounded(t *testing.T) {
	c := newCreditor(t, 1<<12)
	answered := 0
	for i := range uint64(100) {
		asked := make([]record, recordsMax)
		for k := range asked {
			asked[k].id = 1 + i*recordsMax + uint64(k)
		}
		answered += len(c.voidUnlanded(asked))
	}
	require.EqualValues(t, c.in.window, len(c.in.voids))
	require.EqualValues(t, c.in.window, answered, "of more there is no answer")
}

// TestALongBurstIsAcknowledgedInItsMiddle: else the sender's window would move when the socket runs dry.
func TestALongBurstIsAcknowledgedInItsMiddle(t *testing.T) {
	c := newCreditor(t, 1<<12)
	c.arrive(append(appendFrame(nil, header{kind: kindWrite, length: 4, seq: 1}, record{id: uint64(c.key), length: 4}),
		"data"...))
	require.Equal(t, []header{{kind: kindAck, seq: 1}}, c.frames())
	c.readMu.Lock()
	defer c.readMu.Unlock()
	c.in.applied, c.unacked = 2, ackBytes-1
	c.acknowledge(false)
	c.pump(submitBudget)
	require.Empty(t, c.frames())
	c.unacked = ackBytes
	c.acknowledge(false)
	c.pump(submitBudget)
	require.Equal(t, []header{{kind: kindAck, seq: 2}}, c.frames())
}

// A peer that closes says first which WRITEs have landed.
func TestTheLastAcknowledgementComesBeforeBye(t *testing.T) {
	c := newCreditor(t, 1<<12)
	c.copyMu.Lock()
	c.in.applied = 7
	c.copyMu.Unlock()
	require.True(t, c.sayGoodbye(byeClosed))
	require.Equal(t, []header{{kind: kindAck, seq: 7}, {kind: kindBye}}, c.frames())
}

// TestLeaveWaitsForWhatIsOutstanding: with it the responder forgets the verdicts.
func TestLeaveWaitsForWhatIsOutstanding(t *testing.T) {
	d := newDebtor(t)
	l := d.lane.link
	set := d.lane.set
	set.groups[0].add(d.lane)
	set.rail.live.Store(set)
	l.rails.Store(&[]*rail{set.rail})
	said := func() bool {
		d.lane.pump(submitBudget)
		var b [1 << 16]byte
		n, err := unix.Read(d.peer, b[:])
		if err != nil {
			return false
		}
		return bytes.Contains(b[:n], appendFrame(nil, header{kind: kindLeave}))
	}
	l.sayLeave()
	require.False(t, said())
	for d.lane.out.head < d.lane.out.tail {
		d.lane.mu.Lock()
		e := d.lane.out.at(d.lane.out.head)
		d.lane.out.next = d.lane.out.tail
		d.lane.out.detachSlice(e)
		d.lane.out.retire(e)
		d.lane.mu.Unlock()
	}
	l.sayLeave()
	require.True(t, said())
}

// TestASliceThatLostBytesIsRefusedAlthoughItsPlaceIsBack discards a part of a slice. Its place is looked up again at a
// fence of another region, and the rest would land beside a hole.
func TestASliceThatLostBytesIsRefusedAlthoughItsPlaceIsBack(t *testing.T) {
	const size = 1 << 12
	p := newPackets(t, size, shield{})
	before := bytes.Clone(p.memory)
	frame, payload := p.frame(1, size)
	arrive := func(n int) { // at least half of the rest: the kernel reports it at once
		require.True(t, p.send(frame[:n], 10_000))
		frame = frame[n:]
	}
	arrive(len(frame) - size/2)
	takeAway(t, p.memory)
	arrive(size / 4)
	require.NoError(t, unix.Mprotect(p.memory, unix.PROT_READ|unix.PROT_WRITE))
	other, _, err := p.responderLane.t.Register(t.Context(), regionOf(mapping(t, size)))
	require.NoError(t, err)
	require.NoError(t, p.responderLane.t.Revoke(t.Context(), other, nil, transport.ForGood))
	arrive(size / 4)
	require.Equal(t, payload[:size/2], p.memory[:size/2])
	require.Equal(t, before[size/2:], p.memory[size/2:])
	p.copyMu.Lock()
	defer p.copyMu.Unlock()
	require.EqualValues(t, 1, p.in.applied)
	require.EqualValues(t, errs.AddressNotRegistered, p.in.verdictOf(1))
}
