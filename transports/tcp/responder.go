package tcp

import (
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// responderLane is the end of a connection on the side that owns the regions. It writes payload into them, serves
// READs, and answers the initiator's questions. It closes itself (closeLane) soon after it has gone down.
type responderLane struct {
	conn
	from       netip.Addr                 // the host of the initiator's end, see hostOf
	end        netip.Addr                 // our address; set before the lane is part of its attachment
	attachment atomic.Pointer[attachment] // nil until the lane has proved that it belongs there
	admission  *admission                 // between HELLO and PROOF; guarded by readMu
	greetBy    atomic.Pointer[time.Timer] // ends a lane that does not prove itself
	picked     bool                       // to go for other strangers; guarded by strangers.mu
	own        bool                       // the initiator is our own engine; set before any payload
	near       bool                       // the initiator is on our own host; set before any payload
	initiator  transport.ID               // set before any payload
	epoch      uint64                     // of the slices that come now; guarded by readMu

	in      inbox  // guarded by copyMu
	unacked uint64 // bytes that have landed since the last acknowledgement; guarded by readMu

	// Guarded by mu.
	reads  readQueue
	ackSeq uint64 // the highest number that was or is to be acknowledged
	ackDue bool
}

// newResponderLane makes a lane of an accepted socket. It gets its buffers when it has proved itself.
func (t *Transport) newResponderLane(fd int, from netip.Addr) *responderLane {
	l := &responderLane{from: from}
	l.in.window = uint64(t.settings.CreditRequests)
	l.init(t, fd, l, stateGreeting, &responderMoves)
	return l
}

func (l *responderLane) peerName() string {
	if a := l.attachment.Load(); a != nil {
		return a.peer.Address
	}
	return l.from.String()
}

func (l *responderLane) railName() string { return "" }

func (l *responderLane) reduceInterest(events uint32) uint32 { return events }
func (l *responderLane) wrote()                              {}

func (l *responderLane) checkHeader(h header) error {
	due := l.due()
	err := h.check(true, due)
	if err != nil && due != 0 {
		l.t.host.Refused(transport.RefusedMalformed, l.peerName(), err)
	}
	return err
}

// wentDown closes the lane on a goroutine of its own, which waits until nobody uses the socket. A transport that closes
// has no such goroutines any more and closes its lanes itself.
func (l *responderLane) wentDown() { l.t.spawn(l.closeLane) }

// closeLane closes the socket and leaves the lane's verdicts to its attachment.
func (l *responderLane) closeLane() {
	l.readMu.Lock()
	l.writeMu.Lock()
	closed := l.closeSocket()
	named := l.attachment.Load()
	if l.admission != nil {
		named = l.admission.attachment
	}
	l.writeMu.Unlock()
	l.readMu.Unlock()
	if !closed {
		return
	}
	if timer := l.greetBy.Swap(nil); timer != nil {
		timer.Stop()
	}
	l.mu.Lock()
	l.reads = readQueue{}
	l.ctl = nil
	l.mu.Unlock()
	if named != nil {
		l.t.attachments.remove(l, named)
	} else {
		l.t.strangers.remove(l)
	}
}

// inbox is the account of the numbers that came on a responder's lane. Guarded by copyMu.
type inbox struct {
	verdicts
	window uint64 // numbers a peer may have outstanding
	began  uint64 // highest number seen
	voids  []uint64

	overflow bool // a refusal found no room: nothing may be acknowledged any more
}

// verdicts answer late questions about a lane.
type verdicts struct {
	applied uint64   // every number up to it has landed, was refused, or was a READ
	refused []record // numbers within the window that did not land, and why
}

// refuse remembers that a number did not land, for as long as the initiator may ask about it.
func (b *inbox) refuse(seq uint64, verdict uint32) {
	old := 0
	for old < len(b.refused) && b.refused[old].id+b.window <= seq {
		old++
	}
	b.refused = append(slices.Delete(b.refused, 0, old), record{id: seq, length: verdict})
}

// verdictOf returns the fate of a number on a lane that takes nothing more.
func (v *verdicts) verdictOf(seq uint64) uint32 {
	if seq > v.applied {
		return verdictVoid
	}
	for i := range v.refused {
		if v.refused[i].id == seq {
			return v.refused[i].length
		}
	}
	return verdictApplied
}

// fenceAnswer is the table of a FENCED frame: the highest number that landed, then the exceptions below it.
func (v *verdicts) fenceAnswer() []record {
	applied, exceptions := v.applied, v.refused
	if len(exceptions) > recordsMax-1 { // less than we know rather than something wrong
		exceptions = exceptions[:recordsMax-1]
		applied = exceptions[len(exceptions)-1].id
	}
	return append([]record{{id: applied}}, exceptions...)
}

// countNumbers checks the numbers of a frame that begins: they grow.
func (l *responderLane) countNumbers(first uint64, count int) *errs.Error {
	last := first + uint64(count) - 1
	if first <= l.in.began || last < first || last-l.in.began > 1<<40 {
		return l.protocolError("numbers %d to %d after %d", first, last, l.in.began)
	}
	l.in.began = last
	return nil
}

func (l *responderLane) beginPayload() *errs.Error {
	return l.countNumbers(l.rx.head.seq, len(l.rx.table))
}

// locate finds the destinations of slices from i on; codes hold the reason why one has none.
func (l *responderLane) locate(i int) {
	x := &l.rx
	for ; i < len(x.table); i++ {
		r := &x.table[i]
		if i == x.i && x.at > 0 && x.place[i] == 0 {
			continue // it was refused in its middle, and stays so
		}
		addr, verdict := l.place(r.id, r.offset, r.length, l.epoch, true)
		if len(l.in.voids) > 0 && slices.Contains(l.in.voids, x.head.seq+uint64(i)) {
			verdict = verdictVoid
		}
		x.codes[i], x.place[i] = verdict, addr
		if verdict != 0 {
			x.place[i] = 0
		} else if i == x.i {
			x.place[i] += uintptr(x.at)
		}
	}
}

// landed ends the i-th slice: it is in its place, or its payload was discarded.
func (l *responderLane) landed(i int) {
	seq := l.rx.head.seq + uint64(i)
	l.unacked += uint64(l.rx.table[i].length)
	l.in.applied = seq
	verdict := l.rx.codes[i]
	if verdict == 0 && l.rx.checked() {
		verdict = uint32(l.rx.verify(i))
	}
	if verdict == 0 {
		return
	}
	l.in.refuse(seq, verdict)
	if k := slices.Index(l.in.voids, seq); k >= 0 {
		l.in.voids = slices.Delete(l.in.voids, k, k+1)
	}
	l.in.overflow = !l.post(header{kind: kindNack}, l.refusal(seq, verdict)) || l.in.overflow
}

// refusal is the record of a NACK. It brings the epoch, for an initiator that did not hear of a fence.
func (l *responderLane) refusal(seq uint64, verdict uint32) record {
	switch code := errs.Code(verdict); code {
	case errs.AddressNotRegistered, errs.PermissionDenied, errs.InvalidArgument:
		err := errs.New(code, "tcp.serve", "slice %d of lane %d: %v", seq, l.id, code)
		l.t.host.Refused(transport.RefusedAccess, l.peerName(), err.WithScope(errs.ScopeSlice, errs.SideRemote))
	}
	return record{id: seq, offset: l.t.epoch.Load(), length: verdict}
}

// ackBytes is how much a long burst may bring before it is acknowledged in its middle, so that windows move.
const ackBytes = 256 << 10

// acknowledge queues one cumulative acknowledgement when a burst is over or long.
func (l *responderLane) acknowledge(drained bool) {
	if l.unacked == 0 || (!drained && l.unacked < ackBytes) {
		return
	}
	l.copyMu.Lock()
	applied, overflow := l.in.applied, l.in.overflow
	l.copyMu.Unlock()
	if overflow {
		l.broke(l.protocolError("refusals pile up: peer does not read"))
		return
	}
	l.mu.Lock()
	if applied > l.ackSeq && l.life.state().live() {
		l.ackSeq, l.ackDue = applied, true
		l.dirty.Store(true)
	}
	l.mu.Unlock()
	l.unacked = 0
}

// gather takes the acknowledgement that is due, waiting answers, and payload of the most urgent READ.
func (l *responderLane) gather(x *transmitter) {
	if l.ackDue {
		l.ctl = appendFrame(l.ctl, header{kind: kindAck, seq: l.ackSeq})
		l.ackDue = false
	}
	l.ctl, x.ctl = x.ctl[:0], l.ctl
	l.gatherData(x) // may refuse a READ, which adds to x.ctl
}

// handle takes a frame without payload from the initiator, or one with a message.
func (l *responderLane) handle() *errs.Error {
	x := &l.rx
	answer := func(h header, r []record) { l.answerOrEnd(h, r...) }
	switch x.head.kind {
	case kindHello:
		return l.helloCame()
	case kindProof:
		return l.proofCame()
	case kindRead:
		return l.readsCame()
	case kindWithdraw:
		l.attachment.Load().withdraw(x.head.seq, x.table, answer)
	case kindFence:
		l.attachment.Load().fence(x.head.seq, answer)
	case kindNotify:
		l.notifyCame()
	case kindPing:
		l.answerOrEnd(header{kind: kindPong, seq: x.head.seq})
	case kindLeave:
		l.attachment.Load().leaveCame()
	case kindEpoch:
		l.epoch = x.head.seq
		l.attachment.Load().hears(l.epoch)
	}
	return nil
}

// notifyCame offers a message to the core, which takes it unless its queue is full.
func (l *responderLane) notifyCame() {
	message := append([]byte(nil), l.rx.body...) // the engine may keep it
	taken := uint8(0)
	if l.t.sink.Notified(l.attachment.Load().peer, message) {
		taken = 1
	}
	l.answerOrEnd(header{kind: kindNotified, flag: taken, seq: l.rx.head.seq})
}

// answerOrEnd posts an answer; a peer that lets them pile up is cut off.
func (l *responderLane) answerOrEnd(h header, records ...record) {
	if !l.post(h, records...) && !l.isDown() {
		l.broke(l.protocolError("answers pile up: peer does not read"))
	}
}

// voidUnlanded marks numbers void that have not landed, and returns the verdict of each. It waits for a piece under
// way, because of copyMu, and for nothing else.
func (l *responderLane) voidUnlanded(asked []record) []record {
	l.copyMu.Lock()
	defer l.copyMu.Unlock()
	answer := make([]record, 0, len(asked))
	for _, r := range asked {
		verdict := uint32(verdictVoid)
		if r.id <= l.in.applied {
			verdict = l.in.verdictOf(r.id)
		} else if !slices.Contains(l.in.voids, r.id) && uint64(len(l.in.voids)) < l.in.window {
			l.in.voids = append(l.in.voids, r.id)
			l.changed = true
		} else if uint64(len(l.in.voids)) >= l.in.window {
			continue // more than can be outstanding: no answer
		}
		answer = append(answer, record{id: r.id, length: verdict})
	}
	return answer
}

// fence ends a lane for good and returns the table of the FENCED answer. It waits for a piece under way.
func (l *responderLane) fence() []record {
	cause := errs.New(errs.StaleGeneration, "tcp.fence", "peer has given this lane up").
		WithScope(errs.ScopeRail, errs.SideRemote)
	l.copyMu.Lock()
	first := l.markEnd(eventFenced, cause)
	answer := l.in.fenceAnswer()
	l.copyMu.Unlock()
	if first {
		l.shutdown()
		l.wentDown()
	}
	return answer
}

// findEnd notes at which of our addresses the lane ends.
func (l *responderLane) findEnd() {
	l.armMu.Lock()
	defer l.armMu.Unlock()
	if l.fd < 0 {
		return
	}
	if name, err := unix.Getsockname(l.fd); err == nil {
		l.end = addrPort(name).Addr().Unmap().WithZone("")
	}
}
