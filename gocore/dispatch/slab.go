package dispatch

// slab hands out records with stable addresses and takes them back. It grows by chunks and never shrinks, so that after
// warm-up nothing is allocated between submit and end.
type slab[T any] struct {
	free  []*T
	total int
	chunk int
}

func (s *slab[T]) get() *T {
	if len(s.free) == 0 {
		s.grow()
	}
	last := len(s.free) - 1
	p := s.free[last]
	s.free = s.free[:last]
	return p
}

// put takes a record back; nobody else may point to it any more.
func (s *slab[T]) put(p *T) {
	var zero T
	*p = zero
	s.free = append(s.free, p)
}

func (s *slab[T]) grow() {
	chunk := make([]T, max(s.chunk, 1))
	s.total += len(chunk)
	if cap(s.free) < s.total { // room for all of them, so that put never allocates
		s.free = make([]*T, 0, 2*s.total)
	}
	for i := range chunk {
		s.free = append(s.free, &chunk[len(chunk)-1-i])
	}
}
