package copying

import (
	"os"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/tent-engine/tent/gocore/mem"
)

const (
	// of one memmove: below its own change to non-temporal stores, and not long for the scheduler
	chunkBytes  = 512 << 10
	streamBytes = 64 << 10 // of a piece, from which non-temporal stores may pay
	mediumFrom  = 1 << 20  // of a transfer, from which they may
	cacheBytes  = 32 << 20 // of the last cache, where the system does not tell
	firstPage   = 4096     // nobody's memory lies below; Go takes a fault there for a nil pointer of its own
)

// Copier copies, and learns how this machine does it best. An engine has one; any goroutine may use it.
type Copier struct {
	largeFrom uint64  // total bytes from which a transfer does not fit into the caches
	medium    learner // of transfers below that: they fit, if nothing else is in the caches
	large     learner
}

const (
	largeRun  = 4 * chunkBytes
	mediumRun = 8 // of the longest transfers: the same buffers come again within a run
	// percent: a peer that reads soon finds a medium transfer in the caches, and nothing but the end of a large one
	largeLead, mediumLead = 5, 20
)

// New makes a copier for this machine.
func New() *Copier { return newCopier(lastCache() / 3) }

func newCopier(largeFrom uint64) *Copier {
	return &Copier{largeFrom: largeFrom, medium: learner{run: mediumRun * max(largeFrom, mediumFrom), lead: mediumLead},
		large: learner{run: largeRun, lead: largeLead}}
}

// learner returns the one for pieces of a transfer, nil for memmove.
func (c *Copier) learner(bytes, total uint64) *learner {
	switch {
	case bytes < streamBytes:
		return nil
	case total >= c.largeFrom:
		return &c.large
	case total >= mediumFrom:
		return &c.medium
	}
	return nil
}

// lastCache reads the size of the largest cache of the first processor.
func lastCache() (bytes uint64) {
	for i := range 8 {
		text, err := os.ReadFile("/sys/devices/system/cpu/cpu0/cache/index" + strconv.Itoa(i) + "/size")
		if err != nil {
			break
		}
		if kib, found := strings.CutSuffix(strings.TrimSpace(string(text)), "K"); found {
			n, _ := strconv.ParseUint(kib, 10, 32)
			bytes = max(bytes, n<<10)
		}
	}
	if bytes == 0 {
		return cacheBytes
	}
	return bytes
}

// Fault says that memory was not there, or not for this use.
type Fault = mem.Fault

// Copy moves bytes from one address to another. total is the size of the transfer that this is a part of. The ranges do
// not overlap: within one buffer, the bytes of a longer overlapping move come out in an order of our choice. It
// allocates nothing unless it returns a Fault: then any part of the destination may have been written.
func (c *Copier) Copy(dst, src uintptr, bytes, total uint64) (fault *Fault) {
	if min(dst, src) < firstPage {
		return &Fault{Addr: min(dst, src)}
	}
	defer mem.Guard(&fault, debug.SetPanicOnFault(true))
	if l := c.learner(bytes, total); l != nil {
		l.copy(dst, src, bytes)
	} else {
		chunks(dst, src, bytes)
	}
	return nil
}

// Pieces moves equal pieces: piece i from src+srcAt[i] to dst+dstAt[i]. The lists are of one length. done is the number
// of pieces moved as a whole; all of them without a Fault.
func (c *Copier) Pieces(dst, src uintptr, dstAt, srcAt []uint64, bytes, total uint64) (done int, fault *Fault) {
	if min(dst, src) < firstPage {
		return 0, &Fault{Addr: min(dst, src)}
	}
	defer mem.Guard(&fault, debug.SetPanicOnFault(true))
	srcAt = srcAt[:len(dstAt)]
	l := c.learner(bytes, total)
	for i, at := range dstAt {
		if d, s := dst+uintptr(at), src+uintptr(srcAt[i]); l != nil {
			l.copy(d, s, bytes)
		} else {
			chunks(d, s, bytes)
		}
		done = i + 1
	}
	return done, nil
}

// chunks copies by memmove. Not inlined: with a constant size the compiler (Go 1.26) tries to expand the memmove
// between two addresses that it has followed back to integers, and stops with an internal error.
//
//go:noinline
func chunks(dst, src uintptr, bytes uint64) {
	for bytes > chunkBytes {
		copy(mem.Bytes(dst, chunkBytes), mem.Bytes(src, chunkBytes))
		dst, src, bytes = dst+chunkBytes, src+chunkBytes, bytes-chunkBytes
	}
	copy(mem.Bytes(dst, int(bytes)), mem.Bytes(src, int(bytes)))
}
