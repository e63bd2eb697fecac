package tcp

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/transport"
)

// asker is a peer that has a lane of a responder and reads it only when the test says so.
type asker struct {
	*testing.T
	fd   int
	lane *responderLane
	key  uint64 // of the region that it reads
	seq  uint64
	got  []byte
}

// newAsker makes a responder with a region and a lane; its socket holds next to nothing.
func newAsker(t *testing.T, s Settings, memory []byte) *asker {
	tr := newTestEndpoint(t, s).tr.(*Transport)
	key, _, err := tr.Register(context.Background(), regionOf(memory))
	require.NoError(t, err)
	stopWorkers(t, tr) // for good: the test has the responder's turns
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, unix.SetsockoptInt(fds[0], unix.SOL_SOCKET, unix.SO_SNDBUF, 4096))
	t.Cleanup(func() { _ = unix.Close(fds[1]) })
	l := tr.newResponderLane(fds[0], netip.Addr{})
	l.mayBuffer(nil, nil)
	require.NoError(t, l.register())
	return &asker{T: t, fd: fds[1], lane: l, key: uint64(key)}
}

// ask has the responder queue READs of these lengths, each of the bytes behind the one before.
func (a *asker) ask(class uint32, lengths ...uint32) {
	x := &a.lane.rx
	x.takeBuffers()
	x.head, x.table = header{kind: kindRead, seq: a.seq + 1}, x.table[:0]
	for _, n := range lengths {
		a.seq++
		x.table = append(x.table, record{id: a.key, offset: a.seq << 20, length: n, classOrSum: class})
	}
	require.Nil(a, a.lane.readsCame())
	a.lane.pump(workerBudget)
}

// part is the share of a READ that a frame brings.
type part struct {
	seq    uint64
	at     uint64
	length uint32
}

// read takes everything that the responder sends, in frames.
func (a *asker) read() (frames [][]part) {
	b := make([]byte, 64<<10)
	for idle := 0; idle < 2; {
		n, err := unix.Read(a.fd, b)
		if err == unix.EAGAIN {
			idle++ // once more, after the responder had its turn
			a.lane.dirty.Store(true)
			a.lane.pump(workerBudget)
			continue
		}
		require.NoError(a, err)
		require.Positive(a, n)
		idle = 0
		a.got = append(a.got, b[:n]...)
	}
	return a.frames()
}

// next takes one frame, and leaves those behind it to the responder.
func (a *asker) next() []part {
	a.take(headerBytes)
	h := getHeader(a.got)
	a.take(headerBytes + int(h.count)*recordBytes + int(h.length) + headerBytes)
	return a.frames()[0]
}

// take reads on until got has n bytes.
func (a *asker) take(n int) {
	for b := make([]byte, n); len(a.got) < n; {
		k, err := unix.Read(a.fd, b[:n-len(a.got)])
		if err == unix.EAGAIN {
			a.lane.dirty.Store(true)
			a.lane.pump(workerBudget)
			continue
		}
		require.NoError(a, err)
		require.Positive(a, k)
		a.got = append(a.got, b[:k]...)
	}
}

func (a *asker) frames() (frames [][]part) {
	for len(a.got) > 0 {
		h := getHeader(a.got)
		require.Equal(a, kindData, h.kind)
		var frame []part
		for i := range int(h.count) {
			r := getRecord(a.got[headerBytes+i*recordBytes:])
			frame = append(frame, part{r.id, r.offset, r.length})
		}
		payload := a.got[headerBytes+int(h.count)*recordBytes:]
		for _, p := range frame {
			for i := range uint64(p.length) {
				if payload[i] != patternAt(p.seq<<20+p.at+i) {
					require.Fail(a, "wrong byte", "READ %d at %d", p.seq, p.at+i)
				}
			}
			payload = payload[p.length:]
		}
		require.Equal(a, header{kind: kindServed}, getHeader(payload))
		a.got = payload[headerBytes:]
		frames = append(frames, frame)
	}
	return frames
}

