package tcp

import (
	"bytes"
	"context"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// proven completes a handshake with the visitor's secret and returns its bytes.
func (e *endpoint) proven(t testing.TB, o offer, lane uint64) (c net.Conn, hello, proof []byte) {
	c, seen := e.call(t, o, lane, 0)
	proof, err := seen.answer(&o.secret, readChallenge(t, c))
	require.NoError(t, err)
	_, err = c.Write(proof)
	require.NoError(t, err)
	requireOpen(t, c)
	return c, seen.hello, proof
}

// requireOpen gets an answer from a lane.
func requireOpen(t testing.TB, c net.Conn) {
	t.Helper()
	_, err := c.Write(appendFrame(nil, header{kind: kindPing, seq: 9}))
	require.NoError(t, err)
	b := make([]byte, headerBytes)
	_, err = io.ReadFull(c, b)
	require.NoError(t, err)
	require.Equal(t, header{kind: kindPong, seq: 9}, getHeader(b))
}

// field is a part of a message, up to the byte where the next one begins.
type field struct {
	name string
	end  int
}

// The fields of the header of each message, as header.put has them. Those in brackets mean nothing in a CHALLENGE and
// in a PROOF.
var headerFields = []field{{"kind", 1}, {"(flag)", 2}, {"count", 4}, {"length", 8}, {"(number)", headerBytes}}

// flipEach flips each bit of each field of a message, a test for each field, which cover it whole.
func flipEach(t *testing.T, message string, size int, fields []field, reach func(t *testing.T, bit int)) {
	t.Helper()
	require.Equal(t, size, fields[len(fields)-1].end)
	begin := 0
	for _, f := range fields {
		if !strings.HasPrefix(f.name, "(") || message == "HELLO" {
			t.Run(message+" "+f.name, func(t *testing.T) {
				for bit := 8 * begin; bit < 8*f.end; bit++ {
					reach(t, bit)
				}
			})
		}
		begin = f.end
	}
}

func flipped(message []byte, bit int) []byte {
	b := bytes.Clone(message)
	b[bit/8] ^= 1 << (bit % 8)
	return b
}

// TestEveryBitOfAHandshakeCounts flips each bit of each message on its way. The end that it reaches closes the
// connection, or its answer does not convince the other end.
func TestEveryBitOfAHandshakeCounts(t *testing.T) {
	e := newTestEndpoint(t, Settings{})
	o := e.offerTo(t, visitor)
	number := uint64(0)
	fresh := func() *transcript {
		number++
		g := greeting{magic: magic, version: version, attachment: o.attachment, nonce: newNonce()}
		return &transcript{hello: g.hello(number), initiator: visitor.ID, responder: o.owner}
	}
	within := func(fields ...field) []field { return append(slices.Clone(headerFields), fields...) }
	flipEach(t, "HELLO", helloSize, within(field{"magic", 24}, field{"version", 28}, field{"generation", 32},
		field{"attachment", 48}, field{"nonce", 80}, field{"rail", 82}, field{"group", 83}, field{"lane", 84},
		field{"rest", helloSize}), func(t *testing.T, bit int) {
		seen := fresh()
		c := e.stranger(t)
		_, err := c.Write(flipped(seen.hello, bit))
		require.NoError(t, err)
		_ = c.(*net.TCPConn).CloseWrite() // a header that announces more must not wait for it
		b := make([]byte, headerBytes+challengeSize)
		if _, err = io.ReadFull(c, b); err == nil {
			_, err = seen.answer(&o.secret, b)
		}
		require.Error(t, err, "bit %d", bit)
		require.NoError(t, c.Close())
	})
	seen := fresh()
	challenge := (&transcript{hello: seen.hello, nonce: newNonce(), initiator: visitor.ID,
		responder: o.owner}).challenge(&o.secret)
	_, err := seen.answer(&o.secret, challenge)
	require.NoError(t, err)
	flipEach(t, "CHALLENGE", len(challenge), within(field{"nonce", headerBytes + nonceSize},
		field{"MAC", headerBytes + challengeSize}), func(t *testing.T, bit int) {
		_, err := seen.answer(&o.secret, flipped(challenge, bit))
		require.Error(t, err, "bit %d", bit)
	})
	before := e.refused(transport.RefusedProof)
	flipEach(t, "PROOF", headerBytes+macSize, within(field{"MAC", headerBytes + macSize}), func(t *testing.T, bit int) {
		c, seen := e.call(t, o, uint64(1<<20+bit), 0)
		proof, err := seen.answer(&o.secret, readChallenge(t, c))
		require.NoError(t, err)
		_, err = c.Write(flipped(proof, bit))
		require.NoError(t, err)
		requireClosed(t, c)
		require.NoError(t, c.Close())
	})
	require.GreaterOrEqual(t, e.refused(transport.RefusedProof)-before, int64(8*macSize))
	c, _, _ := e.proven(t, o, 1<<30)
	requireOpen(t, c)
}

// TestALaneThatWasHeardCannotBeSaidAgain plays the part of a listener on the path. It knows every byte of a handshake,
// and neither the secret nor a way to use those bytes once more.
func TestALaneThatWasHeardCannotBeSaidAgain(t *testing.T) {
	e := newTestEndpoint(t, Settings{})
	o := e.offerTo(t, visitor)
	other := e.offerTo(t, transport.Peer{Address: "another", ID: transport.NumberedID(78)})
	_, hello, proof := e.proven(t, o, 1)
	require.False(t, bytes.Contains(slices.Concat(hello, proof), o.secret[:]), "a secret is on the wire")
	renamed := func(lane uint64, id attachmentID) []byte {
		g := getGreeting(hello[headerBytes:])
		g.attachment = id
		return g.hello(lane)
	}
	for name, said := range map[string][]byte{
		"on another connection": hello,
		"as another lane":       renamed(2, o.attachment),
		"for another peer":      renamed(1, other.attachment),
	} {
		t.Run(name, func(t *testing.T) {
			c := e.stranger(t)
			_, err := c.Write(slices.Concat(said, proof))
			require.NoError(t, err)
			_, err = io.Copy(io.Discard, c)
			var late net.Error
			require.False(t, errorsAs(err, &late) && late.Timeout())
		})
	}
	_, err := (&transcript{}).answer(&o.secret, make([]byte, headerBytes+challengeSize))
	require.Error(t, err)
}

// TestAChallengeIsNoProof reflects the answers of the responder. One comes on the same connection, one on a second
// connection with the responder's own nonce, so that it signs the same values.
func TestAChallengeIsNoProof(t *testing.T) {
	e := newTestEndpoint(t, Settings{})
	o := e.offerTo(t, visitor)
	first, _ := e.call(t, o, 1, 0)
	challenge := readChallenge(t, first)
	g := greeting{magic: magic, version: version, attachment: o.attachment,
		nonce: nonce(challenge[headerBytes : headerBytes+nonceSize])}
	second := e.stranger(t)
	_, err := second.Write(g.hello(1))
	require.NoError(t, err)
	for c, mac := range map[net.Conn][]byte{
		second: readChallenge(t, second)[headerBytes+nonceSize:], first: challenge[headerBytes+nonceSize:],
	} {
		_, err := c.Write(append(appendFrame(nil, header{kind: kindProof, length: macSize}), mac...))
		require.NoError(t, err)
		requireClosed(t, c)
	}
}

func TestAProofThatIsLateOpensNothing(t *testing.T) {
	e := newTestEndpoint(t, Settings{Greeting: 50 * time.Millisecond})
	o := e.offerTo(t, visitor)
	c, seen := e.call(t, o, 1, 0)
	proof, err := seen.answer(&o.secret, readChallenge(t, c))
	require.NoError(t, err)
	requireClosed(t, c)
	_, _ = c.Write(proof)
	require.EqualValues(t, 1, e.refused(transport.RefusedSilence))
	require.Zero(t, e.refused(transport.RefusedProof))
}

// TestASecretEndsWithItsAttachment: after LEAVE no lane opens with it, also not one that has begun before.
func TestASecretEndsWithItsAttachment(t *testing.T) {
	e := newTestEndpoint(t, Settings{})
	o := e.offerTo(t, visitor)
	begun, seen := e.call(t, o, 1, 0)
	proof, err := seen.answer(&o.secret, readChallenge(t, begun))
	require.NoError(t, err)
	leave := appendFrame(append([]byte{version, callAsk}, o.attachment[:]...), header{kind: kindLeave})
	stranger := transport.Peer{Address: visitor.Address, ID: transport.NumberedID(1)}
	_, err = e.tr.Serve(context.Background(), stranger, leave)
	require.NoError(t, err)
	require.NotNil(t, e.tr.(*Transport).attachments.lookUp(o.attachment, visitor.ID), "another peer ended it")
	_, err = e.tr.Serve(context.Background(), visitor, leave)
	require.NoError(t, err)
	_, _ = begun.Write(proof)
	requireClosed(t, begun)
	late, _ := e.call(t, o, 2, 0)
	requireClosed(t, late)
}

// TestAFenceFindsALaneBeforeItsProof: the initiator has its challenge, counts the lane as open and sends frames right
// behind the proof. When it gives the lane up, the responder may have read neither.
func TestAFenceFindsALaneBeforeItsProof(t *testing.T) {
	e := newTestEndpoint(t, Settings{})
	tr := e.tr.(*Transport)
	memory := mapping(t, 4096)
	before := bytes.Clone(memory)
	key, _, err := tr.Register(context.Background(), regionOf(memory))
	require.NoError(t, err)
	o := e.offerTo(t, visitor)
	a := tr.attachments.lookUp(o.attachment, visitor.ID)
	c, seen := e.call(t, o, 1, 0)
	proof, err := seen.answer(&o.secret, readChallenge(t, c))
	require.NoError(t, err)
	a.withdraw(1, []record{{id: 1}}, func(header, []record) { t.Error("a lane that may yet open answered a WITHDRAW") })
	var verdict []record
	a.fence(1, func(_ header, table []record) { verdict = table })
	require.Equal(t, []record{{}}, verdict, "nothing has landed")
	_, _ = c.Write(append(append(proof, appendFrame(nil, header{kind: kindWrite, length: 8, seq: 1},
		record{id: uint64(key), length: 8})...), "too late"...))
	requireClosed(t, c)
	require.True(t, bytes.Equal(before, memory), "bytes landed on a lane that was fenced")
}

// TestALaneCostsLittleBeforeItsProof also fences a region meanwhile: the news wait for the proof.
func TestALaneCostsLittleBeforeItsProof(t *testing.T) {
	e := newTestEndpoint(t, Settings{})
	tr := e.tr.(*Transport)
	key, _, err := tr.Register(context.Background(), regionOf(mapping(t, 4096)))
	require.NoError(t, err)
	o := e.offerTo(t, visitor)
	c, seen := e.call(t, o, 1, 0)
	proof, err := seen.answer(&o.secret, readChallenge(t, c))
	require.NoError(t, err)
	lanes := tr.attachments.lookUp(o.attachment, visitor.ID).allLanes()
	require.Len(t, lanes, 1)
	lanes[0].readMu.Lock()
	lanes[0].writeMu.Lock()
	require.LessOrEqual(t, cap(lanes[0].rx.staging), 256)
	require.Nil(t, lanes[0].rx.iov)
	require.Nil(t, lanes[0].tx.writeBuffers)
	lanes[0].writeMu.Unlock()
	lanes[0].readMu.Unlock()
	require.NoError(t, tr.Revoke(context.Background(), key, nil, 1))
	_, err = c.Write(append(proof, appendFrame(nil, header{kind: kindWrite, length: 4, seq: 1},
		record{id: uint64(key), length: 4})...))
	require.NoError(t, err)
	_, err = c.Write([]byte("late"))
	require.NoError(t, err)
	var kinds []kind
	for !slices.Contains(kinds, kindNack) { // a slice of an epoch before the fence
		h := readHeader(t, c)
		_, err := io.CopyN(io.Discard, c, int64(h.count)*recordBytes)
		require.NoError(t, err)
		kinds = append(kinds, h.kind)
	}
	require.Equal(t, kindRaised, kinds[0])
}

// TestALaneThatComesAfterAFenceHearsOfIt before all else, and with each refusal: its initiator may have the description
// of before the fence.
func TestALaneThatComesAfterAFenceHearsOfIt(t *testing.T) {
	const epoch = 7
	e := newTestEndpoint(t, Settings{})
	tr := e.tr.(*Transport)
	key, _, err := tr.Register(t.Context(), regionOf(mapping(t, 4096)))
	require.NoError(t, err)
	require.NoError(t, tr.Revoke(t.Context(), key, nil, epoch))
	o := e.offerTo(t, visitor)
	c, seen := e.call(t, o, 1, 0)
	proof, err := seen.answer(&o.secret, readChallenge(t, c))
	require.NoError(t, err)
	_, err = c.Write(append(append(proof, appendFrame(nil, header{kind: kindWrite, length: 4, seq: 1},
		record{id: uint64(key), length: 4})...), "late"...))
	require.NoError(t, err)
	require.Equal(t, header{kind: kindRaised, seq: epoch}, readHeader(t, c))
	require.Equal(t, header{kind: kindNack, count: 1}, readHeader(t, c))
	require.Equal(t, record{id: 1, offset: epoch, length: verdictFenced}, readRecord(t, c))
}

// FuzzHello feeds any bytes to a connection that has said nothing. It never opens, and stays cheap.
func FuzzHello(f *testing.F) {
	e := newTestEndpoint(f, Settings{Workers: 1})
	tr := e.tr.(*Transport)
	a, refused := tr.attachments.issue(visitor, version, shield{})
	require.Nil(f, refused)
	hello := greeting{magic: magic, version: version, attachment: a.id}.hello(1)
	f.Add(hello)
	f.Add(greeting{magic: magic, version: version + 1}.hello(1))
	f.Add(append(appendFrame(bytes.Clone(hello), header{kind: kindProof, length: macSize}), make([]byte, macSize)...))
	f.Add(append(bytes.Clone(hello), hello...))
	f.Add(appendFrame(nil, header{kind: kindWrite, length: 4, seq: 1}, record{length: 4}))
	var one sync.Mutex
	f.Fuzz(func(t *testing.T, stream []byte) {
		one.Lock()
		defer one.Unlock()
		if len(stream) > 60<<10 {
			return
		}
		if i := bytes.Index(stream, []byte("TENTLANE")); i >= 0 && i+32 <= len(stream) {
			copy(stream[i+16:], a.id[:]) // the fuzzer does not find the id of an attachment by chance
		}
		l := strangerLane(t, tr)
		_, err := unix.Write(l.other, stream)
		require.NoError(t, err)
		w := tr.newWorker()
		l.readMu.Lock()
		for n, open := 1, true; n > 0 && open; {
			n, open = l.drain(w, 1<<20)
		}
		require.Nil(t, l.attachment.Load())
		require.Nil(t, l.rx.iov)
		l.readMu.Unlock()
		l.broke(kit.Closed("test"))
		l.closeLane()
		_ = unix.Close(l.other)
		require.Empty(t, a.allLanes())
	})
}

// TestNothingLandsThatWaitedBehindAProof: a process that slept between CHALLENGE and PROOF holds no lease on the frames
// that came meanwhile. Their sender may have given them up.
func TestNothingLandsThatWaitedBehindAProof(t *testing.T) {
	const lease = 50 * time.Millisecond
	e := newTestEndpoint(t, Settings{Lease: lease})
	tr := e.tr.(*Transport)
	memory := mapping(t, 4096)
	before := bytes.Clone(memory)
	key, _, err := tr.Register(context.Background(), regionOf(memory))
	require.NoError(t, err)
	o := e.offerTo(t, visitor)
	c, seen := e.call(t, o, 1, 0)
	proof, err := seen.answer(&o.secret, readChallenge(t, c))
	require.NoError(t, err)
	thaw := hold(tr, isResponder)
	_, err = c.Write(append(append(proof, appendFrame(nil, header{kind: kindWrite, length: 8, seq: 1},
		record{id: uint64(key), length: 8})...), "too late"...))
	require.NoError(t, err)
	<-time.After(3 * lease) // the bytes must have waited for longer than the lease
	thaw()
	requireClosed(t, c)
	require.True(t, bytes.Equal(before, memory), "bytes landed that waited for longer than the lease")
}
