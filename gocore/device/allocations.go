package device

import (
	"sync"

	"github.com/tent-engine/tent/gocore/errs"
)

// Allocations is the memory that a platform has allocated and not freed, each range with facts of the platform's own.
// The zero value is empty. Any goroutine may use it.
type Allocations[T any] struct {
	mu     sync.Mutex
	byAddr map[uintptr]allocation[T]
}

type allocation[T any] struct {
	size  uint64
	facts T
}

// Add notes memory that was allocated.
func (a *Allocations[T]) Add(addr uintptr, size uint64, facts T) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.byAddr == nil {
		a.byAddr = map[uintptr]allocation[T]{}
	}
	a.byAddr[addr] = allocation[T]{size, facts}
}

// Begins reports whether an allocation begins at an address.
func (a *Allocations[T]) Begins(addr uintptr) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, is := a.byAddr[addr]
	return is
}

// Free forgets memory and calls free with its facts. The error is free's, or InvalidArgument for memory that was not
// allocated so. Memory that free gives an error for is still there, and nobody else can have its address.
func (a *Allocations[T]) Free(op string, addr uintptr, size uint64, free func(T) error) error {
	a.mu.Lock()
	known, is := a.byAddr[addr]
	if is = is && known.size == size; is {
		delete(a.byAddr, addr) // first: the driver may give the address to another thread before free returns
	}
	a.mu.Unlock()
	if !is {
		return errs.New(errs.InvalidArgument, op, "%d bytes at %#x were not allocated here", size, addr)
	}
	err := free(known.facts)
	if err != nil {
		a.Add(addr, size, known.facts)
	}
	return err
}
