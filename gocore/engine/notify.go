package engine

import (
	"cmp"
	"context"
	"encoding/binary"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// Limits of a notification.
const (
	NoteNameMax    = 255
	NoteMessageMax = 64 << 10

	noteBatchBytes = 64 << 10 // messages travel together up to this, or one alone
	noteBatchMax   = 256      // and up to this many
	noteTries      = 20 * time.Millisecond
	noteCall       = 5 * time.Second
)

// note is a notification on its way out, the last part of its batch.
type note struct {
	batch    dispatch.BatchID
	peer     *peer
	name     []byte
	message  []byte
	trace    string
	deadline clock.Time
	until    clock.Time // no try begins after it: the deadline, or the stall limit
	limit    clock.Time // where its batch ends without it: the same, and later where the batch is closing
	queued   bool       // all bytes of the batch are there: it may be sent
	taken    bool       // the peer has it
	canceled bool       // its batch was cancelled before it was sent, or when it was under way
	closing  bool       // its batch waits for the answer alone
	place    int        // in noteLimits, -1 outside
	number   uint64

	// Guarded by notifier.mu.
	sent    bool // it is in a message, or was
	forgone bool // its batch has ended without it
}

// notify copies a notification into the call; nil is none.
func (c *Call) notify(n *Note) *errs.Error {
	if n == nil {
		return nil
	}
	switch {
	case len(n.Name) > NoteNameMax:
		return errs.New(errs.InvalidArgument, "notify", "the name has %d bytes, at most %d are allowed", len(n.Name),
			NoteNameMax)
	case len(n.Message) > NoteMessageMax:
		return errs.New(errs.InvalidArgument, "notify", "the message has %d bytes, at most %d are allowed",
			len(n.Message), NoteMessageMax)
	case c.told == nil && len(c.files) > 0:
		return errs.New(errs.InvalidArgument, "notify",
			"a file takes no notification").WithHint("engine.notify tells a peer after the transfer")
	case c.told == nil:
		return errs.New(errs.InvalidArgument, "notify", "there is no peer to notify")
	case c.peers > 1:
		return errs.New(errs.InvalidArgument, "notify", "the batch goes to several peers").
			WithHint("send one batch a peer, or engine.notify afterwards")
	}
	c.note = &note{peer: c.told, name: append([]byte(nil), n.Name...), message: append([]byte(nil), n.Message...),
		trace: c.trace, deadline: c.due, place: -1}
	return nil
}

// Notify sends a notification alone; the batch ends when the peer has taken it.
func (e *Engine) Notify(to SegmentID, n Note, deadline clock.Time) (dispatch.BatchID, error) {
	if err := e.usable(); err != nil {
		return 0, err
	}
	h, err := e.segments.get(to)
	if err != nil {
		return 0, err
	}
	if cause := h.peer.gone.Load(); cause != nil {
		return 0, cause
	}
	if h.peer.file != nil {
		return 0, errs.New(errs.InvalidArgument, "notify", "a file takes no notification")
	}
	if err := h.peer.joinBy(cmp.Or(deadline, clock.Never)); err != nil {
		return 0, err
	}
	c := e.newCall()
	defer c.Discard()
	c.told = h.peer
	if err := c.Trace(n.Trace); err != nil {
		return 0, err
	}
	c.sum()
	if err := c.notify(&n); err != nil {
		return 0, err
	}
	if deadline != 0 {
		c.note.deadline = deadline
	}
	return e.start(c)
}

// notifier sends notifications, to each engine one message at a time, so that they arrive in order. It uses a transport
// that carries notifications if there is one, else the control plane. Each has a number that only grows: the receiver
// takes a number once, whichever way it came. It counts by engine, so peers that are one engine under several addresses
// share the order (docs/design/decisions 0211).
//
// Lock order: engine mutex, then mu. Transports and the control plane are called without either.
type notifier struct {
	engine *Engine
	sent   atomic.Uint64

	background
	peers  map[transport.ID]*outgoing
	number uint64 // of the last note to any peer: it only grows, so a receiver never takes a new note for a repetition
}

// outgoing holds the notes for one engine. flying is the message under way; between its tries it loses the notes for
// which no batch waits any more.
type outgoing struct {
	peer      *peer // of the notes in flying, or of the latest ones
	waiting   []*note
	stale     int // of those that wait: their batches have ended
	flying    []*note
	message   []byte // of the notes in flying
	tries     int
	why       *errs.Error // of the last try that has failed
	refused   bool        // by the peer, which had no room; and the next try has not begun
	forgotten bool        // the peer has no handles: the record goes with its last note
}

func newNotifier(e *Engine) *notifier {
	n := &notifier{engine: e, peers: make(map[transport.ID]*outgoing)}
	n.init()
	return n
}

// queue adds a note of a batch that has all its bytes. The caller holds the engine's mutex, and pumps after that.
func (n *notifier) queue(t *note) {
	stall := clock.Now().Add(n.engine.config.Engine.TransferStallTimeout)
	n.mu.Lock()
	o := n.peers[t.peer.id()]
	if o == nil {
		o = &outgoing{peer: t.peer}
		n.peers[t.peer.id()] = o
	}
	o.forgotten = false // a peer that was opened again goes on with the record of its older notes
	t.limit = min(t.deadline, stall)
	t.until = t.limit
	n.number++
	t.number = n.number
	o.waiting = append(o.waiting, t)
	n.mu.Unlock()
}

// putOff gives notes more time, but for their deadlines. The caller holds the engine's mutex.
func (n *notifier) putOff(list []*note, late clock.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, t := range list {
		if t.closing {
			t.limit += late
		} else {
			t.limit = min(t.limit+late, t.deadline)
			t.until = t.limit
		}
	}
}

// await gives a note that is under way until limit for its answer. It returns false for one that is not, or that was
// refused: it can be had back. The caller holds the engine's mutex.
func (n *notifier) await(t *note, limit clock.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if o := n.peers[t.peer.id()]; !t.sent || o != nil && o.refused {
		return false
	}
	t.closing, t.limit, t.until = true, limit, min(t.until, limit)
	return true
}

// forgo takes a note back for which its batch waits no longer. sent is true if it is under way, perhaps to its peer,
// and why is the last error of that.
func (n *notifier) forgo(t *note) (sent bool, why *errs.Error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	t.forgone = true
	o := n.peers[t.peer.id()]
	if o == nil { // it went with its peer
		return t.sent, nil
	}
	if !t.sent {
		if o.stale++; 2*o.stale > len(o.waiting) {
			o.sweep()
			n.dropIdle(o)
		}
	}
	return t.sent, o.why
}

// sweep drops notes that nobody waits for. The caller holds mu.
func (o *outgoing) sweep() {
	o.waiting = slices.DeleteFunc(o.waiting, forgone)
	o.stale = 0
}

// pump sends the messages of all peers that have none under way. The caller holds no lock.
func (n *notifier) pump() {
	for {
		o := n.next()
		if o == nil {
			return
		}
		n.send(o)
	}
}

// next makes the message of a peer that has notes waiting and nothing under way.
func (n *notifier) next() *outgoing {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil
	}
	for _, o := range n.peers {
		if len(o.flying) > 0 || len(o.waiting) == 0 {
			continue
		}
		o.sweep() // one is left: they were not the greater half
		o.peer = o.waiting[0].peer
		size, k := 0, 0
		for k < min(len(o.waiting), noteBatchMax) && o.waiting[k].peer == o.peer &&
			(k == 0 || size+len(o.waiting[k].message) <= noteBatchBytes) {
			size += len(o.waiting[k].message)
			o.waiting[k].sent = true
			k++
		}
		o.flying = append(o.flying, o.waiting[:k]...)
		o.waiting = append(o.waiting[:0], o.waiting[k:]...)
		o.message = encodeNotes(o.message[:0], o.flying)
		o.tries, o.why, o.refused = 0, nil, false
		return o
	}
	return nil
}

