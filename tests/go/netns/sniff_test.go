package netns

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/forked"
	"github.com/tent-engine/tent/tests/netbed"
)

const (
	samples     = 24 // texts of the region that are looked for
	sampleBytes = 32
)

// TestTheSwitchReadsWhatSecurityDataLetsIt: a listener at the switch finds the bytes of transfers under auth,
// none of them under encrypt, and the key of the cluster never.
func TestTheSwitchReadsWhatSecurityDataLetsIt(t *testing.T) {
	for mode, readable := range map[string]bool{"auth": true, "encrypt": false} {
		t.Run(mode, func(t *testing.T) {
			w := newWorld(t, map[string]string{"security/data": `"` + mode + `"`})
			sniffer, err := w.Sniff()
			require.NoError(t, err)
			var texts [][]byte
			for _, op := range []transport.Op{transport.Write, transport.Read} {
				w.Move(t, op)
				texts = append(texts, w.texts(t)...)
			}
			late, _ := w.start(t, w.A, nil) // its handshakes are heard, too
			require.NoError(t, late.Call("Actor.Connect", w.far, &forked.Nothing{}))
			heard, lost, err := sniffer.Stop()
			require.NoError(t, err)

			total := 0
			for _, piece := range heard {
				total += len(piece)
				require.False(t, bytes.Contains(piece, netbed.ClusterSecret), "the key of the cluster")
			}
			require.Greater(t, total, regionAll, "most of the bytes passed the sniffer, %d packets did not", lost)
			found := 0
			for _, text := range texts {
				for _, piece := range heard {
					if bytes.Contains(piece, text) {
						found++
						break
					}
				}
			}
			t.Logf("%s: %d of %d texts in %d MiB, %d packets were lost", mode, found, len(texts), total>>20, lost)
			if readable {
				require.Greater(t, found, len(texts)/2, "the sniffer would find them")
			} else {
				require.Zero(t, found)
			}
		})
	}
}

// texts are parts of Near's region after the newest move.
func (w *world) texts(t *testing.T) (list [][]byte) {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed of the samples: %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range samples {
		var text []byte
		at := random.Uint64N(regionAll-sampleBytes) &^ 7
		require.NoError(t, w.Near.Call("Actor.Peek", netbed.PartArgs{Offset: at, Bytes: sampleBytes}, &text))
		require.NotEqual(t, binary.LittleEndian.Uint64(text), binary.LittleEndian.Uint64(text[8:]), "a pattern")
		list = append(list, text)
	}
	return list
}
