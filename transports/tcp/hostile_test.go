package tcp

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net"
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
		"wrong magic":     greeting{version: version}.append(bytes.Clone(hello)),
		"wrong token":     greeting{magic: magic, version: version, token: token{1}}.append(bytes.Clone(hello)),
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

func TestStrangersAreBounded(t *testing.T) {
	e := newTestEndpoint(t, Settings{Greeting: time.Minute})
	const extra = 8
	closed := make(chan net.Conn, strangersMax+extra)
	for range strangersMax + extra {
		c := e.stranger(t)
		go func() { // ends with the connection, at the latest when the test does
			_, err := c.Read(make([]byte, 1))
			var late net.Error
			if err != nil && !(errorsAs(err, &late) && late.Timeout()) {
				closed <- c
			}
		}()
	}
	for range extra {
		select {
		case <-closed:
		case <-time.After(5 * time.Second):
			t.Fatal("too many strangers were let in")
		}
	}
	require.EqualValues(t, strangersMax, e.tr.(*Transport).strangers.Load())
}

// guest is a hand-made initiator: a greeted connection to an endpoint.
func (e *endpoint) guest(t testing.TB) net.Conn {
	c := e.caller(t, greeting{magic: magic, version: version, initiator: transport.NumberedID(77)})
	b := make([]byte, headerBytes)
	_, err := c.Read(b)
	require.NoError(t, err)
	require.Equal(t, kindWelcome, getHeader(b).kind)
	return c
}

// caller is a connection that has sent a greeting, with a token that it was given.
func (e *endpoint) caller(t testing.TB, g greeting) net.Conn {
	from := transport.Peer{Address: "guest", ID: transport.NumberedID(77)}
	answer, err := e.tr.Serve(context.Background(), from, []byte{version, callHello})
	require.NoError(t, err)
	r := kit.NewReader(answer)
	r.U8()
	o, err := readOffer(r, r.ID())
	require.NoError(t, err)
	c := e.stranger(t)
	g.token = o.token
	_, err = c.Write(g.append(appendFrame(nil, header{kind: kindHello, length: greetingSize, seq: 1})))
	require.NoError(t, err)
	return c
}

func TestGreetingsAreCheckedBesidesTheirToken(t *testing.T) {
	e := newTestEndpoint(t, Settings{})
	guest := transport.NumberedID(77) // the caller
	for name, g := range map[string]greeting{
		"another incarnation":             {magic: magic, version: version, initiator: transport.NumberedID(78)},
		"another version":                 {magic: magic, version: version + 1, initiator: guest},
		"a class group that is not there": {magic: magic, version: version, initiator: guest, group: groupCount},
	} {
		t.Log(name)
		requireClosed(t, e.caller(t, g))
	}
	e.guest(t)
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
		a, err := t.attachments.issue(transport.Peer{Address: "fuzz"})
		require.Nil(tt, err)
		require.Nil(tt, a.admit(l.responderLane, 1))
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
		t.attachments.mu.Lock()
		delete(t.attachments.byToken, a.token)
		t.attachments.mu.Unlock()
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
	return pairLane{tr.newResponderLane(fds[0]), fds[1]}
}

// FuzzServe feeds the control plane's side, and the readers of its answers.
func FuzzServe(f *testing.F) {
	f.Add([]byte{version, callHello})
	f.Add(appendFrame(append([]byte{version, callAsk}, make([]byte, 16)...), header{kind: kindFence, seq: 1}))
	f.Add(append([]byte{version, callWanted}, make([]byte, 24)...))
	f.Add(offer{requests: 64, bytes: 1, machine: "m"}.append(nil))
	e := newTestEndpoint(f, Settings{Workers: 1})
	f.Fuzz(func(t *testing.T, message []byte) {
		_, _ = e.tr.Serve(context.Background(), transport.Peer{Address: "fuzz"}, message)
		_, _ = readOffer(kit.NewReader(message), transport.NumberedID(1))
		_ = readFrames(kit.NewReader(message), func(h header, table []record) error {
			require.Len(t, table, int(h.count))
			return nil
		})
		_, _ = readDescriptor(message, transport.NumberedID(1))
		as := &e.tr.(*Transport).attachments
		as.mu.Lock()
		clear(as.byToken)
		as.mu.Unlock()
	})
}
