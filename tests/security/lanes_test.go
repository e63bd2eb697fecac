package security

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// tap is a listener on the path of lanes: it passes their bytes on, and keeps those of the initiators.
type tap struct {
	listener net.Listener
	wait     sync.WaitGroup

	mu      sync.Mutex
	port    string // of the owner
	streams []*bytes.Buffer
}

func newTap(t *testing.T) *tap {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &tap{listener: l}
	p.wait.Go(func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			p.wait.Go(func() { p.pass(from) })
		}
	})
	return p
}

func (p *tap) pass(from net.Conn) {
	p.mu.Lock()
	heard, port := &bytes.Buffer{}, p.port
	p.streams = append(p.streams, heard)
	p.mu.Unlock()
	to, err := net.Dial("tcp", port)
	if err != nil {
		_ = from.Close()
		return
	}
	p.wait.Go(func() {
		_, _ = io.Copy(from, to)
		_ = from.Close()
	})
	buffer := make([]byte, 1<<16)
	for {
		n, err := from.Read(buffer)
		p.mu.Lock()
		heard.Write(buffer[:n])
		p.mu.Unlock()
		if err != nil {
			_ = to.Close()
			return
		}
		_, _ = to.Write(buffer[:n])
	}
}

// Call leads the lanes of an offer through the tap.
func (p *tap) Call(answer []byte) []byte {
	return regexp.MustCompile(`127\.0\.0\.1:\d{5}`).ReplaceAllFunc(answer, func(port []byte) []byte {
		p.mu.Lock()
		p.port = string(port)
		p.mu.Unlock()
		return []byte(p.listener.Addr().String()) // as long as the other: both ports have five digits
	})
}

// Everything that a listener hears of a lane is of no use to it: said again, also as another lane, it changes nothing.
func TestALaneThatWasHeardIsOfNoUse(t *testing.T) {
	const size = 4096
	e := victim(t)
	target := memory(t, size)
	_, err := e.Register(engine.Memory{Addr: address(target), Size: size, Name: "target", Location: "cpu:0",
		Permission: mem.GlobalReadWrite})
	require.NoError(t, err)
	own := memory(t, size)
	copy(own, bytes.Repeat([]byte("written "), size/8))
	p := newTap(t)
	r := newRogue(t, transport.Peer{Address: "127.0.0.1:1", Network: e.Self().Network}, own)
	r.through = p.Call
	link, rail, refused := r.attach(e)
	require.Nil(t, refused)
	key, err := r.transport.Import(link, r.describe(e).Find("target").Descriptors["tcp"])
	require.NoError(t, err)
	require.Nil(t, r.move(transport.Write, rail, key, own))
	require.Equal(t, own, target, "it came over the tap")
	clear(target)

	p.mu.Lock()
	port, streams := p.port, p.streams
	p.mu.Unlock()
	require.NotEmpty(t, streams)
	for i, stream := range streams {
		for _, number := range []uint64{0, 1000 + uint64(i)} {
			p.mu.Lock()
			said := bytes.Clone(stream.Bytes())
			p.mu.Unlock()
			if number > 0 {
				binary.LittleEndian.PutUint64(said[8:], number) // of the lane, in the header of its first frame
			}
			c, err := net.Dial("tcp", port)
			require.NoError(t, err)
			_ = c.SetDeadline(time.Now().Add(admittance))
			_, _ = c.Write(said)
			_, _ = io.Copy(io.Discard, c) // until the owner closes it, or answers no more
			require.NoError(t, c.Close())
			require.True(t, bytes.Equal(make([]byte, size), target), "a WRITE that was heard was carried out again")
		}
	}
	require.NoError(t, r.transport.Close(context.Background()))
	require.NoError(t, p.listener.Close())
	p.wait.Wait()
}

// Connections to the data port that say nothing, or too little, keep no lane out.
func TestSilentConnectionsToTheDataPortKeepNobodyOut(t *testing.T) {
	const size, many = 4096, 300
	for name, said := range map[string][]byte{"nothing": nil, "a byte": {1}} {
		t.Run(name, func(t *testing.T) {
			e := victim(t)
			target := memory(t, size)
			_, err := e.Register(engine.Memory{Addr: address(target), Size: size, Name: "target", Location: "cpu:0",
				Permission: mem.GlobalReadWrite})
			require.NoError(t, err)
			scout := newRogue(t, transport.Peer{Address: "127.0.0.1:1", Network: e.Self().Network}, memory(t, size))
			p := newTap(t)
			scout.through = p.Call
			_, _, refused := scout.attach(e)
			require.Nil(t, refused)
			require.NoError(t, scout.transport.Close(context.Background()))
			require.NoError(t, p.listener.Close())
			p.wait.Wait()

			ctx, stop := context.WithCancel(context.Background())
			var attack, begun sync.WaitGroup
			begun.Add(many)
			for range many {
				attack.Go(func() {
					for first := true; ctx.Err() == nil; first = false {
						c, err := new(net.Dialer).DialContext(ctx, "tcp", p.port)
						if first {
							begun.Done()
						}
						if err != nil {
							return
						}
						_ = c.SetReadDeadline(time.Now().Add(1800 * time.Millisecond))
						_, _ = c.Write(said)
						_, _ = c.Read(make([]byte, 1))
						_ = c.Close()
					}
				})
			}
			defer func() { stop(); attack.Wait() }()
			begun.Wait()
			for i := range 3 {
				own := memory(t, size)
				copy(own, bytes.Repeat([]byte{byte('a' + i)}, size))
				r := newRogue(t, transport.Peer{Address: "127.0.0.1:1", Network: e.Self().Network}, own)
				begin := time.Now()
				link, rail, refused := r.attach(e)
				require.Nil(t, refused, "%v", refused)
				key, err := r.transport.Import(link, r.describe(e).Find("target").Descriptors["tcp"])
				require.NoError(t, err)
				require.Nil(t, r.move(transport.Write, rail, key, own))
				require.Equal(t, own, target)
				t.Logf("attached and written after %v", time.Since(begin))
			}
		})
	}
}
