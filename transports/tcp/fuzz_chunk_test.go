package tcp

import (
	"bytes"
	"context"
	"encoding/binary"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/transports/kit"
)

// FuzzChunks sends WRITEs over a protected lane that is attacked once. The chunks, and the pieces that come, have any
// size. A bit is flipped, a chunk is left out, sent twice or exchanged with the next, or bytes come in between. All
// that stood before the attack lands, and nothing of what follows does.
func FuzzChunks(f *testing.F) {
	for protection := range shields {
		for attack := range uint8(6) {
			f.Add(uint8(protection), attack, uint16(300), []byte{100, 7, 199, 3}, []byte{50, 255, 1})
		}
	}
	f.Add(uint8(0), uint8(4), uint16(0), []byte{}, binary.LittleEndian.AppendUint32(nil, chunkMost))
	f.Add(uint8(3), uint8(4), uint16(999), []byte{1}, binary.LittleEndian.AppendUint32(nil, chunkMost+1))
	e := newTestEndpoint(f, Settings{Workers: 1})
	tr := e.tr.(*Transport)
	const page = 1 << 12
	memory := mapping(f, 3*page)
	key, _, err := e.tr.Register(context.Background(), regionOf(memory[page:2*page]))
	require.NoError(f, err)
	var one sync.Mutex
	f.Fuzz(func(t *testing.T, protection, attack uint8, at uint16, sizes, pieces []byte) {
		one.Lock()
		defer one.Unlock()
		if len(sizes)+len(pieces) > page {
			return
		}
		secret, seen := secret{6}, handshake(1)
		s := shields[int(protection)%len(shields)]
		out := seen.sealing(&secret, s, byInitiator)
		frames, payload := writesOf(uint64(key), page)
		chunks, begins := chunksOf(&out, frames, sizes)
		stream, safe := attacked(chunks, begins, attack, int(at), pieces)
		if safe < 0 {
			safe = len(frames)
		}

		clear(memory)
		l := strangerLane(t, tr)
		a, refused := l.t.attachments.issue(visitor, version, s)
		require.Nil(t, refused)
		_, _, refused = l.t.attachments.expect(l.responderLane, a.id, 1)
		require.Nil(t, refused)
		l.mayBuffer(seen.protect(&secret, s, byResponder))
		require.Nil(t, l.t.attachments.admit(l.responderLane, a))
		w := tr.newWorker()
		open := true
		for i := 0; len(stream) > 0 && open; i++ {
			n := len(stream)
			if i < len(pieces) {
				n = min(n, 1+16*int(pieces[i]))
			}
			_, err := unix.Write(l.other, stream[:n])
			require.NoError(t, err)
			stream = stream[n:]
			l.readMu.Lock()
			for more := 1; more > 0 && open; {
				more, open = l.drain(w, 1<<20)
			}
			l.readMu.Unlock()
		}
		want := make([]byte, len(memory))
		copy(want[page:], payload(safe))
		require.True(t, bytes.Equal(want, memory), "bytes are missing, or landed that the peer did not send there")
		l.broke(kit.Closed("test"))
		l.closeLane()
		require.NoError(t, unix.Close(l.other))
		a.leaveCame()
	})
}

// chunksOf seals bytes in chunks of some sizes and one of the rest, and returns where in the bytes they begin.
func chunksOf(d *sealing, b, sizes []byte) (chunks [][]byte, begins []int) {
	for begin := 0; begin < len(b); {
		n := len(b) - begin
		if i := len(chunks); i < len(sizes) {
			n = min(n, 1+int(sizes[i]))
		}
		chunks, begins = append(chunks, chunkOf(d, b[begin:begin+n])), append(begins, begin)
		begin += n
	}
	return chunks, begins
}

// writesOf returns frames that fill a region, and the bytes that are there when the first n bytes of the frames came.
func writesOf(key uint64, size int) (frames []byte, payload func(n int) []byte) {
	const parts = 4
	var all []byte
	var ends []int // in frames, of each byte of the region
	for part := range parts {
		length := size / parts
		frames = appendFrame(frames, header{kind: kindWrite, length: uint32(length), seq: uint64(part + 1)},
			record{id: key, offset: uint64(part * length), length: uint32(length)})
		for i := range length {
			b := byte(part*length + i*7 + i>>8 + 1)
			frames, all = append(frames, b), append(all, b)
			ends = append(ends, len(frames))
		}
	}
	return frames, func(n int) []byte {
		k := 0
		for k < len(ends) && ends[k] <= n {
			k++
		}
		return all[:k]
	}
}

// attacked joins chunks under one attack, and returns the place in the frames up to which they are the peer's; -1 when
// nothing has changed.
func attacked(chunks [][]byte, begins []int, attack uint8, at int, more []byte) (stream []byte, safe int) {
	victim := at % len(chunks)
	safe = begins[victim]
	for i, c := range chunks {
		switch {
		case i != victim:
			stream = append(stream, c...)
		case attack%6 == 1: // a bit
			c = bytes.Clone(c)
			c[at%len(c)] ^= 1 << (at % 8)
			stream = append(stream, c...)
		case attack%6 == 2: // left out
		case attack%6 == 3: // twice
			stream = append(append(stream, c...), c...)
			safe += len(c) - chunkHead - chunkTag
		case attack%6 == 4 && len(more) > 0: // bytes in between
			stream = append(append(stream, more...), c...)
		case attack%6 == 5 && victim+1 < len(chunks): // after the next
			return append(append(append(stream, chunks[i+1]...), c...), bytes.Join(chunks[i+2:], nil)...), safe
		default:
			stream, safe = append(stream, c...), -1
		}
	}
	return stream, safe
}
