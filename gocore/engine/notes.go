package engine

import (
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// Notification is a small message that a peer sent after its data.
type Notification struct {
	Name, Message []byte
	Trace         []byte // the sender's name for the transfer before it
	Peer          string // address of the sender

	from *sender
	cost int // of the queue's bytes
}

const (
	// sendersMax bounds the memory of senders' last numbers. It is more than the control plane has connections: there
	// is always one to forget.
	sendersMax = 4096
	// noteJump bounds how far numbers of a sender may skip, at first or later. Notes to other peers and notes that were
	// given up leave gaps; no engine counts as far as this in its life, and nobody reaches the last number.
	noteJump = 1 << 48
	// noteCost is the memory of a waiting notification beside its bytes.
	noteCost = 128
	// A sender has an eighth of the queue, and at least this much of a small one.
	shareBytesMin, shareNumberMin = 1 << 20, 1 << 10
)

// notes is the queue of notifications that have arrived: bounded in number and bytes, each taken once, in order per
// sender. A queue that is full, or full of one sender's, refuses: that holds the sender's transfer back.
type notes struct {
	signal    *signal                 // raised while notifications wait
	connected func(transport.ID) bool // reports whether a sender can be in the middle of a repetition

	mu       sync.Mutex
	queue    []Notification // queue[head:] wait
	head     int
	limit    int // notifications
	bytes    int // that wait
	bytesMax int
	last     map[transport.ID]*sender
	heard    uint64
	came     broadcast // a notification, or the end
	closed   bool
	taken    uint64 // counters
	refused  uint64
}

// sender is one engine that notifies us.
type sender struct {
	number uint64 // the last one taken
	heard  uint64
	waits  int // its notifications in the queue, and their bytes
	bytes  int
}

func newNotes(limit, bytesMax int, connected func(transport.ID) bool) (*notes, error) {
	s, err := newSignal()
	return &notes{signal: s, limit: limit, bytesMax: bytesMax, connected: connected,
		last: make(map[transport.ID]*sender)}, err
}

// take decodes a message and queues its new notifications. Where some find no room it queues those before them and
// returns an error, and the sender repeats the message: a queue that other senders keep full has room for one at some
// time, and for many perhaps never. From names the sender as the control plane or a transport knows it, not as the
// message does.
func (q *notes) take(from transport.Peer, message []byte) error {
	list, numbers, err := decodeNotes(message, from.Address)
	if err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	s, err := q.sender(from.ID)
	if err != nil {
		q.refused++
		return err
	}
	if numbers[len(numbers)-1]-s.number > noteJump && numbers[len(numbers)-1] > s.number {
		return errs.New(errs.Protocol, "notify", "notification %d of %s comes after %d", numbers[len(numbers)-1],
			from.Address, s.number)
	}
	fresh := 0
	for fresh < len(list) && numbers[fresh] <= s.number {
		fresh++
	}
	list, numbers = list[fresh:], numbers[fresh:]
	if len(list) == 0 {
		return nil // all of it was taken before; the acknowledgement was lost
	}
	taken, bytes := 0, 0
	for taken < len(list) {
		if err = q.room(s, taken+1, bytes+list[taken].cost); err != nil {
			q.refused++
			break
		}
		list[taken].from = s
		bytes += list[taken].cost
		taken++
	}
	if taken == 0 {
		return err
	}
	s.number = numbers[taken-1]
	s.waits += taken
	s.bytes += bytes
	q.bytes += bytes
	q.taken += uint64(taken)
	if q.waits() == 0 {
		q.signal.raise()
	}
	q.queue = append(q.queue, list[:taken]...)
	q.came.wake()
	return err
}

// close closes the descriptor. Notifications that wait may still be taken, and no call waits for others.
func (q *notes) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.came.wake()
	_ = q.signal.close()
}

// room reports by an error that the notifications find no room. A sender with nothing in the queue needs not look at
// its own share, and an empty queue takes any notification: one that is larger would never find room.
func (q *notes) room(s *sender, n, bytes int) error {
	var cause string
	switch {
	case q.waits() == 0 && n == 1:
		return nil
	case q.waits()+n > q.limit:
		cause = fmt.Sprintf("the notification queue of %d is full", q.limit)
	case q.bytes+bytes > q.bytesMax:
		cause = fmt.Sprintf("the notification queue of %d bytes is full", q.bytesMax)
	case s.waits == 0:
		return nil
	case s.waits+n > max(q.limit/8, shareNumberMin), s.bytes+bytes > max(q.bytesMax/8, shareBytesMin):
		cause = fmt.Sprintf("%d notifications of %d bytes from this peer wait already, its share of the queue", s.waits,
			s.bytes)
	default:
		return nil
	}
	return errs.New(errs.TooManyRequests, "notify", "%s", cause).
		WithHint("read engine.notifications, or raise notification_queue and notification_bytes")
}

