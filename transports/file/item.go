package file

import (
	"fmt"
	"sync/atomic"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/file/ring"
	"github.com/tent-engine/tent/transports/kit"
)

// item is an accepted slice on its way. Items come from a slab that is made at Open; Slice.Scratch[0] is an item's
// number.
//
//	idle --Submit--> queued --first operation--> running --last operation has ended--> idle
//	                    \\--Withdraw------------------------------------------------->/
type item struct {
	slice  *transport.Slice
	id     uint64 // of the slice
	link   *link
	file   *file
	number uint64 // 1 and up
	class  int    // of the slice, or inherited: see turns; guarded by base.mu

	withdrawn atomic.Bool // no new operation begins

	// Guarded by base.mu, but that the one worker of a running item owns at, done and err.
	state  state
	blocks bool              // it would wait for the disk, so a waiter cannot carry it out
	at     uint64            // bytes for which operations have begun
	done   uint64            // bytes that have been moved
	flying int               // operations under way
	err    *errs.Error       // the first failure
	why    *errs.Error       // why it was withdrawn
	place  kit.Element[item] // in the queue of its class, in its file's, in its inode's, or among the free items
	aside  struct {          // in turns.aside
		way   way
		since uint64 // base.tick of the first time; 0: never
	}
}

type state uint8

const (
	idle state = iota
	queued
	running
)

// locate returns the place of byte at of the slice in the file and in memory. n is the number of bytes from there on
// that lie side by side in both.
func (it *item) locate(at uint64) (offset uint64, addr uintptr, n uint64) {
	s := it.slice
	if s.Pieces == nil {
		return s.Remote + at, s.Local + uintptr(at), s.Length - at
	}
	p := s.Pieces
	i, into := uint64(s.First)+at/p.Bytes, at%p.Bytes
	return s.Remote + p.RemoteAt[i] + into, s.Local + uintptr(p.LocalAt[i]+into), p.Bytes - into
}

// run is the longest range of the file, from it.at on, that one operation can cover.
func (it *item) run() (offset, n uint64) {
	offset, _, n = it.locate(it.at)
	for n < opMost && it.at+n < it.slice.Length {
		next, _, more := it.locate(it.at + n)
		if next != offset+n {
			break
		}
		n += more
	}
	return offset, min(n, opMost)
}

// over reports whether nothing is under way for the item, and nothing more begins.
func (it *item) over() bool {
	return it.flying == 0 && (it.at == it.slice.Length || it.err != nil || it.withdrawn.Load())
}

// gather fills vectors with the memory of [at, at+n), which is one run, and returns how many it took and how many bytes
// they cover. Those are fewer than n when there are too few of them.
func (it *item) gather(at, n uint64, vectors []ring.Iovec) (count int, bytes uint64) {
	for bytes < n {
		_, addr, length := it.locate(at + bytes)
		length = min(length, n-bytes)
		if last := count - 1; last >= 0 && vectors[last].Addr+uintptr(vectors[last].Length) == addr {
			vectors[last].Length += length
		} else if count == len(vectors) {
			break
		} else {
			vectors[count] = ring.Iovec{Addr: addr, Length: length}
			count++
		}
		bytes += length
	}
	return count, bytes
}

// span names the slice in an error: "READ of 4096 bytes at offset 8192 of /path". offset is where it stopped.
func (it *item) span(offset uint64) string {
	s, path := it.slice, "a file that is not open"
	if it.file != nil {
		path = it.file.Path
	}
	if s.Pieces == nil {
		return fmt.Sprintf("%s of %d bytes at offset %d of %s", s.Op, s.Length, s.Remote, path)
	}
	return fmt.Sprintf("%s of a piece of %d bytes around offset %d of %s", s.Op, s.Pieces.Bytes, offset, path)
}
