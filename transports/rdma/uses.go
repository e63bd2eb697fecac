package rdma

// uses are those of a region that a rail has in hand: of slices that it is accepting, or that have ended. They come and
// go together, for each change of a region's count is a locked instruction.
type uses struct {
	of    *region
	n     int64
	ended []*region // of which these were the last uses
}

// take takes a use of a region for a slice. Where there is none, it acquires that number of them.
func (u *uses) take(r *region, most int64) bool {
	if u.of != r || u.n == 0 {
		return u.acquire(r, most)
	}
	u.n--
	return true
}

func (u *uses) acquire(r *region, most int64) bool {
	u.release()
	if !r.acquire(most) {
		return false
	}
	u.of, u.n = r, most-1
	return true
}

// put keeps the use of a slice that has ended.
func (u *uses) put(r *region) {
	if u.of != r {
		u.release()
		u.of = r
	}
	u.n++
}

// release gives all of them back.
func (u *uses) release() {
	if u.n > 0 && u.of.release(u.n) {
		u.ended = append(u.ended, u.of)
	}
	u.of, u.n = nil, 0
}

// end gives all of them back, and unpins the regions that have ended with them. The caller holds no lock. Unpinning
// takes system calls, and the mutex of a device, under which a new queue waits for the right to take completions.
func (u *uses) end() {
	u.release()
	for _, r := range u.ended {
		r.unpin()
	}
}