func (q *notes) sender(id transport.ID) (*sender, error) {
	q.heard++
	s := q.last[id]
	if s == nil {
		if len(q.last) >= sendersMax && !q.forgetOldest() {
			return nil, errs.New(errs.TooManyRequests, "notify", "%d peers that are connected have sent notifications",
				sendersMax)
		}
		s = &sender{}
		q.last[id] = s
	}
	s.heard = q.heard
	return s, nil
}

// forgetOldest drops the number of the sender that was heard longest ago. One that is connected stays, since it might
// repeat a message, and one with notifications in the queue, since it might begin another share.
func (q *notes) forgetOldest() bool {
	var oldest transport.ID
	for k, s := range q.last {
		if s.waits == 0 && (oldest.IsZero() || s.heard < q.last[oldest].heard) && !q.connected(k) {
			oldest = k
		}
	}
	delete(q.last, oldest)
	return !oldest.IsZero()
}

// wait returns how many notifications wait, after at most timeout, or at once behind close.
func (q *notes) wait(timeout time.Duration) int {
	q.mu.Lock()
	if n := q.waits(); n > 0 || timeout <= 0 || q.closed {
		q.mu.Unlock()
		return n
	}
	came := q.came.wait()
	q.mu.Unlock()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-came:
	case <-timer.C:
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waits()
}

// drain hands notifications to use until it returns false or none is left; a refused one stays.
func (q *notes) drain(use func(*Notification) bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.waits() > 0 && use(&q.queue[q.head]) {
		n := &q.queue[q.head]
		n.from.waits--
		n.from.bytes -= n.cost
		q.bytes -= n.cost
		*n = Notification{}
		q.head++
	}
	if q.waits() == 0 {
		q.queue, q.head = q.queue[:0], 0
		q.signal.clear()
	} else if q.head > len(q.queue)/2 { // half of it was taken: move the rest down
		n := copy(q.queue, q.queue[q.head:])
		clear(q.queue[n:])
		q.queue, q.head = q.queue[:n], 0
	}
}

func (q *notes) waits() int { return len(q.queue) - q.head }

func decodeNotes(b []byte, peer string) (list []Notification, numbers []uint64, err error) {
	broken := func() ([]Notification, []uint64, error) {
		return nil, nil, errs.New(errs.Protocol, "notify", "a malformed notification of %d bytes came from %s", len(b),
			peer)
	}
	if len(b) < 2 {
		return broken()
	}
	count := int(binary.LittleEndian.Uint16(b))
	if b = b[2:]; count > noteBatchMax {
		return broken()
	}
	for range count {
		if len(b) < 14 {
			return broken()
		}
		number := binary.LittleEndian.Uint64(b)
		name, trace, message := int(b[8]), int(b[9]), int(binary.LittleEndian.Uint32(b[10:]))
		b = b[14:]
		size := name + trace + message
		if trace > TraceMax || message > NoteMessageMax || len(b) < size {
			return broken()
		}
		text := append([]byte(nil), b[:size]...)
		if n := len(numbers); number == 0 || n > 0 && number <= numbers[n-1] {
			return broken()
		}
		list = append(list, Notification{Name: text[:name:name], Trace: text[name : name+trace : name+trace],
			Message: text[name+trace:], Peer: peer,
			cost: len(text) + noteCost})
		numbers = append(numbers, number)
		b = b[size:]
	}
	if len(b) != 0 || count == 0 {
		return broken()
	}
	return list, numbers, nil
}

// NotesWait returns how many notifications wait, after at most timeout or at the end of the engine.
func (e *Engine) NotesWait(timeout time.Duration) int { return e.notes.wait(timeout) }

// NotesDrain hands over waiting notifications in order until use returns false; the refused one stays.
func (e *Engine) NotesDrain(use func(*Notification) bool) { e.notes.drain(use) }

// takeNotes queues the notifications of a message that came over a plane: the control plane, or a transport.
func (e *Engine) takeNotes(plane string, from transport.Peer, message []byte) error {
	from.Address = e.attributed(from)
	err := e.notes.take(from, message)
	if errs.CodeOf(err) == errs.Protocol {
		e.refusals.count(plane, transport.RefusedMalformed, from.Address, err)
	}
	return err
}

// attributed returns the address that notifications of a peer bear. It is the one under which the peer is open here.
// Another peer may claim any address but those of the engines that are open: then it bears its own number.
func (e *Engine) attributed(from transport.Peer) string {
	e.segments.mu.Lock()
	defer e.segments.mu.Unlock()
	if e.segments.peers[peerKey{from.Address, from.ID}] != nil {
		return from.Address
	}
	taken := false
	for key, p := range e.segments.peers {
		if key.id == from.ID {
			return key.address
		}
		taken = taken || key.address == from.Address && p.file == nil && p.gone.Load() == nil
	}
	if taken {
		return from.ID.String()
	}
	return from.Address
}
