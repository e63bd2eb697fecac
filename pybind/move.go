package pybind

import (
	"cmp"
	"encoding/json"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/request"
)

// words views n unsigned 64-bit numbers in the caller's memory.
func words(address uint64, n int) []uint64 { return mem.Words(uintptr(address), n) }

// requestsMost bounds the number of packed requests in a call.
const requestsMost = 1 << 30

// records views n packed requests in the caller's memory.
func records(address uint64, n int64) ([]request.Record, error) {
	if n < 1 || n > requestsMost {
		return nil, errs.New(errs.InvalidArgument, "submit", "%d requests are not at least one", n)
	}
	return recordsAt(address, int(n)), nil
}

// noteAt reads a notification and a trace from the caller's memory. The notification is nil for none, and for address
// 0. The engine copies it.
func noteAt(address uint64) (n *engine.Note, trace string, err error) {
	if address == 0 {
		return nil, "", nil
	}
	p := packedNoteAt(address)
	if p.NameBytes > engine.NoteNameMax || p.MessageBytes > engine.NoteMessageMax || p.TraceBytes > engine.TraceMax {
		return nil, "", errs.New(errs.InvalidArgument, "notify",
			"a name of %d, a message of %d and a trace of %d bytes, at most %d, %d and %d are allowed", p.NameBytes,
			p.MessageBytes, p.TraceBytes, engine.NoteNameMax, engine.NoteMessageMax, engine.TraceMax)
	}
	if p.TraceBytes > 0 {
		trace = string(mem.Bytes(uintptr(p.TraceAddress), int(p.TraceBytes)))
	}
	if p.Notify == 0 {
		return nil, trace, nil
	}
	n = &engine.Note{Trace: trace}
	if p.NameBytes > 0 {
		n.Name = mem.Bytes(uintptr(p.NameAddress), int(p.NameBytes))
	}
	if p.MessageBytes > 0 {
		n.Message = mem.Bytes(uintptr(p.MessageAddress), int(p.MessageBytes))
	}
	return n, trace, nil
}

// begin starts a call that asks nobody: Python asks itself, by Ask.
func begin(e *engine.Engine, t engine.Terms) (*engine.Call, error) {
	c, err := e.Begin(t)
	if err == nil {
		c.AskNobody()
	}
	return c, err
}

// Ask asks the peer of a segment for its regions. Moves do not wait for that: one that has to ask fails at once, with
// the arguments of Ask in its error. So Python waits as for other long calls, and a signal is handled meanwhile.
func Ask(id, segment, deadline int64) (int64, error) {
	return on(id, func(e *engine.Engine) (int64, error) {
		return 0, e.Ask(engine.SegmentID(segment), clock.Time(deadline))
	})
}

// commit submits a call with a notification and a trace at an address, 0 for neither.
func commit(c *engine.Call, note uint64) (uint64, error) {
	n, trace, err := noteAt(note)
	if err == nil {
		err = c.Trace(trace)
	}
	if err != nil {
		c.Discard()
		return 0, err
	}
	b, err := c.Commit(n)
	return uint64(b), err
}

// Move starts a transfer of one request without further terms and returns its batch.
func Move(id int64, opcode, local, length uint64, segment int64, region, offset uint64) (batch uint64, err error) {
	defer guard(&err)
	e, err := get(id)
	if err != nil {
		return 0, err
	}
	c, err := begin(e, engine.Terms{Op: request.Packed{Opcode: opcode}.Terms().Op})
	if err != nil {
		return 0, err
	}
	to := engine.Remote{Segment: engine.SegmentID(segment), Region: mem.RegionID(region), Offset: offset}
	if err := c.AddRange(uintptr(local), to, length); err != nil {
		c.Discard()
		return 0, err
	}
	b, err := c.Commit(nil)
	return uint64(b), err
}

// Start starts a transfer of n packed requests and returns its batch, or adds them to a builder and returns 0. note is
// the address of a notification, 0 for none; the notification of a builder is given by Commit.
func Start(id, builder int64, requests uint64, n int64, note uint64) (batch uint64, err error) {
	defer guard(&err)
	list, err := records(requests, n)
	if err != nil {
		return 0, err
	}
	return put(id, builder, engine.Terms{}, note, func(c *engine.Call) error { return c.AddRecords(list) })
}

// Pages starts a transfer of pages from an argument block, which tent/_abi.py packs. It returns the transfer's batch,
// or adds them to a builder and returns 0.
func Pages(id int64, block uint64) (batch uint64, err error) {
	defer guard(&err)
	b := pagesBlockAt(block)
	shape := engine.Pages{Local: engine.GridID(b.LocalGrid), Remote: engine.GridID(b.RemoteGrid), N: int(b.N),
		Src: b.Src.indexes(), Dst: b.Dst.indexes()}
	return put(id, int64(b.Builder), b.Terms(), b.Note, func(c *engine.Call) error { return c.AddPages(&shape) })
}

// Ranges starts a transfer of ranges from an argument block, which tent/_abi.py packs. It returns the transfer's batch,
// or adds them to a builder and returns 0.
func Ranges(id int64, block uint64) (batch uint64, err error) {
	defer guard(&err)
	b := rangesBlockAt(block)
	shape := engine.Ranges{Local: uintptr(b.Local), LocalSize: b.LocalBytes, RemoteSize: b.RemoteBytes, N: int(b.N),
		Remote: engine.Remote{Segment: engine.SegmentID(b.TargetID), Region: mem.RegionID(b.TargetRegion),
			Offset: b.TargetOffset},
		LocalOffsets: b.LocalOffsets.indexes(), RemoteOffsets: b.RemoteOffsets.indexes(), Bytes: b.Lengths.indexes()}
	return put(id, int64(b.Builder), b.Terms(), b.Note, func(c *engine.Call) error { return c.AddRanges(&shape) })
}

