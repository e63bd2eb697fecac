package transport

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
)

// ID names one engine: no other one ever has it, and a process that starts again has another. It is comparable, and
// the key of every table of peers. The zero ID means "any" or "unknown".
type ID [16]byte

// NewID returns a random ID.
func NewID() (id ID) {
	_, _ = rand.Read(id[:]) // never fails: crypto/rand ends the process instead
	return id
}

// NumberedID returns the ID of a number, for tests and simulations that need the same ones each time.
func NumberedID(n uint64) (id ID) {
	binary.BigEndian.PutUint64(id[8:], n)
	return id
}

// IsZero reports the ID of nobody.
func (i ID) IsZero() bool { return i == ID{} }

// String returns 32 hexadecimal digits.
func (i ID) String() string { return hex.EncodeToString(i[:]) }
