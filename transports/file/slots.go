package file

// slots is a table whose keys are an index and a generation: looking one up is an array access and a comparison, and a
// key that has ended never finds another entry. The zero value is empty; key 0 is never given out.
type slots[T any] struct {
	entries    []slot[T]
	free       []uint32
	generation uint64
}

type slot[T any] struct {
	key uint64
	v   *T
}

const (
	slotBits = 24
	slotMask = 1<<slotBits - 1
)

// add returns the key of a new entry, 0 when the table is full.
func (s *slots[T]) add(v *T) uint64 {
	s.generation++
	if n := len(s.free); n > 0 {
		i := s.free[n-1]
		s.free = s.free[:n-1]
		s.entries[i] = slot[T]{s.generation<<slotBits | uint64(i), v}
		return s.entries[i].key
	}
	if len(s.entries) > slotMask {
		return 0
	}
	key := s.generation<<slotBits | uint64(len(s.entries))
	s.entries = append(s.entries, slot[T]{key, v})
	return key
}

func (s *slots[T]) get(key uint64) *T {
	if i := key & slotMask; i < uint64(len(s.entries)) && s.entries[i].key == key {
		return s.entries[i].v
	}
	return nil
}

func (s *slots[T]) remove(key uint64) *T {
	v := s.get(key)
	if v != nil {
		i := key & slotMask
		s.entries[i] = slot[T]{}
		s.free = append(s.free, uint32(i))
	}
	return v
}

// all calls f for every entry.
func (s *slots[T]) all(f func(*T)) {
	for i := range s.entries {
		if s.entries[i].v != nil {
			f(s.entries[i].v)
		}
	}
}
