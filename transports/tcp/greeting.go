package tcp

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"

	"github.com/tent-engine/tent/gocore/transport"
)

// A lane proves itself before it carries anything. Both ends know a secret, which the control plane gave to the
// initiator with its offer and which no lane ever carries:
//
//	initiator                                        responder
//	HELLO      attachment, nonce, lane     ────────▶ knows the attachment, and so the secret
//	checks     ◀──────── CHALLENGE      nonce, MAC("r", ...)
//	PROOF      MAC("i", ...), frames       ────────▶ checks, gives the lane its buffers
//
// The MAC is HMAC-SHA256 (RFC 2104) by the secret over one of two labels, the whole HELLO frame, the responder's nonce
// and the ids of both engines. The labels keep an answer from being reflected, the nonces keep it from being
// replayed, and a flipped bit of any field changes both answers. The secret ends with its attachment.

const (
	nonceSize     = 32
	macSize       = sha256.Size
	greetingSize  = 40 + nonceSize
	challengeSize = nonceSize + macSize
	helloSize     = headerBytes + greetingSize
)

type (
	attachmentID [16]byte // public: HELLO shows it
	secret       [32]byte
	nonce        [nonceSize]byte
	mac          [macSize]byte
)

// String keeps a secret out of logs and errors.
func (secret) String() string { return "secret" }

func newNonce() (n nonce) {
	_, _ = rand.Read(n[:]) // ends the process rather than fail
	return n
}

// greeting is the payload of HELLO.
type greeting struct {
	magic      uint64
	version    uint32
	generation uint32
	attachment attachmentID
	nonce      nonce
	rail       uint16
	group      uint8
	lane       uint8
}

func (g greeting) append(b []byte) []byte {
	n := len(b)
	b = binary.LittleEndian.AppendUint64(b, g.magic)
	b = binary.LittleEndian.AppendUint32(b, g.version)
	b = binary.LittleEndian.AppendUint32(b, g.generation)
	b = append(b, g.attachment[:]...)
	b = append(b, g.nonce[:]...)
	b = binary.LittleEndian.AppendUint16(b, g.rail)
	b = append(b, g.group, g.lane)
	return append(b, make([]byte, greetingSize-(len(b)-n))...)
}

func getGreeting(b []byte) greeting {
	_ = b[greetingSize-1]
	return greeting{magic: binary.LittleEndian.Uint64(b), version: binary.LittleEndian.Uint32(b[8:]),
		generation: binary.LittleEndian.Uint32(b[12:]), attachment: attachmentID(b[16:32]), nonce: nonce(b[32:64]),
		rail: binary.LittleEndian.Uint16(b[64:]), group: b[66], lane: b[67]}
}

// hello is the first frame of a lane.
func (g greeting) hello(lane uint64) []byte {
	return g.append(appendFrame(make([]byte, 0, helloSize), header{kind: kindHello, length: greetingSize, seq: lane}))
}

// role is the label of a MAC: of the end that makes it.
type role string

const (
	byResponder role = "r"
	byInitiator role = "i"
)

// transcript is the part of a handshake that both ends have seen. Its fields have fixed sizes, so no two
// have the same bytes.
type transcript struct {
	hello                []byte // the frame, with its header
	nonce                nonce  // the responder's
	initiator, responder transport.ID
}

func (t *transcript) sign(k *secret, by role) (m mac) {
	h := hmac.New(sha256.New, k[:])
	for _, part := range [...][]byte{[]byte(by), t.hello, t.nonce[:], t.initiator[:], t.responder[:]} {
		_, _ = h.Write(part) // a hash takes everything
	}
	h.Sum(m[:0])
	return m
}

// challenge is the responder's answer to a HELLO.
func (t *transcript) challenge(k *secret) []byte {
	m := t.sign(k, byResponder)
	b := appendFrame(make([]byte, 0, headerBytes+challengeSize), header{kind: kindChallenge, length: challengeSize})
	return append(append(b, t.nonce[:]...), m[:]...)
}

var errOtherPort = errors.New("it is not the peer's data port: it does not know the attachment's secret")

// answer checks a challenge, completes the transcript by it and returns the initiator's PROOF.
func (t *transcript) answer(k *secret, challenge []byte) ([]byte, error) {
	h := getHeader(challenge)
	if h.kind != kindChallenge || h.length != challengeSize || h.count != 0 {
		return nil, errOtherPort
	}
	t.nonce = nonce(challenge[headerBytes : headerBytes+nonceSize])
	if m := t.sign(k, byResponder); !hmac.Equal(m[:], challenge[headerBytes+nonceSize:]) {
		return nil, errOtherPort
	}
	m := t.sign(k, byInitiator)
	b := appendFrame(make([]byte, 0, headerBytes+macSize), header{kind: kindProof, length: macSize})
	return append(b, m[:]...), nil
}
