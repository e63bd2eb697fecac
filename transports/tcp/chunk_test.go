package tcp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/transport"
)

// shields are all protections with all ciphers.
var shields = []shield{{transport.Sign, suiteAES}, {transport.Sign, suiteChaCha},
	{transport.Encrypt, suiteAES}, {transport.Encrypt, suiteChaCha}}

// handshake is the transcript of a lane, as both of its ends have it.
func handshake(lane uint64) transcript {
	g := greeting{magic: magic, version: version, attachment: attachmentID{1}, nonce: nonce{2}}
	return transcript{hello: g.hello(lane), nonce: nonce{3}, initiator: transport.NumberedID(4),
		responder: transport.NumberedID(5)}
}

// chunkOf seals bytes as the next chunk of a direction.
func chunkOf(d *sealing, plain []byte) []byte {
	b := make([]byte, len(plain)+chunkRoom-chunkMost)
	copy(b[chunkHead:], plain)
	return b[:d.seal(b, len(plain))]
}

// taken returns the bytes of a chunk that a direction takes, nil if it does not. The chunk stays as it is.
func taken(d *sealing, chunk []byte) []byte {
	own := bytes.Clone(chunk)
	if size, ok := sealed(own); !ok || size != len(own) || !d.open(own) {
		return nil
	}
	return own[chunkHead : len(own)-chunkTag]
}

func TestChunksAreTakenInTheirPlaceAlone(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for _, s := range shields {
		t.Run(s.String(), func(t *testing.T) {
			key, seen, other := secret{6}, handshake(1), handshake(2)
			out := seen.sealing(&key, s, byInitiator)
			var plain, chunks [][]byte
			for _, size := range []int{1, 15, 16, 17, 1000, chunkMost} {
				b := make([]byte, size)
				for i := range b {
					b[i] = byte(random.Uint32())
				}
				plain, chunks = append(plain, b), append(chunks, chunkOf(&out, b))
			}
			in := seen.sealing(&key, s, byInitiator)
			for i, c := range chunks {
				if s.protection == transport.Encrypt && len(plain[i]) > 8 {
					require.False(t, bytes.Contains(c, plain[i][:8]), "it can be read")
				}
				for j, wrong := range chunks {
					require.True(t, j == i || taken(&in, wrong) == nil, "chunk %d in the place of %d", j, i)
				}
				for range 64 { // and each bit of short ones, below
					bad := bytes.Clone(c)
					bad[random.IntN(len(bad))] ^= 1 << random.IntN(8)
					require.Nil(t, taken(&in, bad), "a flipped bit")
				}
				require.Equal(t, plain[i], taken(&in, c))
			}
			in = seen.sealing(&key, s, byInitiator)
			for bit := range 8 * len(chunks[0]) {
				bad := bytes.Clone(chunks[0])
				bad[bit/8] ^= 1 << (bit % 8)
				require.Nil(t, taken(&in, bad), "bit %d", bit)
			}
			reflected, elsewhere := seen.sealing(&key, s, byResponder), other.sealing(&key, s, byInitiator)
			require.Nil(t, taken(&reflected, chunks[0]), "of the other direction")
			require.Nil(t, taken(&elsewhere, chunks[0]), "of another lane")
			for _, another := range shields {
				if another != s {
					d := seen.sealing(&key, another, byInitiator)
					require.Nil(t, taken(&d, chunks[0]), "%v as %v", s, another)
				}
			}
			stranger := seen.sealing(&secret{7}, s, byInitiator)
			require.Nil(t, taken(&stranger, chunks[0]), "of another attachment")
		})
	}
}

// Each field of the handshake is in the keys.
func TestKeysDependOnTheWholeHandshake(t *testing.T) {
	key, s := secret{6}, shields[0]
	right := handshake(1)
	sender := right.sealing(&key, s, byInitiator)
	chunk := chunkOf(&sender, []byte("bytes"))
	for at := range right.hello {
		wrong := handshake(1)
		wrong.hello[at] ^= 1
		d := wrong.sealing(&key, s, byInitiator)
		require.Nil(t, taken(&d, chunk), "byte %d of HELLO", at)
	}
	for name, change := range map[string]func(*transcript){
		"nonce":     func(t *transcript) { t.nonce[31]++ },
		"initiator": func(t *transcript) { t.initiator[0]++ },
		"responder": func(t *transcript) { t.responder[0]++ },
	} {
		wrong := handshake(1)
		change(&wrong)
		d := wrong.sealing(&key, s, byInitiator)
		require.Nil(t, taken(&d, chunk), name)
	}
}

