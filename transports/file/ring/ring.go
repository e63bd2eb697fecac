// Package ring is one io_uring that belongs to one goroutine: reads, writes, cancellations, and the wait for their
// ends. It is all of github.com/pawelgaczynski/giouring that tent uses, with the mistakes of that library set right:
//
//   - a submission entry is zeroed before it is prepared, since Prepare leaves fields of the entry's last use in it;
//   - EINTR, which Go's own preemption signal causes all the time, ends a wait early instead of failing it;
//   - nothing of it that takes a Go string, slice or interface is called: those pass the address of the header.
//
// Linking needs -ldflags=-checklinkname=0: the library reaches syscall.munmap by linkname (decision 0130).
package ring

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/pawelgaczynski/giouring"
)

// Ring is used by the goroutine that opened it and no other; that goroutine must be locked to its thread.
type Ring struct {
	uring *giouring.Ring
	ready []*giouring.CompletionQueueEvent
}

// Event is the end of one operation.
type Event struct {
	Tag    uint64
	Result int32 // bytes, or a negated errno
}

// needed are the operations without which this kernel's io_uring is of no use.
var needed = [...]uint8{giouring.OpRead, giouring.OpWrite, giouring.OpReadv, giouring.OpWritev, giouring.OpAsyncCancel}

// setups are tried in order. The first lets completions wait until the owner looks (since 6.1), the second spares it
// interrupts (5.19), the third is every kernel.
var setups = [...]uint32{
	giouring.SetupSingleIssuer | giouring.SetupDeferTaskrun | giouring.SetupClamp,
	giouring.SetupCoopTaskrun | giouring.SetupClamp,
	giouring.SetupClamp,
}

// Probe says why there can be no ring in this process: the kernel has none, forbids it, or lacks an operation. It
// leaves nothing behind.
func Probe() error {
	r := giouring.NewRing()
	if err := r.QueueInit(2, 0); err != nil {
		return refusal(err)
	}
	defer r.QueueExit()
	probe, err := r.GetProbeRing()
	if err != nil {
		return fmt.Errorf("the kernel's io_uring is older than Linux 5.6: %w", err)
	}
	for _, op := range needed {
		if !probe.IsSupported(op) {
			return fmt.Errorf("the kernel's io_uring lacks operation %d", op)
		}
	}
	return nil
}

func refusal(err error) error {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return err
	}
	switch errno {
	case syscall.ENOSYS:
		return fmt.Errorf("this kernel has no io_uring: %w", errno)
	case syscall.EPERM, syscall.EACCES:
		return fmt.Errorf("io_uring is forbidden here, by seccomp or kernel.io_uring_disabled: %w", errno)
	case syscall.ENOMEM:
		return fmt.Errorf("no memory may be locked for io_uring, see ulimit -l: %w", errno)
	case syscall.EMFILE, syscall.ENFILE:
		return fmt.Errorf("no file descriptor is left for io_uring, see ulimit -n: %w", errno)
	}
	return errno
}

// Open makes a ring for that many operations at once; the events of twice as many find room in it.
func Open(operations uint32) (*Ring, error) {
	r := &Ring{ready: make([]*giouring.CompletionQueueEvent, 2*operations)}
	var err error
	for _, flags := range setups {
		r.uring = giouring.NewRing()
		if err = r.uring.QueueInit(operations, flags); !errors.Is(err, syscall.EINVAL) {
			break
		}
	}
	if err != nil {
		return nil, refusal(err)
	}
	return r, nil
}

// Close gives the ring back. Nothing may be under way on it.
func (r *Ring) Close() { r.uring.QueueExit() }

// Room is the number of operations that can be added before the next Enter.
func (r *Ring) Room() int { return int(r.uring.SQSpaceLeft()) }

// Iovec is struct iovec with a foreign address.
type Iovec struct {
	Addr   uintptr
	Length uint64
}

// Transfer adds a READ or WRITE of one range of a file. With one vector the kernel is spared the array. vectors stay
// where they are until the operation has ended.
func (r *Ring) Transfer(write bool, fd int, vectors *Iovec, n int, offset, tag uint64) {
	sqe := r.next()
	switch {
	case n == 1 && write:
		sqe.PrepareWrite(fd, vectors.Addr, uint32(vectors.Length), offset)
	case n == 1:
		sqe.PrepareRead(fd, vectors.Addr, uint32(vectors.Length), offset)
	case write:
		sqe.PrepareWritev(fd, address(vectors), uint32(n), offset)
	default:
		sqe.PrepareReadv(fd, address(vectors), uint32(n), offset)
	}
	sqe.UserData = tag
}

// Cancel asks for the end of the operation with a tag. Its own end comes with the tag that it is given.
func (r *Ring) Cancel(victim, tag uint64) {
	sqe := r.next()
	sqe.PrepareCancel64(victim, 0)
	sqe.UserData = tag
}

// next returns a zeroed entry. Callers look at Room first.
func (r *Ring) next() *giouring.SubmissionQueueEntry {
	sqe := r.uring.GetSQE()
	if sqe == nil {
		panic("ring: no room, see Room")
	}
	*sqe = giouring.SubmissionQueueEntry{}
	return sqe
}

// Enter hands over new entries and, with wait, sleeps until something has ended. It may return early, with nothing.
func (r *Ring) Enter(wait bool) error {
	var err error
	if wait {
		_, err = r.uring.SubmitAndWait(1)
	} else {
		_, err = r.uring.SubmitAndGetEvents()
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.EINTR), errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.EBUSY):
		return nil // an entry that was not taken stays in the queue and goes with the next call
	}
	return err
}

// Reap returns ends that have come, at most len(into), and takes them off the ring.
func (r *Ring) Reap(into []Event) int {
	// the library fills the whole list, there or not
	list := r.ready[:min(int(r.uring.CQReady()), len(into), len(r.ready))]
	if len(list) == 0 {
		return 0
	}
	n := r.uring.PeekBatchCQE(list)
	for i := range n {
		into[i] = Event{list[i].UserData, list[i].Res}
	}
	r.uring.CQAdvance(n)
	return int(n)
}
