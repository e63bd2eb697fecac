package security

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

var protections = []transport.Protection{transport.Auth, transport.Sign, transport.Encrypt}

// between is an engine with a region, and an initiator whose lanes lead through a meddler.
type between struct {
	*engine.Engine
	*rogue
	*meddler
	own, target []byte
	rail        transport.Rail
	key         transport.RemoteKey
}

func newBetween(t *testing.T, p transport.Protection, a *meddling, size int) *between {
	t.Helper()
	m := newMeddler(t, a)
	b := &between{meddler: m, own: memory(t, size), target: memory(t, size)}
	b.Engine = victim(t, map[string]any{"security/data": p.String()})
	_, err := b.Register(engine.Memory{Addr: mem.AddressOf(b.target), Size: uint64(size), Name: "target",
		Location: "cpu:0", Permission: mem.GlobalReadWrite})
	require.NoError(t, err)
	b.rogue = newRogue(t, transport.Peer{Address: "127.0.0.1:1", Network: b.Engine.Self().Network, Protects: p}, b.own)
	b.through = m.Call
	link, rail, refused := b.attach(b.Engine)
	require.Nil(t, refused)
	b.rail = rail
	b.key, err = b.transport.Import(link, b.describe(b.Engine).Find("target").Descriptors["tcp"])
	require.NoError(t, err)
	return b
}

// fill writes random bytes, of which any 16 in a row are nowhere else.
func fill(t *testing.T, b []byte) []byte {
	t.Helper()
	var seed [32]byte
	for i := range seed {
		seed[i] = byte(rand.Uint32())
	}
	t.Logf("seed %x", seed)
	_, _ = rand.NewChaCha8(seed).Read(b)
	return bytes.Clone(b)
}

// A listener on the path reads payload under auth and under sign, and nothing under encrypt.
func TestAListenerReadsNothingThatIsEncrypted(t *testing.T) {
	const size = 1 << 20
	for _, p := range protections {
		t.Run(p.String(), func(t *testing.T) {
			b := newBetween(t, p, nil, size)
			written := fill(t, b.own)
			require.Nil(t, b.move(transport.Write, b.rail, b.key, b.own))
			require.Equal(t, written, b.target)
			read := fill(t, b.target)
			require.Nil(t, b.move(transport.Read, b.rail, b.key, b.own))
			require.Equal(t, read, b.own)
			plain := p != transport.Encrypt
			require.Equal(t, plain, b.hears(written), "a WRITE")
			require.Equal(t, plain, b.hears(read), "a READ")
		})
	}
}

var attacks = []meddling{
	{"a flipped bit of the length", func(_, fifth, sixth []byte) ([]byte, bool) {
		return flip(fifth, 0, sixth), false
	}},
	{"a flipped bit of the bytes", func(_, fifth, sixth []byte) ([]byte, bool) {
		return flip(fifth, 99, sixth), false
	}},
	{"a flipped bit of the tag", func(_, fifth, sixth []byte) ([]byte, bool) {
		return flip(fifth, len(fifth)-1, sixth), false
	}},
	{"a dropped chunk", func(_, _, sixth []byte) ([]byte, bool) { return sixth, false }},
	{"a repeated chunk", func(fourth, fifth, sixth []byte) ([]byte, bool) {
		return bytes.Join([][]byte{fourth, fifth, sixth}, nil), false
	}},
	{"chunks in another order", func(_, fifth, sixth []byte) ([]byte, bool) {
		return bytes.Join([][]byte{sixth, fifth}, nil), false
	}},
	{"a replaced chunk", func(fourth, _, sixth []byte) ([]byte, bool) {
		return bytes.Join([][]byte{fourth, sixth}, nil), false
	}},
	{"a cut stream", func(_, fifth, _ []byte) ([]byte, bool) { return fifth[:len(fifth)/2], true }},
}

func flip(chunk []byte, at int, behind []byte) []byte {
	bad := bytes.Clone(chunk)
	bad[at] ^= 0x40
	return append(bad, behind...)
}

