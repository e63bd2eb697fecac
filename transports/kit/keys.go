package kit

import (
	"crypto/rand"
	"encoding/binary"
	"sync"
	"sync/atomic"
)

// Keys is a table of values by keys that nobody can guess: 64 bits of crypto/rand, 0 is none. It is for names that
// travel, where knowing one must not lead to another. The zero value is an empty table, and all methods may be called
// from any goroutine.
//
// The low bits of a key are its place in an array of a power of two, at most half full. Insert draws keys until one
// has a free place, two on average, so Lookup looks at one place and needs no hash and no second probe. Keys that
// differ in n low bits differ in n+1, so a growing table moves its entries without a collision.
//
// Lookup takes no lock, for the reason that Slots gives: it reads key, value, key, and a place takes a key once.
type Keys[K ~uint64, T any] struct {
	table atomic.Pointer[[]keyed[T]]

	mu   sync.Mutex
	used int
}

type keyed[T any] struct {
	key   atomic.Uint64 // 0: free
	value atomic.Pointer[T]
}

// Insert calls build with a new key and enters its result. The key finds nothing before build has returned. The
// result is 0, and build is not called, when SlotsMax entries are there. Build must not call the table.
func (t *Keys[K, T]) Insert(build func(K) *T) K {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.used == SlotsMax {
		return 0
	}
	if table := t.table.Load(); table == nil || 2*t.used == len(*table) {
		t.growLocked()
	}
	table := *t.table.Load()
	for {
		var b [8]byte
		_, _ = rand.Read(b[:]) // ends the process rather than fail
		key := binary.NativeEndian.Uint64(b[:])
		at := &table[key&uint64(len(table)-1)]
		if key == 0 || at.key.Load() != 0 {
			continue
		}
		t.used++
		at.value.Store(build(K(key)))
		at.key.Store(key)
		return K(key)
	}
}

// growLocked doubles the table.
func (t *Keys[K, T]) growLocked() {
	var old []keyed[T]
	if table := t.table.Load(); table != nil {
		old = *table
	}
	grown := make([]keyed[T], max(slotsKept, 2*len(old)))
	for i := range old {
		if key := old[i].key.Load(); key != 0 {
			at := &grown[key&uint64(len(grown)-1)]
			at.value.Store(old[i].value.Load())
			at.key.Store(key)
		}
	}
	t.table.Store(&grown)
}

// Lookup returns the value of a key, nil for one that was never given out or has ended.
func (t *Keys[K, T]) Lookup(key K) *T {
	table := t.table.Load()
	if table == nil || key == 0 {
		return nil
	}
	at := &(*table)[uint64(key)&uint64(len(*table)-1)]
	if at.key.Load() != uint64(key) {
		return nil
	}
	value := at.value.Load()
	if at.key.Load() != uint64(key) {
		return nil
	}
	return value
}

// Delete ends a key and returns its value, nil if it has ended before.
func (t *Keys[K, T]) Delete(key K) *T {
	t.mu.Lock()
	defer t.mu.Unlock()
	value := t.Lookup(key)
	if value == nil {
		return nil
	}
	table := *t.table.Load()
	at := &table[uint64(key)&uint64(len(table)-1)]
	at.key.Store(0)
	at.value.Store(nil)
	if t.used--; t.used == 0 && len(table) > slotsKept {
		t.table.Store(nil)
	}
	return value
}

// Len returns the number of entries.
func (t *Keys[K, T]) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.used
}
