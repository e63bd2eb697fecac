package tcp

import (
	"encoding/binary"
	"fmt"

	"github.com/tent-engine/tent/transports/kit"
)

// # Wire format, version 3
//
// Everything is little endian. A lane is one TCP connection, on which both ends send frames:
//
//	header   16 bytes: kind uint8, flag uint8, count uint16, length uint32, seq uint64
//	records  count times 24 bytes: id uint64, offset uint64, length uint32, last word uint32
//	payload  length bytes
//
// Slices have numbers, which grow along a lane and may skip; slice i of a frame has the number seq+i. A key names a
// region, and a verdict is 0 (landed), 65536 (void: it has not landed and never will), 65537 (its task began before a
// fence of the region) or the errs.Code of a refusal. Fields that a kind does not name are 0, and are ignored.
//
//	  initiator sends   flag     seq            records                                payload
//	 1 HELLO                     lane id                                               greeting, 72 bytes
//	 2 PROOF                                                                           MAC, 32 bytes
//	 3 WRITE            checked  first slice    key, offset, length, CRC-32C           the slices' bytes
//	 4 READ             checked  first slice    key, offset, length, class
//	 5 WITHDRAW                  lane id        slice
//	 6 FENCE                     lane id
//	 7 NOTIFY                    message                                               the message
//	 8 PING                      cookie
//	 9 EPOCH                     epoch
//	10 LEAVE
//	  responder sends
//	11 CHALLENGE                                                                       nonce, MAC: 64 bytes
//	12 ACK                       last slice
//	13 NACK                                     slice, epoch, verdict
//	14 DATA             checked                 slice, offset in it, length, CRC-32C   the slices' bytes
//	15 CONFIRM                   lane id        slice, 0, verdict
//	16 FENCED                    lane id        last slice; then: slice, 0, verdict
//	17 NOTIFIED         taken    message
//	18 PONG                      cookie
//	19 RAISED                    epoch          key
//	20 GONE                                     lane id
//	21 BYE
//	22 SERVED
//
// Behind its handshake a protected lane has chunks around all of this, see chunk.go. Version 2 has no such lanes.
//
// A lane begins with HELLO. Its greeting is: magic "TENTLANE", version uint32, generation of the rail uint32, the
// public id of the attachment (16 bytes), a nonce (32 bytes), index of the rail uint16, class group uint8, index of the
// lane uint8, 4 bytes of 0. The responder answers CHALLENGE or closes the connection, and the initiator PROOF, with
// its first frames right behind it. greeting.go has the proofs.
//
// ACK is cumulative: every WRITE up to its number has landed or was refused. A refusal is a NACK, sent when the
// payload has been discarded, so the lane lives on. DATA brings the bytes of one slice in order, and of several
// slices in any order. SERVED follows each DATA frame and completes the READs that are whole by then: the responder
// has found all of their bytes. Where memory was gone it sends zeros, and a NACK before SERVED. With "checked" (bit 0
// of flag) each record of WRITE and DATA ends with the CRC-32C of its bytes, and a READ asks for that; without, the
// word is 0. The class of a READ is 0, 1 or 2, and the responder serves 0 first.
//
// WITHDRAW asks for the verdicts of slices, which become void if they have not landed; CONFIRM answers. FENCE asks
// for the end of another lane; FENCED answers with the highest number that has landed and the exceptions below it.
// Both may come on any lane of the attachment, and over the control plane (control.go). GONE names lanes that have lost
// the interface or address of their responder's end. LEAVE and BYE are goodbyes: the responder forgets the attachment,
// the initiator takes the peer's transport for closed.
//
// EPOCH is the transport.Epoch of the slices behind it, 0 before the first; tasks that begin from then on carry it, or
// a later one. RAISED announces an epoch, and a region that was fenced in it; the answer is an EPOCH.

