package file

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// clerk is the mover of a Library. Its round is that of the ring's owner:
//
//	under base.mu   begin: cut runs from the queues, HIGH first, while the library has room
//	without         post them, and collect those that have ended
//	under base.mu   land: an ended run belongs to its item; begin again
//	without         finish the items that are complete
//
// A library without room for several runs has threads instead, which carry out one run after the other. They also carry
// the ends of WRITEs that are no whole units, through memory of the host and the page cache: a library would read,
// change and write the unit, and lose the bytes of a neighbour that does the same. The two take turns, see turns.
//
// A run is never called back: its item ends when the library is done with it.
type clerk struct {
	t       *base
	library Library
	depth   int

	work    *sync.Cond // of t.mu: the owner has something to do
	errand  *sync.Cond // of t.mu: a thread has
	running sync.WaitGroup

	// Guarded by t.mu.
	errands  []int    // jobs for threads
	spare    [2][]int // jobs that nobody has: to post, and for threads
	flying   int      // jobs that were posted, or are to be
	sleeping int      // threads in errand.Wait
	paused   int      // calls of pause: no run begins

	// The owner's. A job is its holder's from the cut until it lands.
	jobs     []job
	fresh    []int
	events   []Ended
	complete []*item
	hand     *hand
}

// job is a run on its way.
type job struct {
	Run
	item  *item
	way   way
	moved uint64
	err   *errs.Error
}

// Kinds of jobs, as indexes of clerk.spare.
const (
	toPost = iota
	forThreads
)

// kindOf returns the kind of a job by its index, which is its tag in the library, too.
func (c *clerk) kindOf(i int) int {
	if i < c.depth {
		return toPost
	}
	return forThreads
}

// lookAgain is how long the owner waits for an end before it looks for new items.
const lookAgain = 200 * time.Microsecond

// edgeMost bounds the bytes of an edge: a unit.
const edgeMost = 64 << 10

func newClerk(t *base, library Library) *clerk {
	c := &clerk{t: t, library: library, depth: library.Depth(), work: sync.NewCond(&t.mu),
		errand: sync.NewCond(&t.mu), hand: newHand()}
	c.jobs = make([]job, c.depth+t.settings.Threads)
	for i := range c.jobs {
		c.spare[c.kindOf(i)] = append(c.spare[c.kindOf(i)], i)
	}
	c.errands, c.fresh = make([]int, 0, len(c.jobs)), make([]int, 0, c.depth)
	c.events, c.complete = make([]Ended, max(c.depth, 1)), make([]*item, 0, len(c.jobs))
	return c
}

func (c *clerk) start() {
	for range c.t.settings.Threads {
		c.running.Go(c.serve)
	}
	if c.depth > 0 {
		c.running.Go(c.own)
	}
}

// kick implements mover.
func (c *clerk) kick() {
	c.work.Signal()
	if c.t.stop {
		c.errand.Broadcast()
		return
	}
	if c.depth == 0 {
		for range min(c.t.queue.Len(), c.sleeping) {
			c.errand.Signal()
		}
	}
}

func (c *clerk) recall(*item)            {} // begin looks at item.withdrawn; a run that was posted ends by itself
func (c *clerk) straight() bool          { return true }
func (c *clerk) suits(*file) *errs.Error { return nil }

// quick implements mover: callers have no way to memory of a device.
func (c *clerk) quick(*file, transport.Op) bool { return false }

func (c *clerk) drop(handle uintptr) { c.library.Drop(handle) }
func (c *clerk) wait()               { c.running.Wait() }

func (c *clerk) adopt(fd int, path string) (uintptr, *errs.Error) {
	handle, err := c.library.Adopt(fd)
	if err != nil {
		return 0, errs.New(errs.NotImplemented, c.t.name+".import", "%s: %v", path, err).
			WithScope(errs.ScopeLink, errs.SideRemote)
	}
	return handle, nil
}

func (c *clerk) describe() string {
	how := fmt.Sprintf("%d threads", c.t.settings.Threads)
	if c.depth > 0 {
		how = fmt.Sprintf("up to %d runs at once", c.depth)
	}
	return how + " by " + c.library.Describe()
}

// own is the owner's life; it ends when nothing is under way and base.stop was set.
func (c *clerk) own() {
	t := c.t
	t.mu.Lock()
	for {
		c.begin()
		if t.stop {
			t.mu.Unlock()
			return
		}
		if c.flying == 0 {
			c.work.Wait()
			continue
		}
		t.mu.Unlock()
		ended := c.turn()
		t.mu.Lock()
		for _, i := range ended {
			c.flying--
			if it := c.land(i); it != nil {
				c.complete = append(c.complete, it)
			}
		}
		c.fresh = c.fresh[:0]
		if len(c.complete) > 0 {
			t.mu.Unlock()
			t.finish(c.complete, c.hand)
			clear(c.complete)
			c.complete = c.complete[:0]
			t.mu.Lock()
		}
	}
}

