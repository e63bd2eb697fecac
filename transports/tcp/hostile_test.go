package tcp

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// stranger opens a connection to an endpoint's data port.
func (e *endpoint) stranger(t testing.TB) net.Conn {
	c, err := net.Dial("tcp", e.tr.(*Transport).listeners[0].addr.String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(5*time.Second)))
	return c
}

func requireClosed(t testing.TB, c net.Conn) {
	t.Helper()
	_, err := c.Read(make([]byte, 1))
	require.Error(t, err)
	var late net.Error
	require.False(t, errorsAs(err, &late) && late.Timeout(), "connection is still open")
}

func errorsAs(err error, target *net.Error) bool {
	e, ok := err.(net.Error)
	*target = e
	return ok
}

func newTestEndpoint(t testing.TB, s Settings) *endpoint {
	e, err := newEndpoint(s)
	require.NoError(t, err)
	t.Cleanup(func() { e.close(t) })
	return e
}

func TestStrangersAreTurnedAway(t *testing.T) {
	e := newTestEndpoint(t, Settings{Greeting: 100 * time.Millisecond})
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	hello := appendFrame(nil, header{kind: kindHello, length: greetingSize, seq: 1})
	for name, message := range map[string][]byte{
		"nothing":         nil,
		"http":            []byte("GET / HTTP/1.1\r\n\r\n"),
		"cut off":         hello,
		"wrong magic":     greeting{version: version}.hello(1),
		"no attachment":   greeting{magic: magic, version: version, attachment: attachmentID{1}}.hello(1),
		"proof at once":   append(appendFrame(nil, header{kind: kindProof, length: macSize}), make([]byte, macSize)...),
		"write at once":   appendFrame(nil, header{kind: kindWrite, length: 1 << 20, seq: 1}, record{length: 1 << 20}),
		"a length of 4 G": appendFrame(nil, header{kind: kindHello, length: 1<<32 - 1}),
	} {
		c := e.stranger(t)
		_, _ = c.Write(message)
		requireClosed(t, c)
		t.Log(name)
	}
	for range 50 {
		noise := make([]byte, 1+r.IntN(4096))
		for i := range noise {
			noise[i] = byte(r.Uint32())
		}
		c := e.stranger(t)
		_, _ = c.Write(noise)
		requireClosed(t, c)
	}
}

// plainHello asks for lanes that are not protected.
var plainHello = []byte{version, callHello, byte(transport.Auth), byte(suiteAES)}

// visitor is a peer without a transport: it makes its side of a handshake by hand.
var visitor = transport.Peer{Address: "visitor", ID: transport.NumberedID(77)}

// offerTo asks an endpoint for an offer, in the name of a peer.
func (e *endpoint) offerTo(t testing.TB, from transport.Peer) offer {
	answer, err := e.tr.Serve(context.Background(), from, plainHello)
	require.NoError(t, err)
	r := kit.NewReader(answer)
	r.U8()
	o, err := readOffer(r, version, r.ID())
	require.NoError(t, err)
	return o
}

// call opens a connection that says HELLO for a lane of the visitor.
func (e *endpoint) call(t testing.TB, o offer, lane uint64, group uint8) (net.Conn, *transcript) {
	g := greeting{magic: magic, version: version, attachment: o.attachment, nonce: newNonce(), group: group}
	seen := &transcript{hello: g.hello(lane), initiator: visitor.ID, responder: o.owner}
	c := e.stranger(t)
	_, err := c.Write(seen.hello)
	require.NoError(t, err)
	return c, seen
}

func readChallenge(t testing.TB, c net.Conn) []byte {
	b := make([]byte, headerBytes+challengeSize)
	_, err := io.ReadFull(c, b)
	require.NoError(t, err)
	return b
}

// guest is a hand-made initiator: a lane to an endpoint that has proved itself.
func (e *endpoint) guest(t testing.TB) net.Conn { return e.guestIn(t, 0) }

func (e *endpoint) guestIn(t testing.TB, group uint8) net.Conn {
	o := e.offerTo(t, visitor)
	c, seen := e.call(t, o, 1, group)
	proof, err := seen.answer(&o.secret, readChallenge(t, c))
	require.NoError(t, err)
	_, err = c.Write(append(proof, appendFrame(nil, header{kind: kindPing, seq: 5})...))
	require.NoError(t, err)
	b := make([]byte, headerBytes)
	_, err = io.ReadFull(c, b)
	require.NoError(t, err)
	require.Equal(t, header{kind: kindPong, seq: 5}, getHeader(b), "frames right behind the proof count")
	return c
}

func TestPeersBeyondTheirCreditAreCutOff(t *testing.T) {
	s := Settings{CreditRequests: 64, CreditBytes: 4 << 20, SliceBytes: 1 << 20}
	for name, frame := range map[string]func() []byte{
		"requests": func() []byte { return readFrame(65, 1) },
		"bytes":    func() []byte { return readFrame(5, 1<<20) },
		"a slice larger than any": func() []byte {
			return readFrame(1, sliceMax+1)
		},
		"a class that is not there": func() []byte {
			return appendFrame(nil, header{kind: kindRead, seq: 1}, record{id: 1, length: 1, classOrSum: classCount})
		},
		"numbers that go back": func() []byte { return append(readFrame(1, 1), readFrame(1, 1)...) },
		"payload that does not add up": func() []byte {
			return appendFrame(nil, header{kind: kindWrite, length: 5, seq: 1}, record{length: 4})
		},
	} {
		e := newTestEndpoint(t, s)
		c := e.guest(t)
		_, err := c.Write(frame())
		require.NoError(t, err)
		for { // answers to earlier frames may be there
			if _, err := c.Read(make([]byte, 4096)); err != nil {
				var late net.Error
				require.False(t, errorsAs(err, &late) && late.Timeout(), name)
				break
			}
		}
	}
}

