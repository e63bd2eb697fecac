package kit

import (
	"encoding/binary"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// Reader takes fields out of a message of little endian numbers. After a message that is too short all fields are zero
// and Short reports it, so a caller checks once, at the end.
type Reader struct {
	rest  []byte
	short bool
}

// NewReader returns a Reader of a message. Bytes that it returns are the message's.
func NewReader(message []byte) *Reader { return &Reader{rest: message} }

// Bytes returns the next n bytes.
func (r *Reader) Bytes(n int) []byte {
	if len(r.rest) < n {
		r.short, r.rest = true, nil
		return make([]byte, n)
	}
	head := r.rest[:n]
	r.rest = r.rest[n:]
	return head
}

// U8 returns the next byte.
func (r *Reader) U8() byte { return r.Bytes(1)[0] }

// Bool reads a byte of AppendBool. Any other byte than 0 and 1 spoils the message, as if it were short.
func (r *Reader) Bool() bool {
	b := r.U8()
	r.short = r.short || b > 1
	return b == 1
}

// U32 returns the next four bytes as a number.
func (r *Reader) U32() uint32 { return binary.LittleEndian.Uint32(r.Bytes(4)) }

// U64 returns the next eight bytes as a number.
func (r *Reader) U64() uint64 { return binary.LittleEndian.Uint64(r.Bytes(8)) }

// ID returns the next 16 bytes as the name of an engine.
func (r *Reader) ID() transport.ID { return transport.ID(r.Bytes(len(transport.ID{}))) }

// Text returns the text of an AppendText, as logs, errors and names of series may show it: it is a peer's.
func (r *Reader) Text() string { return errs.Printable(string(r.Bytes(int(r.U8()))), 255) }

// Short reports whether a field was missing.
func (r *Reader) Short() bool { return r.short }

// Left returns how many bytes follow.
func (r *Reader) Left() int { return len(r.rest) }

// Whole reports whether every field was there and nothing follows.
func (r *Reader) Whole() bool { return !r.short && len(r.rest) == 0 }

// AppendText appends a text of at most 255 bytes; a longer one is cut.
func AppendText(b []byte, text string) []byte {
	text = text[:min(len(text), 255)]
	return append(append(b, byte(len(text))), text...)
}

// AppendBool appends 1 or 0.
func AppendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}