// Sizes and limits.
const (
	headerBytes     = 16
	recordBytes     = 24
	recordsMax      = 256     // one frame; with headers less than the 1024 iovecs of a system call
	frameBytes      = 1 << 20 // a frame takes no further slice beyond this
	framePayloadMax = frameBytes + sliceMax
	notifyMax       = 68 << 10
	classCount      = kit.Classes
	version         = 3
	versionFirst    = 2                         // without protected lanes
	magic           = 0x45_4e_41_4c_54_4e_45_54 // "TENTLANE"
)

// kind is the type of a frame. The initiator of a lane sends the first group, the responder the second.
type kind uint8

const (
	kindHello kind = iota + 1
	kindProof
	kindWrite
	kindRead
	kindWithdraw
	kindFence
	kindNotify
	kindPing
	kindEpoch
	kindLeave
	kindChallenge
	kindAck
	kindNack
	kindData
	kindConfirm
	kindFenced
	kindNotified
	kindPong
	kindRaised
	kindGone
	kindBye
	kindServed
	kindEnd
)

var kindNames = [...]string{kindHello: "hello", kindProof: "proof", kindWrite: "write", kindRead: "read",
	kindWithdraw: "withdraw", kindFence: "fence", kindNotify: "notify", kindPing: "ping", kindEpoch: "epoch",
	kindLeave: "leave", kindChallenge: "challenge", kindAck: "ack", kindNack: "nack", kindData: "data",
	kindConfirm: "confirm", kindFenced: "fenced", kindNotified: "notified", kindPong: "pong", kindRaised: "raised",
	kindGone: "gone", kindBye: "bye", kindServed: "served"}

func (k kind) String() string {
	if k == 0 || k >= kindEnd {
		return fmt.Sprintf("kind %d", uint8(k))
	}
	return kindNames[k]
}

// Verdicts about a slice; any other value is the errs.Code of a refusal.
const (
	verdictApplied = 0         // its bytes have landed
	verdictVoid    = 1 << 16   // they have not, and never will
	verdictFenced  = 1<<16 + 1 // the task began before a fence of the region
)

type header struct {
	kind   kind
	flag   uint8
	count  uint16 // records
	length uint32 // payload bytes behind the records
	seq    uint64
}

// record is one entry of a frame's table. The kind of the frame gives its fields their meaning.
type record struct {
	id         uint64 // region key, slice number or lane id
	offset     uint64 // or epoch
	length     uint32 // or code, or verdict
	classOrSum uint32 // the class of a READ; the CRC-32C of payload in a checked frame; else 0
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
	binary.LittleEndian.PutUint32(b[20:], r.classOrSum)
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

// check returns the reason why a header may not arrive at a lane's end, before anything of it is used. A handshake has
// one kind of frame that is due; it is 0 on an open lane. The payload of WRITE and DATA must be the sum of their
// records, which is checked with the table.
func (h header) check(serving bool, due kind) error {
	if h.kind == 0 || h.kind >= kindEnd || serving != (h.kind < kindChallenge) {
		return fmt.Errorf("%v does not belong here", h.kind)
	}
	if shake := h.kind == kindHello || h.kind == kindProof || h.kind == kindChallenge; shake != (due != 0) ||
		shake && h.kind != due {
		return fmt.Errorf("%v out of order", h.kind)
	}
	least, most, payload := 0, 0, uint32(0)
	switch h.kind {
	case kindHello:
		payload = greetingSize
	case kindProof:
		payload = macSize
	case kindWrite, kindData:
		least, most, payload = 1, recordsMax, framePayloadMax
	case kindRead, kindWithdraw, kindNack, kindConfirm, kindFenced, kindGone:
		least, most = 1, recordsMax
	case kindRaised:
		most = 1
	case kindNotify:
		payload = notifyMax
	}
	if n := int(h.count); n < least || n > most {
		return fmt.Errorf("%v with %d records", h.kind, n)
	}
	if h.length > payload || (due != 0 && h.length != payload) {
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
