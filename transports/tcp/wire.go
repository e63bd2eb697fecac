package tcp

import (
	"encoding/binary"
	"fmt"
)

// Sizes of the wire format. Every frame is a header, count records and length bytes of payload, all little endian.
const (
	headerBytes     = 16
	recordBytes     = 24
	recordsMax      = 256     // one frame; with headers less than the 1024 iovecs of a system call
	frameBytes      = 1 << 20 // a frame takes no further slice beyond this
	framePayloadMax = frameBytes + sliceMax
	notifyMax       = 68 << 10
	greetingSize    = 48
	version         = 1
	magic           = 0x31_50_43_54_54_4e_45_54 // "TENTTCP1"
)

// kind is the type of a frame. The initiator of a lane (who attached) sends the first group, the responder the second.
type kind uint8

const (
	kindHello    kind = iota + 1 // seq lane id; payload greeting: always first
	kindWrite                    // flag; seq of the first slice; records key, offset, length, checksum; payload: the slices' bytes
	kindRead                     // flag; seq of the first slice; records key, offset, length, class
	kindWithdraw                 // seq lane id; records seq
	kindFence                    // seq lane id: close it for good, tell what landed
	kindNotify                   // seq; payload message
	kindPing                     // seq cookie
	kindPassed                   // seq barrier: what was accepted before the barrier is in front of this frame
	kindLeave                    // the link has ended: forget all that belongs to its token
	kindWelcome                  // seq incarnation of the responder; flag 1 welcome, 0 not
	kindAck                      // seq: every WRITE slice up to it has landed or was refused
	kindNack                     // records seq, -, code
	kindData                     // flag; records seq, offset in the slice, length, checksum; payload: the slices' bytes
	kindConfirm                  // seq lane id; records seq, -, verdict
	kindFenced                   // seq lane id; first record: seq applied; others: seq, -, verdict of exceptions
	kindNotified                 // seq; flag 1 taken, 0 full
	kindPong                     // seq cookie
	kindBarrier                  // seq barrier
	kindGone                     // records lane id: the responder's end of these has lost its interface or its address
	kindBye                      // the transport closes: nothing lands any more
	kindEnd
)

var kindNames = [...]string{kindHello: "hello", kindWrite: "write", kindRead: "read", kindWithdraw: "withdraw",
	kindFence: "fence", kindNotify: "notify", kindPing: "ping", kindPassed: "passed", kindWelcome: "welcome",
	kindAck: "ack", kindNack: "nack", kindData: "data", kindConfirm: "confirm", kindFenced: "fenced",
	kindNotified: "notified", kindPong: "pong", kindBarrier: "barrier", kindLeave: "leave",
	kindGone: "gone", kindBye: "bye"}

func (k kind) String() string {
	if k == 0 || k >= kindEnd {
		return fmt.Sprintf("kind %d", uint8(k))
	}
	return kindNames[k]
}

// Verdicts about a slice that its initiator asked for; any other value is the errs.Code of a refusal.
const (
	verdictApplied = 0       // its bytes have landed
	verdictVoid    = 1 << 16 // they have not, and never will
)

type header struct {
	kind   kind
	flag   uint8
	count  uint16 // records
	length uint32 // payload bytes behind the records
	seq    uint64
}

// record is the one shape of everything that a frame lists; the kinds say what its fields mean.
type record struct {
	id     uint64 // region key, or slice seq
	offset uint64
	length uint32 // or code, or verdict
	extra  uint32 // class of a READ, checksum of payload
}

func (h header) put(b []byte) {
	_ = b[headerBytes-1]
	b[0], b[1] = byte(h.kind), h.flag
	binary.LittleEndian.PutUint16(b[2:], h.count)
	binary.LittleEndian.PutUint32(b[4:], h.length)
	binary.LittleEndian.PutUint64(b[8:], h.seq)
}

func getHeader(b []byte) header {
	_ = b[headerBytes-1]
	return header{kind(b[0]), b[1], binary.LittleEndian.Uint16(b[2:]), binary.LittleEndian.Uint32(b[4:]),
		binary.LittleEndian.Uint64(b[8:])}
}