// send tries a transport first, which takes no goroutine, and the control plane if there is none or it did not work.
func (n *notifier) send(o *outgoing) {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		n.finish(o, closedError())
		return
	}
	n.running.Add(1)
	n.mu.Unlock()
	defer n.running.Done()
	if !n.hand(o) {
		n.running.Go(func() { n.insist(o) })
	}
}

// hand gives a message to a transport, which calls done. It returns false if none takes it.
func (n *notifier) hand(o *outgoing) bool {
	for i, port := range n.engine.ports {
		if port.notifier == nil || o.tries > 0 {
			continue
		}
		links := *o.peer.links.Load()
		if i >= len(links) {
			continue
		}
		link := links[i]
		if link.id != 0 && port.notifier.Notify(link.link, o.message, func(err *errs.Error) { n.done(o, err) }) {
			return true
		}
	}
	return false
}

// insist sends by the control plane until the peer has taken the message or no batch waits for it any more.
func (n *notifier) insist(o *outgoing) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-n.ctx.Done():
			n.done(o, closedError())
			return
		case <-pause.C:
		}
		if cause := o.peer.gone.Load(); cause != nil {
			n.finish(o, cause)
			return
		}
		left, why := n.timeLeft(o)
		if left <= 0 && n.engine.putOffLimits() {
			left, why = n.timeLeft(o)
		}
		if left <= 0 {
			n.finish(o, notTaken(o.peer, why))
			return
		}
		ctx, cancel := context.WithTimeout(n.ctx, min(noteCall, left+n.engine.answerBound(o.peer)))
		var err error
		if o.peer.identity.Self {
			err = n.engine.notes.take(n.engine.Self(), o.message)
		} else {
			err = n.engine.client.Notify(ctx, o.peer.identity, o.flying[0].number, o.message)
		}
		cancel()
		if err == nil {
			n.finish(o, nil)
			return
		}
		failure := errs.From("notify", err)
		o.peer.blame(failure)
		n.failed(o, failure)
		pause.Reset(noteTries)
	}
}

