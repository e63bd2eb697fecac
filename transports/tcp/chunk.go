package tcp

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"golang.org/x/crypto/chacha20poly1305"
	"golang.org/x/sys/cpu"

	"github.com/tent-engine/tent/gocore/transport"
)

// A protected lane cuts each direction of its stream, behind PROOF and CHALLENGE, into chunks, not by frames. That is
// STREAM (Hoang, Reyhanitabar, Rogaway and Vizár, 2015), without the mark of the last chunk: the end of a lane promises
// nothing.
//
//	number of bytes  uint32, 1 to chunkMost
//	bytes            as they are (sign), or encrypted
//	tag              16 bytes, over the number and the bytes
//
// The tag is that of an AEAD (RFC 5116) with a key of this lane and direction alone. Its nonce is the number of the
// chunk, which nobody sends. So a chunk is taken only in its place: one that was changed, left out, repeated, reflected
// or taken from another lane fails, and the lane ends. Under sign all of the chunk is additional data.
//
// The keys come from the attachment's secret and the transcript of the handshake by HKDF (RFC 5869):
//
//	traffic key 0 = HKDF(secret, salt: SHA-256(transcript), info: "tent lane", role, protection, suite)
//	traffic key n+1, cipher key n = HKDF-Expand(traffic key n, "next"), HKDF-Expand(traffic key n, "key")
//
// A key serves for chunksPerKey chunks, at most 64 GiB, and older ones cannot be found from it. That is far below the
// bounds of AES-GCM (RFC 8446, 5.5: 2^34.5 blocks for an advantage of 2^-57).

const (
	chunkHead    = 4
	chunkMost    = 64 << 10
	chunkTag     = 16
	chunkRoom    = chunkHead + chunkMost + chunkTag
	chunksPerKey = 1 << 20
)

// cipherSuite is the cipher of a lane.
type cipherSuite uint8

const (
	suiteNone   cipherSuite = iota
	suiteAES                // AES-128-GCM (NIST SP 800-38D); under sign it computes no more than its GMAC
	suiteChaCha             // ChaCha20-Poly1305 (RFC 8439), where a processor has no instructions for AES
	suiteCount
)

var suiteNames = [suiteCount]string{"none", "AES-128-GCM", "ChaCha20-Poly1305"}

// ownSuite is the one that is fast here.
func ownSuite() cipherSuite {
	if (cpu.X86.HasAES && cpu.X86.HasPCLMULQDQ) || (cpu.ARM64.HasAES && cpu.ARM64.HasPMULL) {
		return suiteAES
	}
	return suiteChaCha
}

// shield is the protection of a link's lanes. Both ends agreed on it inside the control plane.
type shield struct {
	protection transport.Protection
	suite      cipherSuite // suiteNone where nothing is sealed
}

func (s shield) String() string {
	switch s.protection {
	case transport.Sign:
		return "signed by " + suiteNames[s.suite]
	case transport.Encrypt:
		return "encrypted by " + suiteNames[s.suite]
	}
	return "not sealed"
}

// seals reports whether lanes carry chunks.
func (s shield) seals() bool { return s.protection > transport.Auth }

// check returns why a shield that a peer named cannot be used.
func (s shield) check() error {
	if !s.protection.Known() || s.suite >= suiteCount || s.seals() == (s.suite == suiteNone) {
		return fmt.Errorf("protection %d with cipher %d is unknown", s.protection, s.suite)
	}
	return nil
}

// agree returns the shield for two ends: the stricter protection, and AES where it is fast at both.
func agree(own, peer transport.Protection, ours, theirs cipherSuite) shield {
	s := shield{protection: max(own, peer)}
	if s.seals() {
		s.suite = max(ours, theirs)
	}
	return s
}

// sealing is one direction of a protected lane at one of its ends: the key, and the number of the next chunk.
type sealing struct {
	shield
	aead    cipher.AEAD
	traffic [sha256.Size]byte // the key of which this key and the next one are made
	number  uint64
	nonce   [chacha20poly1305.NonceSize]byte // here, where a call by interface does not allocate it
}

