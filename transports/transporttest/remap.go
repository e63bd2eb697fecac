package transporttest

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// changing is registered memory of shared pages, which others take the place of.
type changing struct {
	*Operand
	pages, page int
}

// changing maps and registers shared pages.
func (n *Node) changing(t *testing.T, pages int, permission mem.Permission) *changing {
	t.Helper()
	var raw []byte
	page := unix.Getpagesize()
	pool := func(t testing.TB, size int) ([]byte, int, uint64) {
		var f *os.File
		raw, f = mappedFile(t, size)
		require.NoError(t, f.Close())
		return raw, -1, 0
	}
	m := newMemory(t, pages*page-2*band, uint64(max(n.Info.Alignment, 2)), pool)
	m.undo = func() { _ = unix.Munmap(raw) }
	return &changing{n.RegisterMemory(t, n.w.keep(m), permission), pages, page}
}

// replace maps fresh pages, with the old bytes, in the place of a range, and returns a view of the old ones.
func (c *changing) replace(t *testing.T, from, upTo int) (old []byte) {
	t.Helper()
	first := mem.AddressOf(c.around)
	size := (upTo - from) * c.page
	at := first + uintptr(from*c.page)
	kept, err := unix.MremapPtr(mem.Pointer(at), 0, nil, uintptr(size), unix.MREMAP_MAYMOVE)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.MunmapPtr(kept, uintptr(size)) })
	old = mem.Bytes(uintptr(kept), size)
	fresh, f := mappedFile(t, size)
	copy(fresh, old)
	require.NoError(t, unix.Munmap(fresh))
	_, err = unix.MmapPtr(int(f.Fd()), 0, mem.Pointer(at), uintptr(size), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED|unix.MAP_FIXED)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	return old
}

// remap fences the operand and calls its transport, if that holds pages. It returns the operand as peers import it.
func (c *changing) remap(t *testing.T, conn *Conn, from, upTo int) *Remote {
	t.Helper()
	conn.Hear(t, c.Fence(t, nil))
	if r, is := transport.Find[transport.Remapper](c.Node.Transport); is {
		begin := max(from*c.page-band, 0) // the region begins behind the band, in the first page
		end := min(upTo*c.page-band, int(c.Size))
		require.NoError(t, r.Remap(t.Context(), c.Key,
			transport.Remapped{Offset: uint64(begin), Length: uint64(end - begin)}))
	}
	c.Update()
	return conn.Import(t, c.Operand)
}

// testRemap maps other pages behind a range of a region. Slices of later tasks reach them, by the descriptor of after,
// and nobody reaches the old ones. By the descriptor of before they reach the new pages, or fail as Replaced.
func testRemap(t *testing.T, h Harness) {
	const pages = 6
	p := newPair(t, h)
	there := p.b.changing(t, pages, mem.GlobalReadWrite)
	local, size := p.a.Register(t, there.Size, mem.LocalReadWrite), there.Size
	before := p.c.Import(t, there.Operand)
	write := func(to *Remote, tag uint64) *errs.Error {
		local.Fill(tag, 0, size)
		rail, step := p.c.Rail(t), fit(p.c, uint64(there.page))
		var list []*transport.Slice
		for at := uint64(0); at < size; at += step {
			list = append(list, p.c.Slice(transport.Write, rail, local, at, to, at, min(step, size-at)))
		}
		require.Equal(t, len(list), p.c.Send(list...))
		for _, end := range p.c.Wait(t, list...) {
			if end.Err != nil {
				return end.Err
			}
		}
		return nil
	}
	require.Nil(t, write(before, tagMoved))
	require.NoError(t, there.Check(tagMoved, 0, 0, size))
	old := there.replace(t, 2, 4)
	kept := append([]byte(nil), old...)
	now := there.remap(t, p.c, 2, 4)
	if err := write(before, tagBefore); err != nil {
		require.Equal(t, errs.Replaced, err.Code, "%v", err)
	} else {
		require.NoError(t, there.Check(tagBefore, 0, 0, size), "by the descriptor of before")
	}
	require.Nil(t, write(now, tagAfter))
	require.NoError(t, there.Check(tagAfter, 0, 0, size), "new pages")
	require.Equal(t, kept, old, "the old pages were written")
}
