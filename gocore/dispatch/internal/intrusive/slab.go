package intrusive

// Slab hands out records with stable addresses and takes them back. It grows by chunks and never shrinks, so that after
// warm-up nothing is allocated between submit and end.
type Slab[T any] struct {
	Chunk int // records that are allocated together; 0 means one by one
	free  []*T
	total int
}

// Get returns a zero record.
func (s *Slab[T]) Get() *T {
	if len(s.free) == 0 {
		s.grow()
	}
	last := len(s.free) - 1
	p := s.free[last]
	s.free = s.free[:last]
	return p
}

// Put takes a record back; nobody else may point to it any more.
func (s *Slab[T]) Put(p *T) {
	var zero T
	*p = zero
	s.free = append(s.free, p)
}

// Total is the number of records that were ever allocated.
func (s *Slab[T]) Total() int { return s.total }

// Free is the number of records that are not in use.
func (s *Slab[T]) Free() int { return len(s.free) }

func (s *Slab[T]) grow() {
	chunk := make([]T, max(s.Chunk, 1))
	s.total += len(chunk)
	if cap(s.free) < s.total { // room for all of them, so that Put never allocates
		s.free = make([]*T, 0, 2*s.total)
	}
	for i := range chunk {
		s.free = append(s.free, &chunk[len(chunk)-1-i])
	}
}