func (r record) put(b []byte) {
	_ = b[recordBytes-1]
	binary.LittleEndian.PutUint64(b, r.id)
	binary.LittleEndian.PutUint64(b[8:], r.offset)
	binary.LittleEndian.PutUint32(b[16:], r.length)
	binary.LittleEndian.PutUint32(b[20:], r.extra)
}

func getRecord(b []byte) record {
	_ = b[recordBytes-1]
	return record{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:]),
		binary.LittleEndian.Uint32(b[16:]), binary.LittleEndian.Uint32(b[20:])}
}

// appendFrame adds a frame without payload.
func appendFrame(b []byte, h header, records ...record) []byte {
	h.count = uint16(len(records))
	n := len(b)
	b = append(b, make([]byte, headerBytes+recordBytes*len(records))...)
	h.put(b[n:])
	for i, r := range records {
		r.put(b[n+headerBytes+i*recordBytes:])
	}
	return b
}

// check says what is wrong with a header that arrives at a lane's end, before anything of it is used. Payload of WRITE
// and DATA must be the sum of their records, which is checked with the table.
func (h header) check(serving, greeted bool) error {
	if h.kind == 0 || h.kind >= kindEnd || serving != (h.kind < kindWelcome) {
		return fmt.Errorf("%v does not belong here", h.kind)
	}
	if serving && greeted == (h.kind == kindHello) {
		return fmt.Errorf("%v out of order", h.kind)
	}
	least, most, payload := 0, 0, uint32(0)
	switch h.kind {
	case kindHello:
		payload = greetingSize
	case kindWrite, kindData:
		least, most, payload = 1, recordsMax, framePayloadMax
	case kindRead, kindWithdraw, kindNack, kindConfirm, kindFenced, kindGone:
		least, most = 1, recordsMax
	case kindNotify:
		payload = notifyMax
	}
	if n := int(h.count); n < least || n > most {
		return fmt.Errorf("%v with %d records", h.kind, n)
	}
	if h.length > payload || (h.kind == kindHello && h.length != payload) {
		return fmt.Errorf("%v with %d bytes", h.kind, h.length)
	}
	return nil
}

// sumLengths adds the lengths of a table and reports false for a slice of no bytes, or one beyond most.
func sumLengths(table []record, most uint64) (sum uint64, ok bool) {
	for i := range table {
		n := uint64(table[i].length)
		if n == 0 || n > most {
			return 0, false
		}
		sum += n
	}
	return sum, true
}

// token is what the control plane gave to one attachment; a lane without it is closed.
type token [16]byte

// greeting is the payload of the first frame of a lane.
type greeting struct {
	magic       uint64
	version     uint32
	generation  uint32
	incarnation uint64 // of the initiator
	token       token
	rail        uint16
	group       uint8
	lane        uint8
}

func (g greeting) append(b []byte) []byte {
	n := len(b)
	b = binary.LittleEndian.AppendUint64(b, g.magic)
	b = binary.LittleEndian.AppendUint32(b, g.version)
	b = binary.LittleEndian.AppendUint32(b, g.generation)
	b = binary.LittleEndian.AppendUint64(b, g.incarnation)
	b = append(b, g.token[:]...)
	b = binary.LittleEndian.AppendUint16(b, g.rail)
	b = append(b, g.group, g.lane)
	return append(b, make([]byte, greetingSize-(len(b)-n))...)
}

func getGreeting(b []byte) greeting {
	_ = b[greetingSize-1]
	g := greeting{magic: binary.LittleEndian.Uint64(b), version: binary.LittleEndian.Uint32(b[8:]),
		generation: binary.LittleEndian.Uint32(b[12:]), incarnation: binary.LittleEndian.Uint64(b[16:]),
		rail: binary.LittleEndian.Uint16(b[40:]), group: b[42], lane: b[43]}
	copy(g.token[:], b[24:40])
	return g
}
