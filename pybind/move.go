package pybind

import (
	"encoding/json"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/transport"
)

// block views an argument block: n unsigned 64-bit numbers in Python's memory.
func block(address uint64, n int) []uint64 { return mem.Words(uintptr(address), n) }

func terms(op, class, deadline, hint uint64) (engine.Terms, error) {
	if op > 1 || class >= dispatch.ClassCount || hint > 255 {
		return engine.Terms{}, errs.New(errs.InvalidArgument, "submit", "opcode %d, priority %d or transport_hint %d is out of range", op, class, hint)
	}
	if deadline > uint64(clock.Never) {
		return engine.Terms{}, errs.New(errs.InvalidArgument, "submit", "deadline_ns %d is beyond 2^63", deadline)
	}
	return engine.Terms{Op: transport.Op(op), Class: uint8(class), Hint: uint8(hint), Deadline: clock.Time(deadline)}, nil
}

// noteOf reads a notification from Python's memory; the engine copies it.
func noteOf(has bool, nameAt, nameBytes, messageAt, messageBytes uint64) (*engine.Note, error) {
	if !has {
		return nil, nil
	}
	if nameBytes > engine.NoteNameMax || messageBytes > engine.NoteMessageMax {
		return nil, errs.New(errs.InvalidArgument, "notify", "a name of %d and a message of %d bytes, at most %d and %d are allowed",
			nameBytes, messageBytes, engine.NoteNameMax, engine.NoteMessageMax)
	}
	n := &engine.Note{}
	if nameBytes > 0 {
		n.Name = mem.Bytes(uintptr(nameAt), int(nameBytes))
	}
	if messageBytes > 0 {
		n.Message = mem.Bytes(uintptr(messageAt), int(messageBytes))
	}
	return n, nil
}

// Move starts a transfer of one request, or appends it to a builder. word is op | class<<8 | hint<<16 | intent<<24 |
// checked<<32 | durable<<33.
func Move(id int64, word, local, length uint64, segment int64, region, offset, deadline uint64, builder int64) (batch uint64, err error) {
	defer guard(&err)
	e, err := get(id)
	if err != nil {
		return 0, err
	}
	t, err := terms(word&0xff, word>>8&0xff, deadline, word>>16&0xff)
	if err != nil {
		return 0, err
	}
	t.Integrity = request.Integrity(word >> 32 & 1)
	r := engine.Request{Terms: t, Source: uintptr(local), Length: length, Durable: word>>33&1 != 0,
		Remote: engine.Remote{Segment: engine.SegmentID(segment), Region: mem.RegionID(region), Offset: offset}}
	if builder != 0 {
		i, err := e.AddMove(engine.BuilderID(builder), &r)
		return uint64(i), err
	}
	b, err := e.Move(&r)
	return uint64(b), err
}

func indexes(w []uint64) engine.Indexes {
	return engine.Indexes{Addr: uintptr(w[0]), Width: uint8(w[1] & 15), Unsigned: w[1]&16 != 0, Stride: int64(w[2])}
}

// Pages starts a transfer of pages from a block of 20 numbers: 0 op 1 class 2 deadline 3 hint 4 intent 5 builder 6 local
// grid 7 remote grid 8 n 9-11 source indexes (address, item bytes | 16 if unsigned, stride) 12-14 destination indexes
// 15-18 notification (name address and bytes, message address and bytes) 19 flags (1: there is a notification, 2: checksums,
// 4: durable).
func Pages(id int64, address uint64) (batch uint64, err error) {
	defer guard(&err)
	e, err := get(id)
	if err != nil {
		return 0, err
	}
	w := block(address, 20)
	r := engine.PagesRequest{Local: engine.GridID(w[6]), Remote: engine.GridID(w[7]), N: int(w[8]), Src: indexes(w[9:]),
		Dst: indexes(w[12:])}
	if r.Terms, err = terms(w[0], w[1], w[2], w[3]); err != nil {
		return 0, err
	}
	r.Integrity, r.Durable = request.Integrity(w[19]>>1&1), w[19]&4 != 0
	if r.Note, err = noteOf(w[19]&1 != 0, w[15], w[16], w[17], w[18]); err != nil {
		return 0, err
	}
	if w[5] != 0 {
		i, err := e.AddPages(engine.BuilderID(w[5]), &r)
		return uint64(i), err
	}
	b, err := e.Pages(&r)
	return uint64(b), err
}

