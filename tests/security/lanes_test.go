package security

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// Everything that a listener hears of a lane is of no use to it: said again, also as another lane, it changes nothing.
func TestALaneThatWasHeardIsOfNoUse(t *testing.T) {
	const size = 4096
	e := victim(t)
	target := memory(t, size)
	_, err := e.Register(engine.Memory{Addr: mem.AddressOf(target), Size: size, Name: "target", Location: "cpu:0",
		Permission: mem.GlobalReadWrite})
	require.NoError(t, err)
	own := memory(t, size)
	copy(own, bytes.Repeat([]byte("written "), size/8))
	p := newMeddler(t, nil)
	r := newRogue(t, transport.Peer{Address: "127.0.0.1:1", Network: e.Self().Network}, own)
	r.through = p.Call
	link, rail, refused := r.attach(e)
	require.Nil(t, refused)
	key, err := r.transport.Import(link, r.describe(e).Find("target").Descriptors["tcp"])
	require.NoError(t, err)
	require.Nil(t, r.move(transport.Write, rail, key, own))
	require.Equal(t, own, target, "it came by the meddler")
	clear(target)

	lanes := p.said()
	require.NotEmpty(t, lanes)
	for i := range lanes {
		for _, number := range []uint64{0, 1000 + uint64(i)} {
			said := p.said()[i]
			if number > 0 {
				binary.LittleEndian.PutUint64(said[8:], number) // of the lane, in the header of its first frame
			}
			c, err := net.Dial("tcp", p.owner)
			require.NoError(t, err)
			_ = c.SetDeadline(time.Now().Add(admittance))
			_, _ = c.Write(said)
			_, _ = io.Copy(io.Discard, c) // until the owner closes it, or answers no more
			require.NoError(t, c.Close())
			require.True(t, bytes.Equal(make([]byte, size), target), "a WRITE that was heard was carried out again")
		}
	}
}

// Connections to the data port that say nothing, or too little, keep no lane out.
func TestSilentConnectionsToTheDataPortKeepNobodyOut(t *testing.T) {
	const size, many = 4096, 300
	for name, said := range map[string][]byte{"nothing": nil, "a byte": {1}} {
		t.Run(name, func(t *testing.T) {
			e := victim(t)
			target := memory(t, size)
			_, err := e.Register(engine.Memory{Addr: mem.AddressOf(target), Size: size, Name: "target",
				Location: "cpu:0", Permission: mem.GlobalReadWrite})
			require.NoError(t, err)
			scout := newRogue(t, transport.Peer{Address: "127.0.0.1:1", Network: e.Self().Network}, memory(t, size))
			p := newMeddler(t, nil)
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
						c, err := new(net.Dialer).DialContext(ctx, "tcp", p.owner)
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
