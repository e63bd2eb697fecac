package transport

// Optional interfaces of transports that let the goroutine that waits for completions find them itself. Waking a thread
// that sleeps costs 10 to 80 µs; a small transfer takes less.
type (
	// Poller is a transport that finds its completions, or does its work, on the goroutine that waits for them.
	// Info.Copies says that it does work.
	Poller interface {
		// Poll does up to budget pieces of work without blocking (looks at sockets or queues, copies a queued piece)
		// and returns how many it did. Sockets that other classes have to themselves are left alone, as in Watch.
		// Between a Poll and the next Arm the transport's own goroutines may stay asleep about the rest.
		Poll(budget int, classes Classes) int
		// Arm hands the work back to the transport's own goroutines. Each waiter that called Poll calls Arm exactly
		// once, before it parks or leaves.
		Arm()
	}

	// Parker is a Poller with descriptors that waiters sleep on: sockets, the event channel of a completion queue. A
	// waiter sleeps on those of all transports at once, in one ppoll, and reads the ready ones itself. Several may.
	//
	//	Watch of each --> Arm of each --> ppoll over all appended ones --> Woken of each --> Arm of each
	//	      ^                                                                      |
	//	      +--------------------------the batch is pending------------------------+
	Parker interface {
		Poller
		// Watch appends the descriptors by which something that is expected in some classes will show, WatchesMost at
		// most, and none when nothing is expected. Descriptors that other classes have to themselves are left out: a
		// waiter of HIGH would work for LOW, and the system lets its thread wait for that later. An answer that has
		// come and was not polled yet makes its descriptor ready. Until Woken the transport leaves these descriptors to
		// the caller; its own goroutines look after everything else once Arm was called.
		Watch(list []Watch, classes Classes) []Watch
		// Woken ends a Watch that appended something. It is given those entries with Ready filled in, and polls the
		// ready ones. The others may have ended meanwhile. Arm is owed as after Poll.
		Woken(list []Watch)
	}

	// Exclusive is a Parker with bells: descriptors that ring for answers to anybody, as a completion channel does.
	// Watch appends all bells, or none. A waiter hangs them up in an epoll of its own, once, and sleeps there. The
	// kernel then wakes one waiter for a ring, or the transport's own goroutine where none sleeps (EPOLLEXCLUSIVE in
	// epoll_ctl(2)), and a sleep changes nothing in any epoll. A waiter that sleeps on a bell in another way is woken
	// beside the goroutine.
	Exclusive interface {
		Parker
		// Hang puts the bell of a Watch into a waiter's epoll, in front of the transport's own entry for it. The event
		// has its descriptor. The bell leaves by itself when it is closed.
		Hang(epoll int, bell Watch) error
	}
)

// Classes is a set of priority classes: bit i is class i.
type Classes uint8

// AllClasses is the set of all of them.
const AllClasses = ^Classes(0)

// Watch is a descriptor that a waiter sleeps on.
type Watch struct {
	Fd     int32
	Events int16  // of poll(2), to wait for
	Ready  int16  // those that have come; 0 when something else ended the sleep
	Tag    uint64 // the transport's own name of the end behind it: the number may be another descriptor's by now

	Hangs bool // for the waiter that sleeps: it is in the waiter's epoll
}

// WatchesMost bounds the descriptors of one transport that a waiter sleeps on. Others are left to the transport's own
// goroutines.
const WatchesMost = 16