// timeLeft is the time in which tries of a message may begin: until the last limit of its notes. Those for which no
// batch waits any more leave it: a full queue that has room again would take them. why is the error of the last try.
func (n *notifier) timeLeft(o *outgoing) (left time.Duration, why *errs.Error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if slices.ContainsFunc(o.flying, forgone) {
		o.flying = slices.DeleteFunc(o.flying, forgone)
		o.message = encodeNotes(o.message[:0], o.flying)
	}
	o.refused = false
	last := clock.Time(0)
	for _, w := range o.flying {
		last = max(last, w.until)
	}
	return last.Sub(clock.Now()), o.why
}

func forgone(t *note) bool { return t.forgone }

// failed notes why a try has failed, for the notes with a limit before the next one. A peer that has refused them has
// answered: nothing is under way until the next try, and batches that wait for the answer alone have it.
func (n *notifier) failed(o *outgoing, why *errs.Error) {
	var answered []*note
	n.mu.Lock()
	o.why, o.refused = why, why.Code == errs.TooManyRequests
	for _, w := range o.flying {
		if o.refused && w.closing && !w.forgone {
			w.forgone = true
			answered = append(answered, w)
		}
	}
	n.mu.Unlock()
	if len(answered) > 0 {
		n.answer(answered, notTaken(o.peer, why))
	}
}

// done takes the transport's answer. A message that failed is tried again over the control plane.
func (n *notifier) done(o *outgoing, err *errs.Error) {
	if err != nil && err.Code != errs.EngineClosed {
		n.failed(o, err)
		o.tries++
		n.send(o)
		return
	}
	n.finish(o, err)
}

// finish reports the notes under way to their batches and goes on with the next ones.
func (n *notifier) finish(o *outgoing, err *errs.Error) {
	n.mu.Lock()
	list := o.flying
	o.flying = nil
	n.dropIdle(o)
	n.mu.Unlock()
	if err == nil {
		n.sent.Add(uint64(len(list)))
	}
	n.answer(list, err)
	n.pump()
}

// answer ends the wait of the batches of notes that their peer has taken, or has not, for a cause.
func (n *notifier) answer(list []*note, cause *errs.Error) {
	for _, w := range list {
		n.engine.inbox.notice(notice{kind: noticeNotified, batch: w.batch, cause: cause})
	}
	n.engine.runSteps()
}

// gone fails the notes that wait for a peer that has ended.
func (n *notifier) gone(p *peer, cause *errs.Error) {
	n.mu.Lock()
	var list []*note
	if o := n.peers[p.id()]; o != nil {
		o.sweep()
		theirs := func(w *note) bool { return w.peer.key() == p.key() } // its other addresses may lead to it still
		for _, w := range o.waiting {
			if theirs(w) {
				list = append(list, w)
			}
		}
		o.waiting = slices.DeleteFunc(o.waiting, theirs)
	}
	n.mu.Unlock()
	n.answer(list, cause)
}

// forget drops the record of a peer nobody has open.
func (n *notifier) forget(p *peer) {
	n.mu.Lock()
	if o := n.peers[p.id()]; o != nil {
		o.forgotten = true
		n.dropIdle(o)
	}
	n.mu.Unlock()
}

// dropIdle deletes the record of a forgotten peer once it has no notes left. The caller holds mu.
func (n *notifier) dropIdle(o *outgoing) {
	if o.forgotten && len(o.flying)+len(o.waiting) == 0 {
		delete(n.peers, o.peer.id())
	}
}

// close fails everything that waits or is under way, and returns when no sender is left: none is inside a transport.
func (n *notifier) close() {
	n.background.close()
	var list []*note
	n.mu.Lock()
	for _, o := range n.peers {
		list = append(append(list, o.flying...), o.waiting...)
		o.flying, o.waiting = nil, nil
	}
	n.mu.Unlock()
	n.answer(list, closedError())
}

// encodeNotes packs notes: count u16, then number u64, bytes of name u8, trace u8 and message u32, name, trace, message
// of each.
func encodeNotes(b []byte, list []*note) []byte {
	b = binary.LittleEndian.AppendUint16(b, uint16(len(list)))
	for _, w := range list {
		b = binary.LittleEndian.AppendUint64(b, w.number)
		b = append(b, byte(len(w.name)), byte(len(w.trace)))
		b = binary.LittleEndian.AppendUint32(b, uint32(len(w.message)))
		b = append(append(append(b, w.name...), w.trace...), w.message...)
	}
	return b
}