// Ranges starts a transfer of ranges from a block of 27 numbers: 0-5 as Pages, 6 local address 7 local bytes 8 segment
// 9 remote region 10 remote offset 11 remote bytes 12 n 13-15 local offsets 16-18 remote offsets 19-21 lengths
// 22-25 notification 26 flags.
func Ranges(id int64, address uint64) (batch uint64, err error) {
	defer guard(&err)
	e, err := get(id)
	if err != nil {
		return 0, err
	}
	w := block(address, 27)
	r := engine.RangesRequest{Local: uintptr(w[6]), LocalSize: w[7],
		Remote:     engine.Remote{Segment: engine.SegmentID(w[8]), Region: mem.RegionID(w[9]), Offset: w[10]},
		RemoteSize: w[11], N: int(w[12]), LocalOffsets: indexes(w[13:]), RemoteOffsets: indexes(w[16:]), Bytes: indexes(w[19:])}
	if r.Terms, err = terms(w[0], w[1], w[2], w[3]); err != nil {
		return 0, err
	}
	r.Integrity, r.Durable = request.Integrity(w[26]>>1&1), w[26]&4 != 0
	if r.Note, err = noteOf(w[26]&1 != 0, w[22], w[23], w[24], w[25]); err != nil {
		return 0, err
	}
	if w[5] != 0 {
		i, err := e.AddRanges(engine.BuilderID(w[5]), &r)
		return uint64(i), err
	}
	b, err := e.Ranges(&r)
	return uint64(b), err
}

// Grid prepares pages of equal regions from JSON and returns its number.
func Grid(id int64, text string) (grid int64, err error) {
	defer guard(&err)
	e, err := get(id)
	if err != nil {
		return 0, err
	}
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
		regions[i] = engine.GridRegion{Addr: uintptr(r.Address), Region: mem.RegionID(r.ID), Offset: r.Offset, Size: r.Size}
	}
	n, _, err := e.NewGrid(engine.SegmentID(g.Segment), regions, engine.Layout{PageBytes: g.PageBytes, Stride: g.Stride,
		Offset: g.Offset, Rows: g.Rows, RowStride: g.RowStride})
	return int64(n), err
}

// GridPages returns the number of pages in each region of a grid.
func GridPages(id int64, grid int64) (n int64, err error) {
	defer guard(&err)
	e, err := get(id)
	if err != nil {
		return 0, err
	}
	pages, err := e.GridPages(engine.GridID(grid))
	return int64(pages), err
}

// CloseGrid forgets a grid.
func CloseGrid(id int64, grid int64) (n int64, err error) {
	defer guard(&err)
	e, err := get(id)
	if err != nil {
		return 0, err
	}
	e.CloseGrid(engine.GridID(grid))
	return 0, nil
}

// Builder begins a transfer that is put together by Move, Pages and Ranges.
func Builder(id int64) (builder int64, err error) {
	defer guard(&err)
	e, err := get(id)
	if err != nil {
		return 0, err
	}
	b, err := e.NewBuilder()
	return int64(b), err
}

// Commit submits a builder's transfer, all or nothing. With durable it ends when the files that it writes are on stable
// storage.
func Commit(id, builder int64, nameAt, nameBytes, messageAt, messageBytes uint64, hasNote, durable bool) (batch uint64, err error) {
	defer guard(&err)
	e, err := get(id)
	if err != nil {
		return 0, err
	}
	n, err := noteOf(hasNote, nameAt, nameBytes, messageAt, messageBytes)
	if err != nil {
		return 0, err
	}
	b, err := e.Commit(engine.BuilderID(builder), n, durable)
	return uint64(b), err
}

// Discard forgets a builder.
func Discard(id, builder int64) (n int64, err error) {
	defer guard(&err)
	e, err := get(id)
	if err != nil {
		return 0, err
	}
	e.Discard(engine.BuilderID(builder))
	return 0, nil
}

// Notify sends a notification alone; the batch ends when the peer has taken it.
func Notify(id, segment int64, nameAt, nameBytes, messageAt, messageBytes, deadline uint64) (batch uint64, err error) {
	defer guard(&err)
	e, err := get(id)
	if err != nil {
		return 0, err
	}
	n, err := noteOf(true, nameAt, nameBytes, messageAt, messageBytes)
	if err != nil {
		return 0, err
	}
	b, err := e.Notify(engine.SegmentID(segment), *n, clock.Time(deadline))
	return uint64(b), err
}
