package tcp

import (
	"context"
	"encoding/gob"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// flood is one attacker of a peer process. It goes on until it is stopped, for a bounded number of steps.
type flood struct {
	t      testing.TB
	to     transport.Peer
	port   string // where data is accepted
	offer  offer  // to the visitor
	number atomic.Uint64
	steps  atomic.Int64

	mu   sync.Mutex
	held []net.Conn // the newest ones, which stay open
	sent []net.Conn // the newest ones, to which the peer may not have come
}

// unseen bounds the connections of a flood that wait in front of an honest one. The kernel hands them over in order, so
// an attacker with more processors than the peer fills that queue, and the peer cannot help it.
const unseen = 256

// keepPace waits for the answer on the connection that was opened some time before this one.
func (f *flood) keepPace(c net.Conn, answer []byte) {
	f.mu.Lock()
	var oldest net.Conn
	if f.sent = append(f.sent, c); len(f.sent) > unseen {
		oldest, f.sent = f.sent[0], f.sent[1:]
	}
	f.mu.Unlock()
	if oldest != nil {
		_, _ = io.ReadFull(oldest, answer) // fails on one that had to go
	}
}

func newFlood(t testing.TB, process *child) *flood {
	f := &flood{t: t, to: process.Peer}
	answer, err := f.ask(visitor, plainHello)
	require.NoError(t, err)
	require.Equal(t, errs.OK, answer.Code)
	r := kit.NewReader(answer.Message)
	r.U8()
	f.offer, err = readOffer(r, version, r.ID())
	require.NoError(t, err)
	f.port = f.offer.addresses[0].String()
	return f
}

// hold keeps a connection open, and at most that many of them.
func (f *flood) hold(c net.Conn, most int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held = append(f.held, c)
	f.release(most)
}

func (f *flood) release(most int) {
	for len(f.held) > most {
		_ = f.held[0].Close()
		f.held = f.held[1:]
	}
}

// ask makes a call over the control plane, in the name of anybody.
func (f *flood) ask(from transport.Peer, message []byte) (controlAnswer, error) {
	var answer controlAnswer
	c, err := net.DialTimeout("tcp", f.to.Address, time.Second)
	if err != nil {
		return answer, err
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	if err = gob.NewEncoder(c).Encode(controlCall{from, message}); err == nil {
		err = gob.NewDecoder(c).Decode(&answer)
	}
	return answer, err
}

// connect opens a connection to the data port that says something, or nothing.
func (f *flood) connect(said []byte) net.Conn {
	c, err := net.DialTimeout("tcp", f.port, time.Second)
	if err != nil {
		return nil
	}
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	_, _ = c.Write(said)
	return c
}

// linger keeps many connections open, each renewed just before the time for its greeting is over.
func (f *flood) linger(said []byte) {
	var wait sync.WaitGroup
	for range 300 {
		wait.Go(func() {
			if c := f.connect(said); c != nil {
				_ = c.SetReadDeadline(time.Now().Add(1800 * time.Millisecond))
				_, _ = c.Read(make([]byte, 1))
				_ = c.Close()
			}
			f.steps.Add(1)
		})
	}
	wait.Wait()
}

// transcript begins the handshake of a lane of the visitor.
func (f *flood) transcript() *transcript {
	g := greeting{magic: magic, version: version, attachment: f.offer.attachment, nonce: newNonce()}
	return &transcript{hello: g.hello(f.number.Add(1)), initiator: visitor.ID, responder: f.offer.owner}
}

// lane opens a lane of the visitor, and proves it if it is to count.
func (f *flood) lane(proves bool) {
	seen := f.transcript()
	c := f.connect(seen.hello)
	if c == nil {
		return
	}
	f.hold(c, 1005)
	challenge := make([]byte, headerBytes+challengeSize)
	if !proves {
		f.keepPace(c, challenge)
		return
	}
	if _, err := io.ReadFull(c, challenge); err == nil {
		if proof, err := seen.answer(&f.offer.secret, challenge); err == nil {
			_, _ = c.Write(proof)
		}
	}
}

var floods = map[string]func(*flood){
	"connections that say nothing": func(f *flood) { f.linger(nil) },
	"connections that say a byte":  func(f *flood) { f.linger([]byte{byte(kindHello)}) },
	"hellos of many peers": func(f *flood) {
		_, _ = f.ask(transport.Peer{Address: "many", ID: transport.NumberedID(1000 + f.number.Add(1))},
			plainHello)
	},
	"hellos of one peer":    func(f *flood) { _, _ = f.ask(visitor, plainHello) },
	"lanes of one peer":     func(f *flood) { f.lane(true) },
	"lanes without a proof": func(f *flood) { f.lane(false) },
	"lanes of no attachment": func(f *flood) {
		if c := f.connect(greeting{magic: magic, version: version}.hello(1)); c != nil {
			_ = c.Close()
		}
	},
}

// TestAFloodLeavesAnHonestPeerItsWay has a process with few descriptors under attack. It is attached, takes a slice and
// opens its own files, all within the time that a user waits for without noticing.
func TestAFloodLeavesAnHonestPeerItsWay(t *testing.T) {
	const descriptors, stepsMin, stepsMax, clients = 512, 4500, 100_000, 3
	for name, step := range floods {
		t.Run(name, func(t *testing.T) {
			process := spawnChild(t)
			require.NoError(t, process.Call("Remote.Limit", uint64(descriptors), new(int)))
			require.NoError(t, process.Call("Remote.Open", Settings{}, &process.Offer))
			f := newFlood(t, process)
			var wait sync.WaitGroup
			ctx, stop := context.WithCancel(context.Background())
			for range 2 {
				wait.Go(func() {
					for n := 0; n < stepsMax && ctx.Err() == nil; n++ {
						step(f)
						f.steps.Add(1)
					}
				})
			}
			t.Cleanup(func() { stop(); wait.Wait(); f.release(0) })
			for begin := time.Now(); f.steps.Load() < stepsMin && time.Since(begin) < 2*time.Second; {
				<-time.After(time.Millisecond)
			}
			for range clients {
				begin := time.Now()
				c := &couple{endpoint: newTestEndpoint(t, Settings{}), child: process, memory: mapping(t, 1<<16)}
				var err error
				c.key, _, err = c.tr.Register(context.Background(), regionOf(c.memory))
				require.NoError(t, err)
				c.link, err = c.tr.Attach(process.Peer)
				require.NoError(t, err)
				t.Cleanup(func() {
					if t.Failed() {
						t.Logf("%d steps of the flood; %s", f.steps.Load(), c.tr.(*Transport).Explain(c.link))
					}
				})
				c.remote, err = c.tr.Import(c.link, process.Descriptor)
				require.NoError(t, err)
				c.await(t, "a rail", honestLimit, func() bool { return len(c.rails) > 0 })
				s := c.slice(transport.Write, 0, 0, len(c.memory))
				require.Equal(t, 1, c.tr.Submit([]*transport.Slice{s}))
				c.awaitEnds(t, honestLimit, s)
				require.Nil(t, c.ends[s].Err, "%v", c.ends[s].Err)
				require.Equal(t, sum(c.memory), process.sum(t, 0, len(c.memory)))
				t.Logf("attached and written after %v", time.Since(begin))
			}
			require.NoError(t, process.Call("Remote.OpenFiles", descriptors/4, new(int)))
		})
	}
}

// TestAPeerGetsTheDescriptorsOfStrangers: the program around the engine has taken all others.
func TestAPeerGetsTheDescriptorsOfStrangers(t *testing.T) {
	process := spawnChild(t)
	require.NoError(t, process.Call("Remote.Limit", uint64(512), new(int)))
	require.NoError(t, process.Call("Remote.Open", Settings{Greeting: time.Minute}, &process.Offer))
	f := newFlood(t, process)
	t.Cleanup(func() { f.release(0) })
	for range strangersOfHost {
		f.hold(f.connect([]byte{byte(kindHello)}), strangersOfHost)
	}
	first, seen := f.connect(nil), f.transcript()
	t.Cleanup(func() { _ = first.Close() })
	_, err := first.Write(seen.hello) // accepted behind the others
	require.NoError(t, err)
	_, err = seen.answer(&f.offer.secret, readChallenge(t, first))
	require.NoError(t, err)
	var files int
	require.NoError(t, process.Call("Remote.Exhaust", 0, &files))
	require.Positive(t, files)
	for range strangersOfHost / 2 {
		c, seen := f.connect(nil), f.transcript()
		t.Cleanup(func() { _ = c.Close() })
		_, err := c.Write(seen.hello)
		require.NoError(t, err)
		proof, err := seen.answer(&f.offer.secret, readChallenge(t, c))
		require.NoError(t, err)
		_, err = c.Write(proof)
		require.NoError(t, err)
		requireOpen(t, c)
	}
}

// honestLimit bounds each wait of an honest peer.
const honestLimit = 2 * time.Second
