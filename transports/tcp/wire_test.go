package tcp

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

func TestFramesAndGreetingsReadBackAsWritten(t *testing.T) {
	h := header{kind: kindWrite, flag: 3, count: 2, length: 1 << 20, seq: 1 << 50}
	b := appendFrame(nil, h, record{1 << 60, 5, 6, 7}, record{8, 1 << 62, 10, 11})
	require.Len(t, b, headerBytes+2*recordBytes)
	require.Equal(t, h, getHeader(b))
	require.Equal(t, record{1 << 60, 5, 6, 7}, getRecord(b[headerBytes:]))
	require.Equal(t, record{8, 1 << 62, 10, 11}, getRecord(b[headerBytes+recordBytes:]))
	g := greeting{magic, version, 7, attachmentID{1, 15: 2}, nonce{3, 31: 4}, 9, 1, 3}
	require.Len(t, g.append(nil), greetingSize)
	require.Equal(t, g, getGreeting(g.append(nil)))
}

func TestHeadersAreBoundedBeforeUse(t *testing.T) {
	for _, c := range []struct {
		name    string
		h       header
		serving bool
		due     kind
		good    bool
	}{
		{"hello first", header{kind: kindHello, length: greetingSize}, true, kindHello, true},
		{"hello twice", header{kind: kindHello, length: greetingSize}, true, 0, false},
		{"hello of another size", header{kind: kindHello, length: greetingSize + 1}, true, kindHello, false},
		{"write before hello", header{kind: kindWrite, count: 1, length: 1}, true, kindProof, false},
		{"hello before proof", header{kind: kindHello, length: greetingSize}, true, kindProof, false},
		{"proof", header{kind: kindProof, length: macSize}, true, kindProof, true},
		{"proof that is cut short", header{kind: kindProof, length: macSize - 1}, true, kindProof, false},
		{"proof of nothing", header{kind: kindProof, length: macSize}, true, kindHello, false},
		{"challenge on an open lane", header{kind: kindChallenge, length: challengeSize}, false, 0, false},
		{"write", header{kind: kindWrite, count: recordsMax, length: framePayloadMax}, true, 0, true},
		{"write without slices", header{kind: kindWrite}, true, 0, false},
		{"write with too many slices", header{kind: kindWrite, count: recordsMax + 1}, true, 0, false},
		{"write with too many bytes", header{kind: kindWrite, count: 1, length: framePayloadMax + 1}, true, 0,
			false},
		{"read with payload", header{kind: kindRead, count: 1, length: 1}, true, 0, false},
		{"notification too long", header{kind: kindNotify, length: notifyMax + 1}, true, 0, false},
		{"ack with records", header{kind: kindAck, count: 1}, false, 0, false},
		{"ack to a responder", header{kind: kindAck}, true, 0, false},
		{"write to an initiator", header{kind: kindWrite, count: 1, length: 1}, false, 0, false},
		{"fenced without its number", header{kind: kindFenced}, false, 0, false},
		{"no kind", header{}, true, 0, false},
		{"unknown kind", header{kind: kindEnd}, false, 0, false},
	} {
		require.Equal(t, c.good, c.h.check(c.serving, c.due) == nil, c.name)
	}
	_, ok := sumLengths([]record{{length: 1}, {length: 0}}, 10)
	require.False(t, ok, "a slice of no bytes")
	_, ok = sumLengths([]record{{length: 11}}, 10)
	require.False(t, ok, "a slice beyond the limit")
}

func TestOffersReadBackAsWritten(t *testing.T) {
	e := testOffer(t)
	r := kit.NewReader(e.append(beginAnswer(version, transport.NumberedID(5)), version))
	require.EqualValues(t, version, r.U8())
	got, err := readOffer(r, version, r.ID())
	require.NoError(t, err)
	require.Equal(t, e, got)
	full := e.append(nil, version)
	for n := range full {
		_, err := readOffer(kit.NewReader(full[:n]), version, transport.NumberedID(5))
		require.Error(t, err, "cut off at %d", n)
	}
}

// TestTheDocumentedKindsAreTheKinds compares the table above the constants with them.
func TestTheDocumentedKindsAreTheKinds(t *testing.T) {
	text, err := os.ReadFile("wire.go")
	require.NoError(t, err)
	rows := regexp.MustCompile(`(?m)^//\t *(\d+) ([A-Z]+)\b`).FindAllStringSubmatch(string(text), -1)
	require.Len(t, rows, int(kindEnd)-1)
	for i, row := range rows {
		number, err := strconv.Atoi(row[1])
		require.NoError(t, err)
		require.Equal(t, i+1, number)
		require.Equal(t, kind(number).String(), strings.ToLower(row[2]))
	}
}
