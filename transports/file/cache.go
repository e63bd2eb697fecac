package file

import (
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// guess predicts whether the next READ of a file finds its bytes in the page cache. It is for files of which a look
// that finds nothing reads the disk (file.counts). After each miss twice as many READs go without a look, up to
// guessMost; a hit ends that. All methods may be called from any goroutine, which may lose a count.
type guess struct {
	skip atomic.Int32 // READs that go without a look from now on
	step atomic.Int32 // as many after the last miss
}

const guessMost = 63

// worth reports whether the next READ should look.
func (g *guess) worth() bool {
	n := g.skip.Load()
	if n > 0 {
		g.skip.Store(n - 1)
	}
	return n <= 0
}

// learn notes the result of a look.
func (g *guess) learn(hit bool) {
	step := int32(0)
	if !hit {
		step = min(2*g.step.Load()+1, guessMost)
	}
	if g.step.Load() != step || step > 0 { // hits by many threads share the line
		g.step.Store(step)
		g.skip.Store(step)
	}
}

// looks reports whether the next READ should look into the page cache. Where the kernel counts pages it always should.
// A look that finds nothing takes some 100 ns, and one that is left out reads cached bytes from the disk.
func (f *file) looks() bool { return f.counts() || f.cache.worth() }

// counts reports whether the kernel counts the file's pages before a look.
func (f *file) counts() bool { return f.direct.Load() && !f.blind.Load() }

// mayHold reports whether the page cache may have all of a range. The kernel counts pages for it (cachestat, Linux 6.5)
// where READs go past the page cache: a preadv2 that misses reads the range from the disk even with RWF_NOWAIT, and the
// ring would read it again. The count starts nothing. An older kernel is asked once, and taken to have all.
func (f *file) mayHold(offset, n uint64) bool {
	if !f.counts() {
		return true
	}
	page := uint64(os.Getpagesize())
	whole := unix.CachestatRange{Off: offset, Len: n}
	var found unix.Cachestat_t
	_, _, errno := unix.RawSyscall6(unix.SYS_CACHESTAT, uintptr(f.plain.Load()), uintptr(unsafe.Pointer(&whole)),
		uintptr(unsafe.Pointer(&found)), 0, 0, 0)
	if errno != 0 {
		f.blind.Store(true)
		return true
	}
	return found.Cache >= (offset+n-1)/page-offset/page+1
}

// cached is a transport of which callers carry out slices by themselves, where the page cache has the bytes.
type cached struct{ *base }

// Info implements transport.Transport: waiters copy, too.
func (t cached) Info() transport.Info {
	info := t.base.Info()
	info.Copies = true
	return info
}

// Arm implements transport.Poller: the mover never slept.
func (t cached) Arm() {}

// Poll implements transport.Poller. It carries out the next slice on the caller's goroutine, by calls that cannot wait
// for a disk. The mover goes on meanwhile. It looks first: to clear a carrier takes longer, and most looks of a waiter
// find nothing.
func (t cached) Poll(budget int, _ transport.Classes) (done int) {
	if t.idle() {
		return 0
	}
	var c carrier
	for ; done < budget; done++ {
		it := t.help()
		if it == nil {
			break
		}
		carried := c.carry(t.base, it, noWait)
		it.file.cache.learn(carried)
		if !carried && t.putBack(it) {
			break
		}
		t.finish([]*item{it}, nil)
	}
	return done
}

// idle reports that nothing is queued.
func (t *base) idle() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.queue.Len() == 0
}

// help takes the item that is next in turn, if a waiter can carry it out without waiting.
func (t *base) help() *item {
	t.mu.Lock()
	defer t.mu.Unlock()
	for c := range kit.Classes {
		it := t.queue.List(c).First()
		if it == nil {
			continue
		}
		if it.state != queued || it.blocks || !it.file.isOpen() || !t.mover.quick(it.file, it.slice.Op) {
			return nil
		}
		t.unqueue(it)
		it.state = running
		return it
	}
	return nil
}

// putBack leaves an item that would have to wait for a disk to the mover. False means that it was withdrawn meanwhile.
func (t *base) putBack(it *item) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if it.withdrawn.Load() {
		return false
	}
	it.blocks, it.at, it.state = true, 0, queued
	t.queue.PushFront(it.class, it, &it.place)
	t.mover.kick()
	return true
}

// inlineMost bounds the bytes of an Inline, so that its caller is back soon.
const inlineMost = 256 << 10

// Inline implements transport.Inliner. It carries out slices of one file with bytes that are in the page cache, or of a
// file that is in memory. It returns false for slices that would wait for a disk, on many file systems every WRITE;
// these go the usual way.
func (t cached) Inline(slices []*transport.Slice) bool {
	total := uint64(0)
	for _, s := range slices {
		total += s.Length
		if s.RemoteKey != slices[0].RemoteKey {
			return false
		}
	}
	if len(slices) == 0 || total > inlineMost {
		return false
	}
	it := t.embark(slices)
	if it == nil {
		return false
	}
	ok := true
	var c carrier
	for i := 0; i < len(slices) && ok; i++ {
		it.slice, it.at, it.done = slices[i], 0, 0
		ok = c.carry(t.base, it, noWait) && it.done == it.slice.Length
	}
	it.file.cache.learn(ok)
	t.dismiss(it)
	return ok
}

// embark checks slices for inline and takes an item that stands for all of them. So Close, Detach and Fence wait for
// the caller as they do for a mover.
func (t *base) embark(slices []*transport.Slice) *item {
	t.mu.Lock()
	defer t.mu.Unlock()
	rail := slices[0].Rail
	l := t.links.Lookup(rail.Link)
	if l == nil || l.rail() != rail || l.fenced || t.life.Closed() || t.free.Len() == 0 {
		return nil
	}
	f := t.files.Lookup(slices[0].RemoteKey)
	if f == nil || !f.isOpen() || !t.mover.quick(f, slices[0].Op) {
		return nil
	}
	for _, s := range slices {
		if s.Op != slices[0].Op {
			return nil
		}
		if t.queue.Urgent() <= kit.ClassOf(s.Class) { // it was here before
			return nil
		}
		if _, err := t.check(s, l); err != nil {
			return nil
		}
	}
	it := t.take(slices[0], l)
	it.file, it.state = f, running
	t.hold(f)
	return it
}
