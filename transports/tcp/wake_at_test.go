package tcp

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/transport"
)

// packets is a responder's lane over a real TCP connection. The test sends its packets and has the reader's turns.
type packets struct {
	pairLane
	t      *testing.T
	memory []byte
	key    transport.LocalKey
	seq    uint64   // of the last slice
	out    *sealing // of the test, nil: the lane is not protected
	w      *worker
	sent   int
	came   int
	turns  int // of the reader
}

func newPackets(t *testing.T, size int, s shield) *packets {
	fd, peer := connection(t)
	return newPacketsOver(t, fd, peer, size, s)
}

// newPacketsOver is newPackets over a connection of its caller.
func newPacketsOver(t *testing.T, fd, peer, size int, s shield) *packets {
	tr := newTestEndpoint(t, Settings{}).tr.(*Transport)
	memory := mapping(t, size)
	region, _, err := tr.Register(context.Background(), regionOf(memory))
	require.NoError(t, err)
	stopWorkers(t, tr) // for good
	p := &packets{pairLane: pairLane{tr.newResponderLane(fd, netip.Addr{}), peer}, t: t, memory: memory,
		key: region, w: tr.newWorker()}
	t.Cleanup(p.closeLane)
	a, refused := tr.attachments.issue(visitor, version, s)
	require.Nil(t, refused)
	_, _, refused = tr.attachments.expect(p.responderLane, a.id, 1)
	require.Nil(t, refused)
	key, seen := secret{6}, handshake(1)
	p.mayBuffer(seen.protect(&key, s, byResponder))
	require.Nil(t, tr.attachments.admit(p.responderLane, a))
	if s.seals() {
		out := seen.sealing(&key, s, byInitiator)
		p.out = &out
	}
	return p
}

// connection is a TCP connection over loopback. Its first end does not block.
func connection(t *testing.T) (fd, peer int) {
	listener, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(listener)
	require.NoError(t, unix.Bind(listener, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	require.NoError(t, unix.Listen(listener, 1))
	address, err := unix.Getsockname(listener)
	require.NoError(t, err)
	peer, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Close(peer) })
	require.NoError(t, unix.Connect(peer, address))
	require.NoError(t, unix.SetsockoptInt(peer, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1))
	fd, _, err = unix.Accept4(listener, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
	require.NoError(t, err)
	return fd, peer
}

// send sends a packet. The reader has a turn if the kernel reports the socket within some milliseconds.
func (p *packets) send(packet []byte, within int) (turn bool) {
	n, err := unix.Write(p.other, packet)
	require.NoError(p.t, err)
	p.sent += n
	return p.turn(within)
}

func (p *packets) turn(within int) bool {
	set := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}
	n, err := unix.Poll(set, within)
	if err == unix.EINTR || n == 0 {
		return false
	}
	require.NoError(p.t, err)
	p.turns++
	p.readMu.Lock()
	defer p.readMu.Unlock()
	came, open := p.drain(p.w, workerBudget)
	require.True(p.t, open)
	p.came += came
	return true
}

func (p *packets) asked() int {
	n, err := unix.GetsockoptInt(p.fd, unix.SOL_SOCKET, unix.SO_RCVLOWAT)
	require.NoError(p.t, err)
	return n
}

// frame is a WRITE to the begin of the region, with its payload.
func (p *packets) frame(seed byte, slices ...int) (frame, payload []byte) {
	total, records := 0, []record(nil)
	for _, n := range slices {
		records = append(records, record{id: uint64(p.key), offset: uint64(total), length: uint32(n)})
		total += n
	}
	payload = make([]byte, total)
	for i := range payload {
		payload[i] = seed + byte(i*7) + byte(i>>8)
	}
	frame = appendFrame(nil, header{kind: kindWrite, length: uint32(total), seq: p.seq + 1}, records...)
	p.seq += uint64(len(slices))
	return append(frame, payload...), payload
}

func TestAReaderIsWokenForMuchPayloadOrTheRestOfIt(t *testing.T) {
	p := newPackets(t, 1<<20, shield{})
	frame, payload := p.frame(1, 50_000, 80_000)
	head := len(frame) - len(payload)
	require.True(t, p.send(frame[:head+1000], 10_000))
	require.Equal(t, wakeBytes, p.asked())
	require.False(t, p.send(frame[head+1000:head+wakeBytes], 0), "1000 bytes less than that")
	require.True(t, p.send(frame[head+wakeBytes:head+wakeBytes+1000], 10_000))
	require.Equal(t, len(payload)-wakeBytes-1000, p.asked(), "the rest")
	require.False(t, p.send(frame[head+wakeBytes+1000:len(frame)-1], 0))
	require.True(t, p.send(frame[len(frame)-1:], 10_000))
	require.Equal(t, payload, p.memory[:len(payload)])
	require.Equal(t, 1, p.asked(), "a header is short")
	require.Equal(t, 3, p.turns)

	frame, payload = p.frame(2, 60_000)
	require.True(t, p.send(frame[:45_000], 10_000))
	require.Equal(t, 1, p.asked(), "where much comes at once the kernel is not asked for more")
	require.True(t, p.send(frame[45_000:], 10_000))
	require.Equal(t, payload, p.memory[:len(payload)])
}

// A chunk is of no use before it is whole.
func TestAReaderIsWokenForTheRestOfAChunk(t *testing.T) {
	p := newPackets(t, 1<<20, shields[0])
	frame, payload := p.frame(1, 40_000)
	chunk := chunkOf(p.out, frame)
	require.True(t, p.send(chunk[:1000], 10_000))
	require.Equal(t, len(chunk)-1000, p.asked())
	require.False(t, p.send(chunk[1000:len(chunk)-1], 0))
	require.True(t, p.send(chunk[len(chunk)-1:], 10_000))
	require.Equal(t, payload, p.memory[:len(payload)])
	require.Equal(t, 1, p.asked())
}

// TestNoPayloadIsWaitedForInVain cuts frames at random places. Each time the reader has its turn when the kernel says
// so, and never else.
func TestNoPayloadIsWaitedForInVain(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for i, s := range append([]shield{{}}, shields...) {
		t.Run(s.String(), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, uint64(i)))
			p := newPackets(t, 1<<20, s)
			for n := range 60 {
				p.survives(random, byte(n))
			}
		})
	}
}

// survives sends a frame of random slices, in random packets and chunks, until it has landed.
func (p *packets) survives(random *rand.Rand, n byte) {
	var slices []int
	for range 1 + random.IntN(4) {
		slices = append(slices, 1+random.IntN(100_000))
	}
	stream, payload := p.frame(n, slices...)
	if p.out != nil {
		plain := stream
		stream = nil
		for len(plain) > 0 {
			k := min(len(plain), 1+random.IntN(chunkMost))
			stream = append(stream, chunkOf(p.out, plain[:k])...)
			plain = plain[k:]
		}
	}
	most := 1 + random.IntN(3*wakeBytes)
	for len(stream) > 0 {
		k := min(len(stream), 1+random.IntN(most))
		p.send(stream[:k], 0)
		stream = stream[k:]
	}
	for p.came < p.sent {
		require.True(p.t, p.turn(10_000), "frame %d: nothing is reported, and payload is missing", n)
	}
	require.Equal(p.t, payload, p.memory[:len(payload)], "frame %d", n)
	require.Equal(p.t, 1, p.asked())
}