// TestRefusedSlicesAreCounted: a peer names memory that it was not given.
func TestRefusedSlicesAreCounted(t *testing.T) {
	e := newTestEndpoint(t, Settings{})
	c := e.guest(t)
	_, err := c.Write(append(readFrame(2, 8), append(appendFrame(nil, header{kind: kindWrite, length: 4, seq: 3},
		record{id: 1, length: 4}), "data"...)...))
	require.NoError(t, err)
	for refused := 0; refused < 3; {
		h := readHeader(t, c)
		_, err := io.CopyN(io.Discard, c, int64(h.count)*recordBytes)
		require.NoError(t, err)
		if h.kind == kindNack {
			refused += int(h.count)
		}
	}
	require.EqualValues(t, 3, e.refused(transport.RefusedAccess))
}

func readFrame(n int, length uint32) []byte {
	records := make([]record, n)
	for i := range records {
		records[i] = record{id: 1, length: length}
	}
	return appendFrame(nil, header{kind: kindRead, seq: 1}, records...)
}

// FuzzLane feeds a responder's lane any bytes behind a good greeting: it may end, and must touch nothing but its
// region.
func FuzzLane(f *testing.F) {
	f.Add(appendFrame(nil, header{kind: kindWrite, length: 4, seq: 1}, record{length: 4}))
	f.Add(append(readFrame(3, 100), appendFrame(nil, header{kind: kindWithdraw, seq: 1}, record{id: 9})...))
	f.Add(append(appendFrame(nil, header{kind: kindNotify, length: 3, seq: 1}), "abc"...))
	f.Add(appendFrame(nil, header{kind: kindFence, seq: 1}))
	f.Add(appendFrame(appendFrame(nil, header{kind: kindPing, seq: 1}), header{kind: kindEpoch, seq: 1}))
	f.Add(append(appendFrame(nil, header{kind: kindWrite, flag: flagChecked, length: 4, seq: 1},
		record{length: 4, classOrSum: 7}), "abcd"...))
	f.Add(appendFrame(readFrame(2, 10), header{kind: kindLeave}))
	e := newTestEndpoint(f, Settings{Workers: 1})
	t := e.tr.(*Transport)
	memory := mapping(f, 3<<12)
	key, _, err := e.tr.Register(context.Background(), regionOf(memory[1<<12:2<<12]))
	require.NoError(f, err)
	before := bytes.Clone(memory)
	var one sync.Mutex
	f.Fuzz(func(tt *testing.T, stream []byte) {
		one.Lock()
		defer one.Unlock()
		if len(stream) > 60<<10 {
			return
		}
		l := strangerLane(tt, t)
		a := l.admitted(tt, 1)
		for at := 0; at+recordBytes <= len(stream); at++ { // let some slices name a region that exists
			if stream[at] == 0xEE {
				record{uint64(key), uint64(stream[at+8]) * 17, uint32(stream[at+16]) * 17, 0}.put(stream[at:])
				at += recordBytes
			}
		}
		_, sendErr := unix.Write(l.other, stream)
		require.NoError(tt, sendErr)
		w := t.newWorker()
		l.readMu.Lock()
		for n, open := 1, true; n > 0 && open; {
			n, open = l.drain(w, 1<<20)
		}
		l.readMu.Unlock()
		require.Equal(tt, before[:1<<12], memory[:1<<12])
		require.Equal(tt, before[2<<12:], memory[2<<12:])
		l.broke(kit.Closed("test"))
		l.closeLane()
		_ = unix.Close(l.other)
		a.leaveCame()
	})
}

// pairLane is a lane; its other end is a plain socket of the test.
type pairLane struct {
	*responderLane
	other int
}

func strangerLane(t testing.TB, tr *Transport) pairLane {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	return pairLane{tr.newResponderLane(fds[0], netip.Addr{}), fds[1]}
}

// admitted makes it an open lane of a new attachment, without a handshake.
func (l pairLane) admitted(t testing.TB, number uint64) *attachment {
	a, err := l.t.attachments.issue(visitor, version, shield{})
	require.Nil(t, err)
	l.join(t, a, number)
	return a
}

// join makes it an open lane of an attachment, without a handshake.
func (l pairLane) join(t testing.TB, a *attachment, number uint64) {
	_, _, err := l.t.attachments.expect(l.responderLane, a.id, number)
	require.Nil(t, err)
	l.mayBuffer(nil, nil)
	require.Nil(t, l.t.attachments.admit(l.responderLane, a))
}

// FuzzServe feeds the control plane's side, and the readers of its answers.
func FuzzServe(f *testing.F) {
	f.Add(plainHello)
	f.Add(appendFrame(append([]byte{version, callAsk}, make([]byte, len(attachmentID{}))...),
		header{kind: kindFence, seq: 1}))
	f.Add(append([]byte{version, callWanted}, make([]byte, 24)...))
	f.Add(offer{requests: 64, bytes: 1, machine: "m"}.append(nil, version))
	e := newTestEndpoint(f, Settings{Workers: 1})
	f.Fuzz(func(t *testing.T, message []byte) {
		_, _ = e.tr.Serve(context.Background(), transport.Peer{Address: "fuzz"}, message)
		_, _ = readOffer(kit.NewReader(message), version, transport.NumberedID(1))
		_ = readFrames(kit.NewReader(message), func(h header, table []record) error {
			require.Len(t, table, int(h.count))
			return nil
		})
		_, _ = readDescriptor(message, transport.NumberedID(1))
		as := &e.tr.(*Transport).attachments
		for _, a := range as.ofPeer(nil) {
			a.leaveCame()
		}
	})
}
