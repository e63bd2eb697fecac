package verbs

// #include "shim.h"
import "C"

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Bell is a descriptor to sleep on until an armed queue has a completion: the event channel of verbs.
type Bell struct {
	l *C.tv_library
	c *C.struct_tv_channel
}

// NewBell makes a bell. Several queues may share it.
func (d *Device) NewBell() (*Bell, error) {
	c, err := C.tv_channel_new(d.l, d.c)
	if c == nil {
		return nil, errnoOf("completion channel of "+d.Name, err)
	}
	return &Bell{d.l, c}, nil
}

// Fd belongs to the library and does not block. It is readable when an armed queue has got a completion.
func (c *Bell) Fd() int { return int(c.c.fd) }

// Drain takes the rings of that many queues at most, and returns their number. A queue rings once each time it is
// armed, so to ask for no more than there are queues saves the system call that finds nothing.
func (c *Bell) Drain(queues int) int { return int(C.tv_drain(c.l, c.c, C.int(queues))) }

// Close ends the bell, behind its queues.
func (c *Bell) Close() error {
	return failure("close a completion channel", C.tv_channel_end(c.l, c.c))
}

// Abandon closes the descriptor of a bell that cannot be ended, see Device.Abandon.
func (c *Bell) Abandon() { _ = unix.Close(c.Fd()) }

// Queue is a completion queue.
type Queue struct {
	l       *C.tv_library
	c       *C.struct_tv_cq
	Entries int // more completions than that, not polled, end the queue and all of its pairs
}

// NewQueue makes a queue with room for at least that number of completions.
func (d *Device) NewQueue(entries int, bell *Bell) (*Queue, error) {
	c, err := C.tv_cq_new(d.l, d.c, C.int(entries), bell.c)
	if c == nil {
		return nil, errnoOf("completion queue of "+d.Name, err)
	}
	return &Queue{d.l, c, int(c.cqe)}, nil
}

// Arm asks for one event when a completion comes that is not there yet. The caller polls again after it.
func (q *Queue) Arm() error { return failure("arm a completion queue", C.tv_arm(q.c)) }

// WC is a completion. Only ID, Status and Pair are valid where Status is no success.
type WC struct {
	ID     uint64
	Status Status
	Vendor uint32 // the vendor's own number of an error
	Pair   uint32
	Bytes  uint32
}

// Poll takes completions, Batch at most, and returns their number. The error says that the queue is lost.
func (q *Queue) Poll(into []WC) (int, error) {
	n := C.tv_poll(q.c, (*C.tv_ended)(unsafe.Pointer(unsafe.SliceData(into))), C.int(len(into)))
	if n < 0 {
		return 0, failure("poll a completion queue", n)
	}
	return int(n), nil
}

// Close ends the queue, behind its pairs.
func (q *Queue) Close() error { return failure("close a completion queue", C.tv_cq_end(q.l, q.c)) }