// sealing makes the first key of the chunks that an end of a lane sends.
func (t *transcript) sealing(k *secret, s shield, by role) sealing {
	d := sealing{shield: s}
	h := sha256.New()
	for _, part := range [...][]byte{t.hello, t.nonce[:], t.initiator[:], t.responder[:]} {
		_, _ = h.Write(part)
	}
	salted := must(hkdf.Extract(sha256.New, k[:], h.Sum(nil)))
	info := "tent lane " + string(by) + string([]byte{byte(s.protection), byte(s.suite)})
	copy(d.traffic[:], must(hkdf.Expand(sha256.New, salted, info, len(d.traffic))))
	d.rekey()
	return d
}

// must is for calls that fail for wrong lengths alone, which are constants here.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// rekey makes the cipher of the traffic key, and the next traffic key in its place.
func (d *sealing) rekey() {
	switch d.suite {
	case suiteAES:
		key := must(hkdf.Expand(sha256.New, d.traffic[:], "key", 16))
		d.aead = must(cipher.NewGCM(must(aes.NewCipher(key))))
	default:
		key := must(hkdf.Expand(sha256.New, d.traffic[:], "key", chacha20poly1305.KeySize))
		d.aead = must(chacha20poly1305.New(key))
	}
	copy(d.traffic[:], must(hkdf.Expand(sha256.New, d.traffic[:], "next", len(d.traffic))))
}

// next goes on to the next number, and to the next key where it is due.
func (d *sealing) next() {
	d.number++
	binary.LittleEndian.PutUint64(d.nonce[:], d.number)
	if d.number%chunksPerKey == 0 {
		d.rekey()
	}
}

// seal makes a chunk of n bytes that stand in b behind the room for its head, and returns the chunk's size. b has room
// for chunkRoom-chunkMost bytes more.
func (d *sealing) seal(b []byte, n int) int {
	end := chunkHead + n
	if d.protection == transport.Encrypt {
		return d.encrypt(b, b[chunkHead:end])
	}
	binary.LittleEndian.PutUint32(b, uint32(n))
	d.aead.Seal(b[end:end], d.nonce[:], nil, b[:end])
	d.next()
	return end + chunkTag
}

// encrypt makes a chunk of bytes that stand elsewhere, or behind the room for its head. They may change meanwhile.
// After a panic that their memory has caused, it may be called again with others: nothing of the first chunk is sent.
func (d *sealing) encrypt(b, plain []byte) int {
	binary.LittleEndian.PutUint32(b, uint32(len(plain)))
	d.aead.Seal(b[chunkHead:chunkHead], d.nonce[:], plain, b[:chunkHead])
	d.next()
	return chunkHead + len(plain) + chunkTag
}

// sealed returns the size of the chunk that b begins with, 0 if more bytes are needed to know it. It is false for
// a length that no chunk has.
func sealed(b []byte) (size int, ok bool) {
	if len(b) < chunkHead {
		return 0, true
	}
	n := binary.LittleEndian.Uint32(b)
	if n == 0 || n > chunkMost {
		return 0, false
	}
	return chunkHead + int(n) + chunkTag, true
}

// open checks a whole chunk and leaves its bytes where they were, decrypted. It is false for a chunk that the peer did
// not send at this place: its bytes are gone then.
func (d *sealing) open(chunk []byte) bool {
	end := len(chunk) - chunkTag
	var err error
	if d.protection == transport.Encrypt {
		_, err = d.aead.Open(chunk[chunkHead:chunkHead], d.nonce[:], chunk[chunkHead:], chunk[:chunkHead])
	} else {
		_, err = d.aead.Open(chunk[end:end], d.nonce[:], chunk[end:], chunk[:end])
	}
	if err != nil {
		return false
	}
	d.next()
	return true
}
