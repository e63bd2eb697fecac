package transporttest

import (
	"cmp"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// lostRules are about memory that its user has taken away, at either end and at any moment: it fails the slices that
// need it. Nobody else notices.
func lostRules() []rule {
	pieces := func(h Harness, tr transport.Transport) string {
		return cmp.Or(h.Pinned, unless(h.Local == nil && h.Remote == nil, noLoss), needsVectors(h, tr))
	}
	there := func(h Harness, tr transport.Transport) string { return cmp.Or(h.Pinned, needsHostThere(h, tr)) }
	return []rule{
		{"MemoryThatIsGoneHereFailsItsSlicesOnly", needsHost, testLostHere},
		{"MemoryThatIsGoneThereFailsItsSlicesOnly", there, testLostThere},
		{"MemoryThatGoesMeanwhileFailsItsSlicesOnly", there, testLostMeanwhile},
		{"PiecesOfMemoryThatIsGoneFail", pieces, testLostPieces},
	}
}

// noLoss is why a rule about memory that goes is skipped.
const noLoss = "memory of this device cannot be taken away"

func needsHost(h Harness, _ transport.Transport) string {
	return cmp.Or(h.Pinned, unless(h.Local == nil, noLoss))
}

func needsHostThere(h Harness, tr transport.Transport) string {
	return cmp.Or(needsEngine(h, tr), unless(h.Local == nil && h.Remote == nil, noLoss))
}

// loss is a way in which memory goes.
type loss struct {
	name      string
	protect   int  // of the pages that are gone
	cut       bool // the file behind them becomes shorter
	canBeRead bool // so that only destinations are gone
}

var losses = []loss{
	{name: "unmapped", protect: unix.PROT_NONE}, // and nobody else's meanwhile
	{name: "read-only", protect: unix.PROT_READ, canBeRead: true},
	{name: "file cut short", cut: true},
}

// losable is registered memory that can go.
type losable struct {
	*Operand
	loss
	file *os.File // to cut short
}

// losable is memory that the harness's pool does not give: a peer that maps the same file would still have it.
func (n *Node) losable(t *testing.T, how loss, size uint64, permission mem.Permission) losable {
	t.Helper()
	l := losable{loss: how}
	var raw []byte
	pool := func(t testing.TB, size int) ([]byte, int, uint64) {
		if how.cut {
			raw, l.file = mappedFile(t, size)
		} else {
			raw = anonymous(t, size)
		}
		return raw, -1, 0
	}
	m := newMemory(t, int(max(size, n.Info.Alignment)), n.Info.Alignment, pool)
	m.undo = func() {
		_ = unix.Munmap(raw)
		_ = l.file.Close() // of nil: an error
	}
	l.Operand = n.RegisterMemory(t, n.w.keep(m), permission)
	return l
}

// mappedFile is a file in memory. The pages of one on a disk may need longer than a transport waits for its peer.
func mappedFile(t testing.TB, size int) (raw []byte, f *os.File) {
	fd, err := unix.MemfdCreate("cut short", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	f = os.NewFile(uintptr(fd), "cut short")
	require.NoError(t, f.Truncate(int64(size)))
	raw, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	return raw, f
}

// lose takes the memory away: the second half, or all of it where it is small. It returns the first byte that is gone,
// and a function that brings all back as it was, which the end of the test does too.
func (l losable) lose(t *testing.T) (from uint64, back func()) {
	t.Helper()
	page := uintptr(unix.Getpagesize())
	around := mem.AddressOf(l.around)
	first, end := around&^(page-1), (around+uintptr(len(l.around))+page-1)&^(page-1)
	if half := (l.Addr + uintptr(l.Size/2) + page - 1) &^ (page - 1); half < l.Addr+uintptr(l.Size) {
		first, from = half, uint64(half-l.Addr)
	}
	pages := mem.Bytes(first, int(end-first))
	defer func() { // before the end of the test, which looks at the guard bands
		back = sync.OnceFunc(back)
		t.Cleanup(back)
	}()
	if !l.cut {
		require.NoError(t, unix.Mprotect(pages, l.protect))
		return from, func() { require.NoError(t, unix.Mprotect(pages, unix.PROT_READ|unix.PROT_WRITE)) }
	}
	kept := append([]byte(nil), pages...)
	whole, err := l.file.Stat()
	require.NoError(t, err)
	start := around&^(page-1) - page // of the mapping: a page that nobody may touch is before the band
	require.NoError(t, l.file.Truncate(int64(first-start)))
	return from, func() {
		require.NoError(t, l.file.Truncate(whole.Size()))
		copy(pages, kept)
	}
}

// losing registers two operands of a size, of which one can go.
func (p *pair) losing(t *testing.T, how loss, size uint64, there bool) (near *Operand, far *Remote, gone losable) {
	t.Helper()
	if there {
		gone = p.b.losable(t, how, size, mem.GlobalReadWrite)
		near, far = p.a.Register(t, size, mem.LocalReadWrite), p.c.Import(t, gone.Operand)
	} else {
		gone = p.a.losable(t, how, size, mem.LocalReadWrite)
		near, far = gone.Operand, p.c.Import(t, p.b.Register(t, size, mem.GlobalReadWrite))
	}
	return near, far, gone
}

// lostSizes are a few bytes, part of a page's neighbours, and more than a piece of any transport.
func lostSizes() []uint64 {
	if RaceEnabled {
		return []uint64{64, 40_000} // the races are the same
	}
	return []uint64{64, 4096, 40_000, 2 << 20}
}

// requireGone checks the error of a slice that lost its memory.
func requireGone(t *testing.T, err *errs.Error, side errs.Side) {
	t.Helper()
	require.NotNil(t, err, "it moved what is not there")
	require.Equal(t, errs.AddressNotRegistered, err.Code, "%v", err)
	require.Equal(t, errs.ScopeSlice, err.Scope, "%v", err)
	require.Equal(t, side, err.Side, "%v", err)
	require.False(t, err.Collateral, "%v", err)
}

func testLostHere(t *testing.T, h Harness)  { eachLoss(t, h, false) }
func testLostThere(t *testing.T, h Harness) { eachLoss(t, h, true) }

func eachLoss(t *testing.T, h Harness, there bool) {
	p := newPair(t, h)
	eachWay(t, func(t *testing.T, how loss, op transport.Op, there bool) {
		for _, size := range lostSizes() {
			size = fit(p.c, size)
			t.Run(fmt.Sprint(size), func(t *testing.T) { p.loseSome(t, how, op, size, there, false) })
			if p.a.Info.Checksums {
				t.Run(fmt.Sprintf("%d checked", size), func(t *testing.T) { p.loseSome(t, how, op, size, there, true) })
			}
		}
	}, there)
}

// eachWay runs a test for each way to lose memory, operation and end.
func eachWay(t *testing.T, test func(t *testing.T, how loss, op transport.Op, there bool), ends ...bool) {
	for _, how := range losses {
		for _, op := range []transport.Op{transport.Write, transport.Read} {
			for _, there := range ends {
				if how.canBeRead && (op == transport.Write) != there {
					continue
				}
				name := fmt.Sprintf("%s/%s/there=%t", how.name, op, there)
				t.Run(name, func(t *testing.T) { test(t, how, op, there) })
			}
		}
	}
}

// loseSome sends slices of memory that is gone between others, all in one go. One lies across the border, so that it
// has a good beginning.
func (p *pair) loseSome(t *testing.T, how loss, op transport.Op, size uint64, there, checked bool) {
	n := uint64(6)
	if size > 1<<20 {
		n = 3 // one good, one across the border, one gone
	}
	rail, side := p.c.Rail(t), errs.SideLocal
	if there {
		side = errs.SideRemote
	}
	local, remote, _, to := p.aimed(t, op, n*size)
	near, far, gone := p.losing(t, how, n*size, there)
	from, back := gone.lose(t)
	var list []*transport.Slice
	for at := uint64(0); at < n*size; at += size {
		good, bad := p.c.Slice(op, rail, local, at, remote, at, size), p.c.Slice(op, rail, near, at, far, at, size)
		list = append(list, good, bad)
	}
	for _, s := range list {
		s.Checked = checked
	}
	require.Equal(t, len(list), p.c.Send(list...), "slices accepted")
	for i, end := range p.c.Wait(t, list...) {
		if end.Slice.LocalKey == near.Key && end.Slice.Remote+size > from {
			requireGone(t, end.Err, side)
		} else {
			require.Nil(t, end.Err, "slice %d of %d", i, len(list))
		}
	}
	require.NoError(t, to.Check(tagMoved, 0, 0, to.Size), "a neighbour has not arrived")
	back()
	near.Fill(tagAfter, 0, near.Size)
	far.Fill(tagAfter, 0, far.Size)
	p.c.Barrier(t)
	require.NoError(t, near.Check(tagAfter, 0, 0, near.Size), "written after the end")
	require.NoError(t, far.Check(tagAfter, 0, 0, far.Size), "written after the end")
	p.requireSame(t, rail)
}

// requireSame requires that a rail has lived through it all.
func (p *pair) requireSame(t *testing.T, rail transport.Rail) {
	t.Helper()
	require.Contains(t, p.c.Rails(), rail, "the rail did not live on")
}

// testLostMeanwhile takes memory away under a siege of it, so that a slice may be in its middle. A siege of other
// memory on the same rail notices nothing.
func testLostMeanwhile(t *testing.T, h Harness) {
	p := newPair(t, h)
	size := fit(p.c, 700_000)
	rail := p.c.Rail(t)
	eachWay(t, func(t *testing.T, how loss, op transport.Op, there bool) {
		local, remote, _, to := p.aimed(t, op, 4*size)
		near, far, gone := p.losing(t, how, 4*size, there)
		calm, storm := p.besiege(op, rail, local, remote, size), p.besiege(op, rail, near, far, size)
		storm.await(t, 12)
		_, back := gone.lose(t)
		storm.await(t, 12)
		arrived := map[uint64]bool{}
		for _, end := range calm.end(t) {
			require.Nil(t, end.Err)
			arrived[end.Slice.Remote] = true
		}
		for at := range arrived {
			require.NoError(t, to.Check(tagMoved, at, at, size), "a neighbour has not arrived")
		}
		for _, end := range storm.end(t) {
			if end.Err != nil {
				requireGone(t, end.Err, end.Err.Side)
			}
		}
		back()
		p.requireSame(t, rail)
	}, false, true)
}

// testLostPieces loses the pieces of one slice among others.
func testLostPieces(t *testing.T, h Harness) {
	p := newPair(t, h)
	rail := p.c.Rail(t)
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		for _, bytes := range []uint64{8, 4096, 70_000} {
			t.Run(fmt.Sprintf("%s/%d", op, bytes), func(t *testing.T) {
				const n, per = 40, 5
				g := p.newGrid(t, op, n, fit(p.c, bytes))
				gone := p.a.losable(t, losses[0], g.bytes, mem.LocalReadWrite)
				list := g.slices(rail, per)
				last := *g.pieces
				last.LocalAt = make([]uint64, n)
				list[2].Pieces, list[2].LocalKey, list[2].Local = &last, gone.Key, gone.Addr
				_, back := gone.lose(t)
				require.Equal(t, len(list), p.c.Send(list...))
				for i, end := range p.c.Wait(t, list...) {
					if i == 2 {
						requireGone(t, end.Err, errs.SideLocal)
						continue
					}
					require.Nil(t, end.Err)
					g.check(t, i*per, (i+1)*per)
				}
				back()
				p.requireSame(t, rail)
			})
		}
	}
}