// A meddler ends a protected lane, and none of his bytes lands. The destination has bytes of before and bytes that were
// sent, each in its place. The next transfer takes a new lane.
func TestNoByteOfAMeddlerLands(t *testing.T) {
	const size = 1 << 20
	for _, p := range []transport.Protection{transport.Sign, transport.Encrypt} {
		for i := range attacks {
			for _, op := range []transport.Op{transport.Write, transport.Read} {
				t.Run(fmt.Sprintf("%v/%v/%s", p, op, attacks[i].name), func(t *testing.T) {
					b := newBetween(t, p, &attacks[i], size)
					from, to := b.own, b.target
					if op == transport.Read {
						from, to = to, from
					}
					sent, before := fill(t, from), fill(t, to)
					to[size-1], before[size-1] = ^sent[size-1], ^sent[size-1]
					require.NotNil(t, b.move(op, b.rail, b.key, b.own), "it completed")
					for at, got := range to {
						if got != sent[at] && got != before[at] {
							t.Fatalf("byte %d is a meddler's", at)
						}
					}
					require.NotEqual(t, sent[size-1:], to[size-1:], "all of it landed")
					cut := attacks[i].name == "a cut stream"
					if op == transport.Write && !cut {
						refused := happened(t, b.Engine, event.AccessRefused)
						require.Equal(t, "forged", refused.Note)
					}
					select {
					case up := <-b.rails:
						b.rail = up.Rail
					case <-time.After(patience):
						t.Fatal("no new lane")
					}
					require.Nil(t, b.move(op, b.rail, b.key, b.own))
					require.True(t, bytes.Equal(sent, to), "the second attempt")
				})
			}
		}
	}
}

// Two engines take the stricter of their settings, and say it.
func TestTheStricterSettingOfTwoEnginesCounts(t *testing.T) {
	words := map[transport.Protection]string{transport.Auth: "not sealed", transport.Sign: "signed by",
		transport.Encrypt: "encrypted by"}
	for _, ours := range protections {
		for _, theirs := range protections {
			t.Run(fmt.Sprintf("%v with %v", ours, theirs), func(t *testing.T) {
				settings := func(p transport.Protection) map[string]any {
					return map[string]any{"security/data": p.String(), "transports/shm/enable": false}
				}
				a, b := victim(t, settings(ours)), victim(t, settings(theirs))
				target := offer(t, b, pageBytes, "kv")
				w := newWriter(t, a, b, "kv")
				require.NoError(t, w.write())
				require.Equal(t, w.own, target)
				said, err := a.Explain(&engine.Request{Terms: engine.Terms{Op: transport.Write},
					Source: mem.AddressOf(w.own), Length: pageBytes, Remote: engine.Remote{Segment: w.at}})
				require.NoError(t, err)
				text, err := json.Marshal(said)
				require.NoError(t, err)
				require.Contains(t, string(text), words[max(ours, theirs)])
			})
		}
	}
}

// An engine that demands protection refuses lanes without it: an older peer, and an offer that was made weaker.
func TestThereIsNoDowngrade(t *testing.T) {
	e := victim(t, map[string]any{"security/data": "encrypt"})
	old := newRogue(t, transport.Peer{Address: "127.0.0.1:1", Network: e.Self().Network}, memory(t, 4096))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	const oldVersion, hello = 2, 1
	_, err := old.Call(ctx, e.Self(), []byte{oldVersion, hello})
	require.ErrorContains(t, err, "version")
	require.Equal(t, "version", happened(t, e, event.PeerRefused).Note)

	strict := newRogue(t, transport.Peer{Address: "127.0.0.1:1", Network: e.Self().Network,
		Protects: transport.Encrypt}, memory(t, 4096))
	strict.through = func(answer []byte) []byte { // a peer that lies about itself
		weaker := bytes.Clone(answer)
		weaker[len(weaker)-2], weaker[len(weaker)-1] = byte(transport.Sign), 1
		return weaker
	}
	_, _, refused := strict.attach(e)
	require.NotNil(t, refused)
	require.ErrorContains(t, refused, "security/data")
}