// turn posts the fresh jobs, and returns those that have ended. The caller holds no lock.
func (c *clerk) turn() []int {
	refused := c.fresh[:0]
	posted := false
	for _, i := range c.fresh {
		if err := c.library.Post(&c.jobs[i].Run, i); err != nil {
			c.book(i, 0, err)
			refused = append(refused, i)
			continue
		}
		posted = true
	}
	if len(refused) > 0 && !posted {
		return refused // nothing else may be under way
	}
	ended := refused
	for _, e := range c.events[:c.library.Collect(c.events[:c.depth-len(refused)], lookAgain)] {
		c.book(e.Tag, e.Moved, e.Err)
		ended = append(ended, e.Tag)
	}
	return ended
}

// pause returns when no run is under way with memory of a region. None begins until resume, which follows an error,
// too. A file that does not answer keeps the memory of its own runs alone.
func (c *clerk) pause(ctx context.Context, m *mem.Region) error {
	t := c.t
	stop := context.AfterFunc(ctx, func() {
		t.mu.Lock()
		t.changed.Broadcast()
		t.mu.Unlock()
	})
	defer stop()
	t.mu.Lock()
	defer t.mu.Unlock()
	for c.paused++; c.uses(m); t.changed.Wait() {
		if ctx.Err() != nil {
			return errs.New(errs.Timeout, t.name+".remap", "the library has not ended its runs (%v)", ctx.Err()).
				WithScope(errs.ScopeTransport, errs.SideLocal)
		}
	}
	return nil
}

// uses reports whether a run is under way with memory of a region. The caller holds t.mu.
func (c *clerk) uses(m *mem.Region) bool {
	for i := range c.jobs { // the rest of a job is its holder's
		if j := &c.jobs[i]; j.item != nil && overlap(j.Region, m) {
			return true
		}
	}
	return false
}

// overlap reports whether two regions have a byte in common.
func overlap(a, b *mem.Region) bool {
	return a.Addr < b.Addr+uintptr(b.Size) && b.Addr < a.Addr+uintptr(a.Size)
}

func (c *clerk) resume() {
	c.t.mu.Lock()
	c.paused--
	c.kick()
	c.t.mu.Unlock()
}

// begin cuts runs while there is room. The caller holds t.mu.
func (c *clerk) begin() {
	if c.paused > 0 {
		return
	}
	for class := range kit.Classes {
		list := c.t.queue.List(class)
		for it := list.First(); it != nil; it = list.First() {
			if it.err != nil || it.at == it.slice.Length {
				c.t.unqueue(it)
				continue
			}
			if c.t.openable(it) && !c.cut(it) {
				return
			}
		}
	}
}

// cut begins the next run of an item, or leaves the item aside until its turn. False means that there is no room for
// it. The caller holds t.mu.
func (c *clerk) cut(it *item) bool {
	run, way := c.next(it)
	if !c.t.inTurn(it, way) {
		return true
	}
	kind := toPost
	if way == through || c.depth == 0 {
		kind = forThreads
	}
	last := len(c.spare[kind]) - 1
	if last < 0 {
		return false
	}
	i := c.spare[kind][last]
	c.spare[kind] = c.spare[kind][:last]
	c.jobs[i] = job{Run: run, item: it, way: way}
	c.t.joinTurn(it, way)
	it.state = running
	it.at += run.Bytes
	it.flying++
	if kind == forThreads {
		c.errands = append(c.errands, i)
		c.errand.Signal()
	} else {
		c.flying++
		c.fresh = append(c.fresh, i)
	}
	return true
}

// next returns the next run of an item, and its way. An edge goes through the page cache.
func (c *clerk) next(it *item) (r Run, w way) {
	s, f, most := it.slice, it.file, c.library.RunMost()
	r = Run{Op: s.Op, Handle: f.handle.Load(), Region: c.t.regions.Lookup(s.LocalKey)}
	r.Offset, r.Addr, r.Bytes = it.locate(it.at)
	for r.Bytes < most && it.at+r.Bytes < s.Length {
		offset, addr, more := it.locate(it.at + r.Bytes)
		if offset != r.Offset+r.Bytes || addr != r.Addr+uintptr(r.Bytes) {
			break
		}
		r.Bytes += more
	}
	r.Bytes = min(r.Bytes, most)
	if s.Op == transport.Read {
		return r, free
	}
	unit := min(f.unit, edgeMost)
	switch into := r.Offset % unit; {
	case into != 0:
		r.Bytes = min(r.Bytes, unit-into)
		return r, through
	case r.Bytes < unit:
		return r, through
	}
	r.Bytes -= r.Bytes % unit
	return r, past
}