// A key ends after its number of chunks. The next one is another, both ends change at the same chunk, and numbers are
// not used again.
func TestKeysEndBeforeTheirLimit(t *testing.T) {
	for _, s := range shields {
		key, seen := secret{6}, handshake(1)
		out, in := seen.sealing(&key, s, byInitiator), seen.sealing(&key, s, byInitiator)
		first, firstTraffic := out.aead, out.traffic
		for _, d := range []*sealing{&out, &in} {
			d.number = chunksPerKey - 2
			d.next()
		}
		for i := range 3 {
			plain := fmt.Appendf(nil, "chunk %d", i)
			require.Equal(t, plain, taken(&in, chunkOf(&out, plain)), "%v, chunk %d around the change", s, i)
		}
		require.EqualValues(t, chunksPerKey+2, out.number)
		require.EqualValues(t, out.number, binary.LittleEndian.Uint64(out.nonce[:]))
		require.NotEqual(t, firstTraffic, out.traffic)
		require.Equal(t, in.traffic, out.traffic)
		late := out
		late.aead = first
		require.Nil(t, taken(&in, chunkOf(&late, []byte("by the old key"))))
	}
}

// The stricter protection of two ends counts, and AES where both have it.
func TestTheStricterProtectionCounts(t *testing.T) {
	for _, ours := range []transport.Protection{transport.Auth, transport.Sign, transport.Encrypt} {
		for _, theirs := range []transport.Protection{transport.Auth, transport.Sign, transport.Encrypt} {
			for _, fast := range []cipherSuite{suiteAES, suiteChaCha} {
				s := agree(ours, theirs, fast, suiteAES)
				require.NoError(t, s.check())
				require.Equal(t, s, agree(theirs, ours, suiteAES, fast))
				require.True(t, s.protection >= ours && s.protection >= theirs)
				require.Equal(t, ours != transport.Auth || theirs != transport.Auth, s.seals())
				require.True(t, !s.seals() || s.suite == fast)
			}
		}
	}
	for _, wrong := range []shield{{transport.Sign, suiteNone}, {transport.Auth, suiteAES},
		{transport.Encrypt, suiteCount},
		{transport.Encrypt + 1, suiteAES}} {
		require.Error(t, wrong.check(), "%d with %d", wrong.protection, wrong.suite)
	}
}

func TestChunksAllocateNothing(t *testing.T) {
	for _, s := range shields {
		key, seen := secret{6}, handshake(1)
		out, in := seen.sealing(&key, s, byInitiator), seen.sealing(&key, s, byInitiator)
		b := make([]byte, chunkRoom)
		require.Zero(t, testing.AllocsPerRun(100, func() {
			if n := out.seal(b, chunkMost); !in.open(b[:n]) {
				t.Fatal("not taken")
			}
		}), s)
	}
}

// BenchmarkChunks seals and opens whole chunks.
func BenchmarkChunks(b *testing.B) {
	for _, s := range shields {
		key, seen := secret{6}, handshake(1)
		buffer := make([]byte, chunkRoom)
		b.Run("seal "+s.String(), func(b *testing.B) {
			out := seen.sealing(&key, s, byInitiator)
			b.SetBytes(chunkMost)
			for b.Loop() {
				out.seal(buffer, chunkMost)
			}
		})
		b.Run("open "+s.String(), func(b *testing.B) {
			out := seen.sealing(&key, s, byInitiator)
			in, n := seen.sealing(&key, s, byInitiator), out.seal(buffer, chunkMost)
			whole := bytes.Clone(buffer[:n])
			b.SetBytes(chunkMost)
			for b.Loop() {
				copy(buffer, whole) // some µs of the figure
				first := in
				if !first.open(buffer[:n]) {
					b.Fatal("not taken")
				}
			}
		})
	}
}