// patternAt is the byte of mapping at an offset.
func patternAt(i uint64) byte { return byte(i*31 + i>>12) }

// The peer does not read while LOW is being served. More urgent READs that come then go behind the frame under way,
// in order of classes.
func TestAResponderServesReadsByClass(t *testing.T) {
	const kib = 1 << 10
	a := newAsker(t, Settings{}, mapping(t, 9<<20))
	a.ask(2, 1<<20)
	a.ask(1, 300*kib)
	a.ask(0, 64*kib)
	a.ask(2, 4*kib)
	a.ask(0, 64*kib, 4*kib)
	require.Equal(t, [][]part{
		{{1, 0, 256 * kib}}, // was under way
		{{3, 0, 64 * kib}, {5, 0, 64 * kib}, {6, 0, 4 * kib}},
		{{2, 0, 256 * kib}},
		{{2, 256 * kib, 44 * kib}},
		{{1, 256 * kib, 256 * kib}},
		{{1, 512 * kib, 256 * kib}},
		{{1, 768 * kib, 256 * kib}},
		{{4, 0, 4 * kib}},
	}, a.read())

	// In the middle of a frame again, and of the last one of a long READ.
	a.ask(1, 257*kib)
	a.ask(0, kib)
	require.Equal(t, [][]part{{{7, 0, 256 * kib}}, {{8, 0, kib}}, {{7, 256 * kib, kib}}}, a.read())
}

// An initiator asks for more as soon as a part of a READ has come. It keeps to the credit then, too.
func TestAPeerMayAskForAsMuchAsItHasReceived(t *testing.T) {
	const credit, asks = 512 << 10, 12
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	a := newAsker(t, Settings{CreditBytes: credit, SliceBytes: credit}, mapping(t, (asks+2)<<20))
	due := 0
	for range asks {
		n := credit - due
		if r.IntN(4) == 0 {
			n = 1 + r.IntN(n)
		}
		a.ask(r.Uint32N(classCount), uint32(n))
		for due += n; due == credit || r.IntN(3) == 0 && due > 0; {
			for _, p := range a.next() {
				due -= int(p.length)
			}
		}
	}
	a.read()
	a.ask(0, credit) // one frame is under way, and the rest of it is refused
	a.lane.mu.Lock()
	refused := a.lane.reads.refuse(a.seq)
	a.lane.mu.Unlock()
	require.True(t, refused)
	a.next()
	a.take(headerBytes)
	require.Equal(t, kindNack, getHeader(a.got).kind)
	a.lane.mu.Lock()
	left := a.lane.reads.bytes
	a.lane.mu.Unlock()
	require.Zero(t, left)
}

func TestSmallSlicesOfHighHaveALaneOfTheirOwnInBothDirections(t *testing.T) {
	s := Settings{Lanes: 1}
	owner := newTestEndpoint(t, s)
	_, d, err := owner.tr.Register(context.Background(), regionOf(mapping(t, 64<<10)))
	require.NoError(t, err)
	c := newClient(t, Settings{Lanes: 1, Addresses: []string{"127.0.0.1"}}, owner.self, d)
	for class := range uint8(3) {
		for _, op := range []transport.Op{transport.Read, transport.Write} {
			c.send(t, op, class, 0, int(class))
		}
	}
	c.served(t, 6)
	for _, tr := range []*Transport{c.tr.(*Transport), owner.tr.(*Transport)} {
		high, epolls := 0, map[int]int{}
		for _, c := range tr.conns.All() {
			c.armMu.Lock()
			epolls[c.epfd]++
			high += int(1 - c.group)
			c.armMu.Unlock()
		}
		require.Equal(t, 1, high)
		require.Equal(t, map[int]int{tr.epfd: 1, tr.bulkFd: 1}, epolls)
	}
}
