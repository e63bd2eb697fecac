package delegate

import (
	"encoding/binary"
	"maps"
	"math"
	"slices"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// version of the messages.
const version = 1

// Kinds of messages.
const (
	begin  = 1 // an order
	ask    = 2 // for its end
	cancel = 3 // it, and for its end
	hello  = 4 // from here on the peer hears of fences
	fenced = 5 // of a region, which the lane names, in the epoch of seq
)

// States of an order in answers.
const (
	pending = 1
	ended   = 2
	unknown = 3 // it never came
	busy    = 4 // no lane is free
)

// message is a call. An order is in those that begin one.
type message struct {
	kind  uint8
	lane  uint64
	seq   uint64
	order transport.Order
}

// encode appends a message.
func (m *message) encode(b []byte) []byte {
	b = append(b, m.kind)
	b = binary.LittleEndian.AppendUint64(b, m.lane)
	b = binary.LittleEndian.AppendUint64(b, m.seq)
	if m.kind != begin {
		return b
	}
	o := &m.order
	b = append(b, byte(o.Op), o.Class)
	for _, v := range []uint64{uint64(o.Epoch), uint64(o.Key), o.Bytes, o.Offset, uint64(o.Lent.ID), o.Lent.Size} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	b = append(b, byte(len(o.Lent.Descriptors)))
	for _, name := range slices.Sorted(maps.Keys(o.Lent.Descriptors)) {
		d := o.Lent.Descriptors[name]
		b = kit.AppendText(b, name)
		b = binary.LittleEndian.AppendUint32(b, uint32(len(d)))
		b = append(b, d...)
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(len(o.Places)))
	for _, at := range o.Places {
		b = binary.LittleEndian.AppendUint64(b, at)
	}
	return b
}

// decode reads a message of a peer. The message keeps nothing of the bytes.
func decode(b []byte) (*message, *errs.Error) {
	if len(b) > messageMost {
		return nil, malformed("%d bytes, more than %d", len(b), messageMost)
	}
	r := kit.NewReader(b)
	m := &message{kind: r.U8(), lane: r.U64(), seq: r.U64()}
	if m.kind == begin {
		read(&m.order, r)
	}
	o := &m.order
	switch {
	case !r.Whole() || m.kind < begin || m.kind > fenced || m.seq == 0:
		return nil, malformed("%d bytes", len(b))
	case m.kind != begin:
	case o.Op > transport.Write || len(o.Places) == 0 || o.Bytes == 0 || o.Bytes > bytesMost ||
		o.Length() > bytesMost:
		return nil, malformed("%d parts of %d bytes", len(o.Places), o.Bytes)
	case !mem.Contains(o.Lent.Size, o.Offset, o.Length()):
		return nil, malformed("%d bytes at %d leave the lent memory", o.Length(), o.Offset)
	}
	return m, nil
}

// read takes an order out of a message; a wrong one is short, or too long.
func read(o *transport.Order, r *kit.Reader) {
	o.Op, o.Class = transport.Op(r.U8()), r.U8()
	o.Epoch, o.Key = transport.Epoch(r.U64()), transport.LocalKey(r.U64())
	o.Bytes, o.Offset = r.U64(), r.U64()
	o.Lent.ID, o.Lent.Size = mem.RegionID(r.U64()), r.U64()
	n := int(r.U8())
	o.Lent.Descriptors = make(map[string]transport.Descriptor)
	for range min(n, descriptorsMost) {
		name, length := r.Text(), int(r.U32())
		if length > r.Left() {
			length = r.Left() + 1 // so that it is short
		}
		o.Lent.Descriptors[name] = slices.Clone(r.Bytes(length))
	}
	if n = int(r.U32()); n > placesMost || n*8 != r.Left() {
		r.Bytes(r.Left() + 1)
		return
	}
	o.Places = make([]uint64, n)
	for i := range o.Places {
		o.Places[i] = r.U64()
	}
}

// answer is the state of an order, and its end.
type answer struct {
	state uint8
	dirty bool
	err   *errs.Error
}

func (a *answer) encode() []byte {
	b := kit.AppendBool([]byte{a.state}, a.dirty)
	if a.err == nil {
		return binary.LittleEndian.AppendUint32(b, 0)
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(a.err.Code))
	b = append(b, byte(a.err.Scope), byte(a.err.Side))
	return kit.AppendText(kit.AppendText(b, a.err.Cause), a.err.Hint)
}

func readAnswer(b []byte) (*answer, *errs.Error) {
	r := kit.NewReader(b)
	a := &answer{state: r.U8(), dirty: r.Bool()}
	bad := false
	if code := r.U32(); code != 0 {
		scope, side := errs.Scope(r.U8()), errs.Side(r.U8())
		bad = scope > errs.ScopeLink || side > errs.SidePath || code > math.MaxUint16
		a.err = errs.New(errs.Code(code), Name, "%s", "").WithScope(scope, side)
		a.err.Cause, a.err.Hint = r.Text(), r.Text()
	}
	if bad || !r.Whole() || a.state < pending || a.state > busy {
		return nil, malformed("an answer of %d bytes", len(b))
	}
	return a, nil
}

func malformed(format string, args ...any) *errs.Error {
	return errs.New(errs.Protocol, Name, "malformed message: "+format, args...).
		WithScope(errs.ScopeLink, errs.SideRemote)
}