func (w *stridedWords) indexes() engine.Indexes {
	return engine.Indexes{Addr: uintptr(w.Address), Width: uint8(w.Code & 15), Unsigned: w.Code&16 != 0,
		Stride: int64(w.Stride)}
}

// put adds a shape to a new transfer, which it commits, or to a builder.
func put(id, builder int64, t engine.Terms, note uint64, add func(*engine.Call) error) (uint64, error) {
	o, err := find(id)
	if err != nil {
		return 0, err
	}
	if builder != 0 {
		return 0, o.builders.use(builder, func(c *engine.Call) error {
			if err := c.With(t); err != nil {
				return err
			}
			return add(c)
		})
	}
	c, err := begin(o.engine, t)
	if err != nil {
		return 0, err
	}
	if err := add(c); err != nil {
		c.Discard()
		return 0, err
	}
	return commit(c, note)
}

// Grid prepares pages of equal regions from JSON and returns its number.
func Grid(id int64, text string) (int64, error) {
	return on(id, func(e *engine.Engine) (int64, error) {
		var g struct {
			Segment int64 `json:"segment"`
			Regions []struct {
				ID      uint64 `json:"id"`
				Address uint64 `json:"address"`
				Offset  uint64 `json:"offset"`
				Size    uint64 `json:"size"`
			} `json:"regions"`
			PageBytes uint64 `json:"page_bytes"`
			Stride    uint64 `json:"stride"`
			Offset    uint64 `json:"offset"`
			Rows      uint64 `json:"rows"`
			RowStride uint64 `json:"row_stride"`
		}
		if err := json.Unmarshal([]byte(text), &g); err != nil {
			return 0, errs.Wrap(errs.InvalidArgument, "pages", err)
		}
		regions := make([]engine.GridRegion, len(g.Regions))
		for i, r := range g.Regions {
			regions[i] = engine.GridRegion{Addr: uintptr(r.Address), Region: mem.RegionID(r.ID), Offset: r.Offset,
				Size: r.Size}
		}
		n, _, err := e.NewGrid(engine.SegmentID(g.Segment), regions, engine.Layout{PageBytes: g.PageBytes,
			Stride: g.Stride, Offset: g.Offset, Rows: g.Rows, RowStride: g.RowStride})
		return int64(n), err
	})
}

// Addresses prepares n ranges by address and returns their number as a grid. words is the address of two sequences of
// integers: the addresses and the lengths.
func Addresses(id, segment, n int64, words uint64) (int64, error) {
	return on(id, func(e *engine.Engine) (int64, error) {
		both := stridedAt(words, 2)
		g, err := e.NewAddresses(engine.SegmentID(segment), int(n), both[0].indexes(), both[1].indexes())
		return int64(g), err
	})
}

// GridPages returns the number of pages in each region of a grid.
func GridPages(id int64, grid int64) (int64, error) {
	return on(id, func(e *engine.Engine) (int64, error) {
		pages, err := e.GridPages(engine.GridID(grid))
		return int64(pages), err
	})
}

// CloseGrid forgets a grid.
func CloseGrid(id int64, grid int64) (int64, error) {
	return on(id, func(e *engine.Engine) (int64, error) {
		e.CloseGrid(engine.GridID(grid))
		return 0, nil
	})
}

// Builder begins a transfer that Start, Pages and Ranges put together. terms is the address of its terms: shapes have
// terms of their own, and these are only checked, so that a wrong one is refused here and not with the first shape.
func Builder(id int64, terms uint64) (int64, error) {
	return with(id, func(o opened) (int64, error) {
		c, err := begin(o.engine, packedAt(terms).Terms())
		if err != nil {
			return 0, err
		}
		return o.builders.add(c), nil
	})
}

// Commit submits a builder's transfer, all or nothing, and returns its batch. note is the address of a notification, 0
// for none. The builder stays if max_batches are alive: its owner may know some that nobody needs any more.
func Commit(id, builder int64, note uint64) (uint64, error) {
	return with(id, func(o opened) (uint64, error) {
		if err := o.engine.CheckRoom(); err != nil {
			return 0, err
		}
		c, err := o.builders.remove(builder)
		if err != nil {
			return 0, err
		}
		return commit(c, note)
	})
}

// Discard forgets a builder. One that was submitted is left alone.
func Discard(id, builder int64) (int64, error) {
	return with(id, func(o opened) (int64, error) {
		if c, err := o.builders.remove(builder); err == nil {
			c.Discard()
		}
		return 0, nil
	})
}

// Notify sends a notification alone; the batch ends when the peer has taken it. asks is that of Submit.
func Notify(id, segment int64, note, deadline uint64, asks bool) (uint64, error) {
	return on(id, func(e *engine.Engine) (uint64, error) {
		n, _, err := noteAt(note)
		if err != nil {
			return 0, err
		}
		if n == nil {
			return 0, errs.New(errs.InvalidArgument, "notify", "there is no notification")
		}
		if !asks {
			if err := e.Asked(engine.SegmentID(segment), cmp.Or(clock.Time(deadline), clock.Never)); err != nil {
				return 0, err
			}
		}
		b, err := e.Notify(engine.SegmentID(segment), *n, clock.Time(deadline))
		return uint64(b), err
	})
}
