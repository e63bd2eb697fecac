package access

import (
	"crypto/rand"
	"encoding/binary"
	"errors"

	"github.com/tent-engine/tent/transports/host/manifest"
	"github.com/tent-engine/tent/transports/host/vm"
	"github.com/tent-engine/tent/transports/kit"
)

// Calls over the control plane. A request is the version of the transport, a kind, a token, and more by its kind.
const (
	CallHello   = 1 // initiator: its token for the link, its claim. Answer: a welcome, the same for the same link
	CallLeave   = 2 // initiator: the token it was given; it has left our memory alone for good. Answer: nothing
	CallGoodbye = 3 // owner: the initiator's token; the owner closes. Answer: nothing
	CallOwn     = 8 // from here on: the transport's own, of a peer with a grant; the token that it was given
)

// Token names one end of a link to the other end, and to nobody else.
type Token [16]byte

// NewToken returns a random token.
func NewToken() (t Token) {
	_, _ = rand.Read(t[:]) // never fails: crypto/rand ends the process instead
	return t
}

// welcome is the answer to a hello.
type welcome struct {
	token Token
	owner manifest.Claim
	page  vm.File
	word  int32 // the transport's own, of Config.Welcome
}

var errMessage = errors.New("message is malformed")

func appendFile(b []byte, f vm.File) []byte {
	b = binary.LittleEndian.AppendUint32(b, f.Fd)
	b = binary.LittleEndian.AppendUint64(b, f.Dev)
	return binary.LittleEndian.AppendUint64(b, f.Ino)
}

func appendClaim(b []byte, c manifest.Claim) []byte {
	b = binary.LittleEndian.AppendUint32(b, c.PID)
	return appendFile(binary.LittleEndian.AppendUint64(b, c.Started), c.File)
}

// Call makes a request.
func Call(version, kind byte, t Token) []byte { return append([]byte{version, kind}, t[:]...) }

// Hello makes a greeting.
func Hello(version byte, t Token, claim manifest.Claim) []byte {
	return appendClaim(Call(version, CallHello, t), claim)
}

func (w welcome) append(b []byte) []byte {
	b = appendFile(appendClaim(append(b, w.token[:]...), w.owner), w.page)
	return binary.LittleEndian.AppendUint32(b, uint32(w.word))
}

func readToken(r *kit.Reader) Token { return Token(r.Bytes(len(Token{}))) }

func readFile(r *kit.Reader) vm.File { return vm.File{Fd: r.U32(), Dev: r.U64(), Ino: r.U64()} }

func readClaim(r *kit.Reader) manifest.Claim {
	return manifest.Claim{PID: r.U32(), Started: r.U64(), File: readFile(r)}
}

func readWelcome(b []byte, version byte) (welcome, error) {
	r := kit.NewReader(b)
	if v := r.U8(); r.Short() || v != version {
		return welcome{}, errMessage
	}
	w := welcome{token: readToken(r), owner: readClaim(r), page: readFile(r), word: int32(r.U32())}
	if !r.Whole() {
		return welcome{}, errMessage
	}
	return w, nil
}