// land books the end of a job, and returns its item if that is complete. The caller holds t.mu.
func (c *clerk) land(i int) *item {
	j := &c.jobs[i]
	it := j.item
	if j.err == nil {
		it.done += j.moved
	} else if it.err == nil {
		it.err = j.err
	}
	c.t.endTurn(&it.file.inode.turns, j.way)
	*j = job{}
	c.spare[c.kindOf(i)] = append(c.spare[c.kindOf(i)], i)
	if c.paused > 0 {
		c.t.changed.Broadcast()
	}
	it.flying--
	if !it.over() {
		return nil
	}
	c.t.unqueue(it)
	return it
}

// serve is the life of a thread.
func (c *clerk) serve() {
	t, h, one := c.t, newHand(), make([]*item, 1)
	edge := make([]byte, edgeMost)
	t.mu.Lock()
	for {
		if c.depth == 0 && len(c.errands) == 0 {
			c.begin()
		}
		if len(c.errands) == 0 {
			if t.stop {
				t.mu.Unlock()
				return
			}
			c.sleeping++
			c.errand.Wait()
			c.sleeping--
			continue
		}
		i := c.errands[0]
		c.errands = c.errands[:copy(c.errands, c.errands[1:])]
		t.mu.Unlock()
		c.carry(i, edge)
		t.mu.Lock()
		one[0] = c.land(i)
		c.work.Signal() // a job is spare
		if one[0] != nil {
			t.mu.Unlock()
			t.finish(one, h)
			t.mu.Lock()
		}
	}
}

// carry carries out a job of a thread.
func (c *clerk) carry(i int, buffer []byte) {
	j := &c.jobs[i]
	if j.way == through {
		c.book(i, j.Bytes, c.carryEdge(j, buffer))
		return
	}
	moved, err := c.library.Carry(&j.Run)
	c.book(i, moved, err)
}

// carryEdge writes less than a unit through the page cache.
func (c *clerk) carryEdge(j *job, buffer []byte) error {
	buffer = buffer[:j.Bytes]
	if err := c.library.Fetch(buffer, &j.Run); err != nil {
		return err
	}
	fd := int(j.item.file.plain.Load())
	done, errno := writeAll(buffer, func(rest []byte, done int) (int, error) {
		return unix.Pwrite(fd, rest, int64(j.Offset)+int64(done))
	})
	if errno != 0 {
		return c.t.failed(j.item, errno, j.Offset+uint64(done))
	}
	return nil
}

// writeAll writes a buffer by calls that may take a part of it. It returns how much was written, and why no more.
func writeAll(buffer []byte, write func(rest []byte, done int) (int, error)) (done int, errno syscall.Errno) {
	for disturbed := 0; done < len(buffer); {
		n, err := write(buffer[done:], done)
		switch errno, failed := err.(syscall.Errno); {
		case failed && (errno == unix.EINTR || errno == unix.EAGAIN) && disturbed < retryMost:
			disturbed++
		case failed:
			return done, errno
		case n == 0: // it would be so for good
			return done, unix.EIO
		default:
			done += n
		}
	}
	return done, 0
}

// book notes the end of a job. Its holder calls it, without a lock.
func (c *clerk) book(i int, moved uint64, err error) {
	j := &c.jobs[i]
	j.moved = moved
	switch {
	case err != nil:
		j.err = c.failed(j, err)
	case moved >= j.Bytes:
	case j.Op == transport.Read && c.ends(j):
		j.err = c.t.shrunk(j.item, j.Offset+moved)
	default:
		j.err = c.failed(j, errs.New(errs.StorageError, "", "cut short after %d of %d bytes", moved, j.Bytes))
	}
}

// ends reports whether the file ends inside a run by now.
func (c *clerk) ends(j *job) bool {
	var st unix.Stat_t
	err := unix.Fstat(int(j.item.file.plain.Load()), &st)
	return err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && uint64(st.Size) < j.Offset+j.Bytes
}

// failed makes the error of a job. Another transport may do better: it takes another way.
func (c *clerk) failed(j *job, err error) *errs.Error {
	e := *errs.From(c.t.name, err)
	if e.Transport == "" {
		e.Op, e.Cause = c.t.name+"."+verb(j.Op), j.item.span(j.Offset)+": "+e.Cause
		e.Transport = c.t.name
		e.Scope, e.Side = errs.ScopeLink, errs.SideLocal
	}
	return &e
}
