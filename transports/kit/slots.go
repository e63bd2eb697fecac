package kit

import (
	"iter"
	"sync"
	"sync/atomic"
)

// SlotsMax bounds the entries of one table. A table that long has a leak, not a workload.
const SlotsMax = 1 << 24

// Slots is a table of values by key: generation<<32 | index+1, 0 is none. An index is used again after Delete and a
// generation is not, so a key that has ended finds nothing. The zero value is an empty table. All methods may be called
// from any goroutine.
//
// Lookup takes no lock, map or allocation; Insert and Delete cost the same however many entries there are. A table
// grows to the most entries that it ever held at once, and starts small again when its last entry goes.
//
// # Why Lookup may read a slot without a lock
//
// A slot is two atomic words, its generation and its value. Insert stores the value first and then the generation;
// Delete stores the generation 0 first and then the value nil. Lookup reads generation, value, generation. Go's atomic
// operations behave as one sequence that all goroutines agree on (go.dev/ref/mem), on amd64 (loads in order, stores by
// XCHG) as on arm64 (LDAR and STLR). The generation of a slot takes each value but 0 at most once, so when both reads
// return the key's, no store to the slot came between them, and the value is the key's.
//
// Growing copies the slots to a longer array under the mutex. A Lookup that still reads the old array began before the
// change that it misses had returned.
type Slots[K ~uint64, T any] struct {
	table atomic.Pointer[[]slot[T]]

	mu         sync.Mutex
	free       []uint32 // indexes below the table's length, the one freed last at the end
	used       int
	generation uint32 // the last one given out; after 2^32 entries it begins again
}

type slot[T any] struct {
	generation atomic.Uint32 // 0: free
	value      atomic.Pointer[T]
}

// slotsKept is the length that a table keeps when it is empty.
const slotsKept = 64

// Insert calls build with a new key and enters its result. The key finds nothing before build has returned. The
// result is 0, and build is not called, when SlotsMax entries are there. Build must not call the table.
func (s *Slots[K, T]) Insert(build func(K) *T) K {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used == SlotsMax {
		return 0
	}
	if len(s.free) == 0 {
		s.growLocked()
	}
	last := len(s.free) - 1
	index := s.free[last]
	s.free = s.free[:last]
	s.used++
	if s.generation++; s.generation == 0 {
		s.generation = 1
	}
	key := K(s.generation)<<32 | K(index+1)
	at := &(*s.table.Load())[index]
	at.value.Store(build(key))
	at.generation.Store(s.generation)
	return key
}

// growLocked doubles the table and frees the new indexes, the lowest last: it is given out first.
func (s *Slots[K, T]) growLocked() {
	var old []slot[T]
	if table := s.table.Load(); table != nil {
		old = *table
	}
	grown := make([]slot[T], max(slotsKept, min(2*len(old), SlotsMax)))
	for i := range old {
		grown[i].value.Store(old[i].value.Load())
		grown[i].generation.Store(old[i].generation.Load())
	}
	for i := len(grown); i > len(old); i-- {
		s.free = append(s.free, uint32(i-1))
	}
	s.table.Store(&grown)
}

// Lookup returns the value of a key, nil for one that was never given out or has ended.
func (s *Slots[K, T]) Lookup(key K) *T {
	table := s.table.Load()
	generation, index := uint32(key>>32), uint64(uint32(key))-1
	if table == nil || generation == 0 || index >= uint64(len(*table)) {
		return nil
	}
	at := &(*table)[index]
	if at.generation.Load() != generation {
		return nil
	}
	value := at.value.Load()
	if at.generation.Load() != generation {
		return nil
	}
	return value
}

// Delete ends a key and returns its value, nil if it has ended before.
func (s *Slots[K, T]) Delete(key K) *T {
	s.mu.Lock()
	defer s.mu.Unlock()
	value := s.Lookup(key)
	if value == nil {
		return nil
	}
	index := uint32(key) - 1
	at := &(*s.table.Load())[index]
	at.generation.Store(0)
	at.value.Store(nil)
	s.free = append(s.free, index)
	if s.used--; s.used == 0 && len(s.free) > slotsKept {
		s.table.Store(nil)
		s.free = nil
	}
	return value
}

// Len returns the number of entries.
func (s *Slots[K, T]) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used
}

// All calls the loop's body for the entries that were there when it began, in the order of their indexes. The body may
// change the table.
func (s *Slots[K, T]) All() iter.Seq2[K, *T] {
	return func(yield func(K, *T) bool) {
		table := s.table.Load()
		if table == nil {
			return
		}
		for i := range *table {
			generation := (*table)[i].generation.Load()
			key := K(generation)<<32 | K(i+1)
			if value := s.Lookup(key); value != nil && !yield(key, value) {
				return
			}
		}
	}
}
