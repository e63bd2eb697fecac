package engine

import (
	"encoding/binary"
	"sync"
	"time"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// Notification is a small message that a peer sent after its data.
type Notification struct {
	Name, Message []byte
	Peer          string // address of the sender
}

// sendersMax bounds the memory of senders' last numbers; the least recently heard is forgotten first.
const sendersMax = 4096

// notes is the queue of notifications that have arrived: bounded, each taken once, in order per sender. A full queue
// refuses, which holds the sender's transfer back.
type notes struct {
	signal *signal

	mu      sync.Mutex
	queue   []Notification // queue[head:] wait
	head    int
	limit   int
	last    map[transport.ID]*sender
	heard   uint64
	waiting []chan struct{}
	taken   uint64 // counters
	refused uint64
}

type sender struct {
	number uint64 // the last one taken
	heard  uint64
}

func newNotes(limit int, s *signal) *notes {
	return &notes{signal: s, limit: limit, last: make(map[transport.ID]*sender)}
}

// take decodes a message and queues its new notifications: all of them, or none when there is no room.
func (q *notes) take(from transport.Peer, message []byte) error {
	list, numbers, err := decodeNotes(message, from.Address)
	if err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.sender(from.ID)
	fresh := 0
	for fresh < len(list) && numbers[fresh] <= s.number {
		fresh++
	}
	list, numbers = list[fresh:], numbers[fresh:]
	if len(list) == 0 {
		return nil // all of it was taken before; the acknowledgement was lost
	}
	// An empty queue takes any message: one that is larger than the queue would never find room.
	if q.waits() > 0 && q.waits()+len(list) > q.limit {
		q.refused++
		return errs.New(errs.TooManyRequests, "notify", "the notification queue of %d is full", q.limit).
			WithHint("read engine.notifications, or raise notification_queue")
	}
	s.number = numbers[len(numbers)-1]
	q.taken += uint64(len(list))
	if q.waits() == 0 {
		q.signal.raise()
	}
	q.queue = append(q.queue, list...)
	for _, w := range q.waiting {
		close(w)
	}
	q.waiting = nil
	return nil
}

func (q *notes) sender(id transport.ID) *sender {
	q.heard++
	s := q.last[id]
	if s == nil {
		if len(q.last) >= sendersMax {
			q.forgetOldest()
		}
		s = &sender{}
		q.last[id] = s
	}
	s.heard = q.heard
	return s
}

func (q *notes) forgetOldest() {
	var oldest transport.ID
	for k, s := range q.last {
		if oldest.IsZero() || s.heard < q.last[oldest].heard {
			oldest = k
		}
	}
	delete(q.last, oldest)
}

// wait returns how many notifications wait, after at most timeout.
func (q *notes) wait(timeout time.Duration) int {
	q.mu.Lock()
	if n := q.waits(); n > 0 || timeout <= 0 {
		q.mu.Unlock()
		return n
	}
	w := make(chan struct{})
	q.waiting = append(q.waiting, w)
	q.mu.Unlock()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-w:
	case <-timer.C:
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range q.waiting {
		if q.waiting[i] == w {
			q.waiting = append(q.waiting[:i], q.waiting[i+1:]...)
			break
		}
	}
	return q.waits()
}

// drain hands notifications to use until it returns false or none is left; a refused one stays.
func (q *notes) drain(use func(*Notification) bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.waits() > 0 && use(&q.queue[q.head]) {
		q.queue[q.head] = Notification{}
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
	b = b[2:]
	for range count {
		if len(b) < 14 {
			return broken()
		}
		number := binary.LittleEndian.Uint64(b)
		name, message := int(binary.LittleEndian.Uint16(b[8:])), int(binary.LittleEndian.Uint32(b[10:]))
		b = b[14:]
		if name > NoteNameMax || message > NoteMessageMax || len(b) < name+message {
			return broken()
		}
		text := append([]byte(nil), b[:name+message]...)
		list = append(list, Notification{text[:name:name], text[name:], peer})
		numbers = append(numbers, number)
		b = b[name+message:]
	}
	if len(b) != 0 || count == 0 {
		return broken()
	}
	return list, numbers, nil
}

// NotesWait returns how many notifications wait, after at most timeout.
func (e *Engine) NotesWait(timeout time.Duration) int { return e.notes.wait(timeout) }

// NotesDrain hands over waiting notifications in order until use returns false; the refused one stays.
func (e *Engine) NotesDrain(use func(*Notification) bool) { e.notes.drain(use) }
