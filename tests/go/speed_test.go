package tests

import (
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/transport"
)

// mover is one prepared transfer that can be carried out again and again.
type mover struct {
	engine  *engine.Engine
	request engine.Request
}

func (m *mover) move(tb testing.TB) {
	id, err := m.engine.Move(&m.request)
	if err != nil {
		tb.Fatal(err)
	}
	if state := m.engine.Wait(id, patience); state != dispatch.Completed {
		tb.Fatalf("the transfer is %s", state)
	}
	if err := m.engine.FreeBatch(id); err != nil {
		tb.Fatal(err)
	}
}

func TestNothingIsAllocatedBetweenSubmitAndCompletion(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector allocates by itself")
	}
	eachWorld(t, func(t *testing.T, w world) {
		here, there := w.open(t, nil), w.open(t, nil)
		own, theirs := memory(t, 1<<20), memory(t, 1<<20)
		offer(t, here, own, "")
		offer(t, there, theirs, "kv")
		at := segment(t, here, there, "kv")
		pages := newPager(t, here, at, own)
		listed := newLister(t, here, at, own)
		for _, op := range []transport.Op{transport.Write, transport.Read} {
			m := mover{here, engine.Request{Terms: engine.Terms{Op: op}, Source: address(own), Length: 4096,
				Remote: engine.Remote{Segment: at}}}
			pages.Op, listed.Op = op, op
			// Both ends are in this process, so the receiver's side is counted too. Timers of waits that had to park
			// are the one thing that may allocate now and then.
			records := []request.Record{record(address(own), at, 0, 4096)}
			records[0].Opcode = uint64(op)
			for name, move := range map[string]func(){
				"move":    func() { m.move(t) },
				"pages":   func() { pages.move(t) },
				"listed":  func() { listed.move(t) },
				"records": func() { submitted(t, here, records) },
			} {
				for range 500 { // pools and slabs reach their size
					move()
				}
				require.Less(t, testing.AllocsPerRun(500, move), 0.5, "%s of %s allocates", op, name)
			}
		}
	})
}

func TestNothingIsAllocatedForAFile(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector allocates by itself")
	}
	e, own := openTCP(t, nil), memory(t, 1<<20)
	offer(t, e, own, "")
	at := openFile(t, e, filepath.Join(t.TempDir(), "kv.bin"), engine.FileOptions{Create: true, Size: uint64(len(own))})
	pages := newPager(t, e, at, own)
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		m := mover{e, engine.Request{Terms: engine.Terms{Op: op}, Source: address(own), Length: 4096,
			Remote: engine.Remote{Segment: at}}}
		pages.Op = op
		records := []request.Record{record(address(own), at, 0, 4096)}
		records[0].Opcode = uint64(op)
		for name, move := range map[string]func(){
			"move":    func() { m.move(t) },
			"pages":   func() { pages.move(t) },
			"records": func() { submitted(t, e, records) },
		} {
			for range 200 {
				move()
			}
			require.Less(t, testing.AllocsPerRun(200, move), 0.5, "%s of %s allocates", op, name)
		}
	}
}

// submitted moves packed requests, from the begin to the end.
func submitted(tb testing.TB, e *engine.Engine, records []request.Record) {
	c, err := e.Begin(engine.Terms{})
	if err == nil {
		err = c.AddRecords(records)
	}
	if err != nil {
		tb.Fatal(err)
	}
	id, err := c.Commit(nil)
	if err != nil {
		tb.Fatal(err)
	}
	if state := e.Wait(id, patience); state != dispatch.Completed {
		tb.Fatalf("the transfer is %s", state)
	}
	if err := e.FreeBatch(id); err != nil {
		tb.Fatal(err)
	}
}

// pager is one prepared transfer of pages.
type pager struct {
	engine *engine.Engine
	engine.Terms
	shape engine.Pages
}

func newPager(t *testing.T, e *engine.Engine, at engine.SegmentID, own []byte) *pager {
	layout := engine.Layout{PageBytes: 1024}
	near, _, err := e.NewGrid(engine.OwnMemory, []engine.GridRegion{{Addr: address(own), Size: uint64(len(own))}},
		layout)
	require.NoError(t, err)
	far, _, err := e.NewGrid(at, []engine.GridRegion{{Size: uint64(len(own))}}, layout)
	require.NoError(t, err)
	indexes := engine.IndexesOf([]int64{7, 3, 5, 1, 9, 11, 12, 13})
	return &pager{e, engine.Terms{}, engine.Pages{Local: near, Remote: far, N: 8, Src: indexes, Dst: indexes}}
}

// newLister is a pager over address lists.
func newLister(t *testing.T, e *engine.Engine, at engine.SegmentID, own []byte) *pager {
	size := engine.IndexesOf([]int64{512})
	size.Stride = 0
	var here, there []int64
	for i := range int64(16) {
		here, there = append(here, int64(address(own))+i*i*1024), append(there, i*1024)
	}
	near, err := e.NewAddresses(engine.OwnMemory, len(here), engine.IndexesOf(here), size)
	require.NoError(t, err)
	far, err := e.NewAddresses(at, len(there), engine.IndexesOf(there), size)
	require.NoError(t, err)
	indexes := engine.IndexesOf([]int64{7, 3, 5, 1, 9, 11, 12, 13})
	return &pager{e, engine.Terms{}, engine.Pages{Local: near, Remote: far, N: 8, Src: indexes, Dst: indexes}}
}

func (p *pager) move(tb testing.TB) {
	id, err := p.engine.Pages(p.Terms, &p.shape, nil)
	if err != nil {
		tb.Fatal(err)
	}
	if state := p.engine.Wait(id, patience); state != dispatch.Completed {
		tb.Fatalf("the transfer is %s", state)
	}
	if err := p.engine.FreeBatch(id); err != nil {
		tb.Fatal(err)
	}
}

func BenchmarkMove4KiB(b *testing.B) {
	here, there := openTCP(b, nil), openTCP(b, nil)
	own, theirs := memory(b, 1<<20), memory(b, 1<<20)
	offer(b, here, own, "")
	offer(b, there, theirs, "kv")
	m := mover{here, engine.Request{Terms: engine.Terms{Op: transport.Write}, Source: address(own), Length: 4096,
		Remote: engine.Remote{Segment: segment(b, here, there, "kv")}}}
	b.ReportAllocs()
	for b.Loop() {
		m.move(b)
	}
}

// BenchmarkWait is the latency of transfers of several sizes; the caller waits for each.
func BenchmarkWait(b *testing.B) {
	for _, size := range []int{4 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 4 << 20} {
		b.Run(sizeName(size), func(b *testing.B) {
			here, there := openTCP(b, nil), openTCP(b, nil)
			own, theirs := memory(b, size), memory(b, size)
			offer(b, here, own, "")
			offer(b, there, theirs, "kv")
			m := mover{here, engine.Request{Terms: engine.Terms{Op: transport.Write}, Source: address(own),
				Length: uint64(size), Remote: engine.Remote{Segment: segment(b, here, there, "kv")}}}
			for range 50 {
				m.move(b)
			}
			b.ReportAllocs()
			for b.Loop() {
				m.move(b)
			}
		})
	}
}

func sizeName(n int) string { return strconv.Itoa(n>>10) + "KiB" }
