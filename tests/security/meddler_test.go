package security

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"regexp"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Sizes of the wire, as docs/design/tcp-wire.md has them.
const (
	sizeOfHello, sizeOfProof, sizeOfChallenge = 16 + 72, 16 + 32, 16 + 64
	headOfChunk, mostOfChunk, tagOfChunk      = 4, 64 << 10, 16
)

// meddler is on the path of lanes: it hears all of their bytes, and makes its attack once.
type meddler struct {
	listener net.Listener
	wait     sync.WaitGroup
	attack   *meddling // nil: it only hears

	// An owner's words of a lane stop behind this number of bytes, 0: never, until resumed is closed.
	most             int
	stopped, resumed chan struct{}
	stop, resume     sync.Once

	mu       sync.Mutex
	owner    string // its data port
	streams  []*stream
	attacked bool
}

// stream is a direction of a lane, as it was heard.
type stream struct {
	*meddler
	initiators bool
	heard      bytes.Buffer
}

// Write keeps the bytes that were heard.
func (s *stream) Write(b []byte) (int, error) {
	s.mu.Lock()
	n, err := s.heard.Write(b)
	halt := s.most > 0 && !s.initiators && s.heard.Len() > s.most
	s.mu.Unlock()
	if halt {
		s.stop.Do(func() { close(s.stopped) })
		<-s.resumed
	}
	return n, err
}

// stopAfter makes the owner's words of each lane stop behind n bytes, until goOn. It is called before any lane.
func (m *meddler) stopAfter(n int) {
	m.most, m.stopped, m.resumed = n, make(chan struct{}), make(chan struct{})
}

func (m *meddler) goOn() { m.resume.Do(func() { close(m.resumed) }) }

// heardOf reports whether some bytes have passed anywhere.
func (m *meddler) heardOf(b []byte) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.ContainsFunc(m.streams, func(s *stream) bool { return bytes.Contains(s.heard.Bytes(), b) })
}

// listen keeps the bytes that are read.
func (m *meddler) listen(from io.Reader, initiators bool) io.Reader {
	s := &stream{meddler: m, initiators: initiators}
	m.mu.Lock()
	m.streams = append(m.streams, s)
	m.mu.Unlock()
	return io.TeeReader(from, s)
}

// said returns copies of all that initiators have said so far, a lane each.
func (m *meddler) said() (list [][]byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.streams {
		if s.initiators {
			list = append(list, bytes.Clone(s.heard.Bytes()))
		}
	}
	return list
}

// meddling is done on full chunks, which are those of payload. It waits for the sixth of a stream, and says something
// else in place of the fifth and the sixth.
type meddling struct {
	name string
	// instead returns the bytes of the meddler, and whether the stream ends behind them.
	instead func(fourth, fifth, sixth []byte) (said []byte, end bool)
}

func newMeddler(t *testing.T, a *meddling) *meddler {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	m := &meddler{listener: l, attack: a}
	m.wait.Go(func() {
		for {
			initiator, err := l.Accept()
			if err != nil {
				return
			}
			m.wait.Go(func() { m.stand(initiator) })
		}
	})
	t.Cleanup(func() { // behind the transports, which end their connections
		_ = l.Close()
		if m.most > 0 {
			m.goOn()
		}
		m.wait.Wait()
	})
	return m
}

// Call leads the lanes of an offer through the meddler.
func (m *meddler) Call(answer []byte) []byte {
	return regexp.MustCompile(`127\.0\.0\.1:\d{5}`).ReplaceAllFunc(answer, func(port []byte) []byte {
		m.mu.Lock()
		m.owner = string(port)
		m.mu.Unlock()
		return []byte(m.listener.Addr().String()) // as long as the other: both ports have five digits
	})
}

// stand carries a lane in both directions until one of them ends.
func (m *meddler) stand(initiator net.Conn) {
	m.mu.Lock()
	owner := m.owner
	m.mu.Unlock()
	responder, err := net.Dial("tcp", owner)
	if err != nil {
		_ = initiator.Close()
		return
	}
	if m.most > 0 {
		_ = responder.(*net.TCPConn).SetReadBuffer(64 << 10) // else the kernel takes megabytes that nobody reads
	}
	m.wait.Go(func() {
		m.carry(initiator, m.listen(responder, false), sizeOfChallenge)
		_, _ = initiator.Close(), responder.Close()
	})
	m.carry(responder, m.listen(initiator, true), sizeOfHello+sizeOfProof)
	_, _ = initiator.Close(), responder.Close()
}

// carry passes the bytes of a direction on, behind its handshake chunk by chunk if there is an attack.
func (m *meddler) carry(to io.Writer, from io.Reader, handshake int64) {
	if m.attack == nil {
		_, _ = io.Copy(to, from)
		return
	}
	if _, err := io.CopyN(to, from, handshake); err != nil {
		return
	}
	var full [][]byte // so far; the fifth waits for the sixth
	for {
		chunk := make([]byte, headOfChunk, headOfChunk+mostOfChunk+tagOfChunk)
		if _, err := io.ReadFull(from, chunk); err != nil {
			return
		}
		chunk = chunk[:headOfChunk+int(binary.LittleEndian.Uint32(chunk))+tagOfChunk]
		if _, err := io.ReadFull(from, chunk[headOfChunk:]); err != nil {
			return
		}
		if len(chunk) == cap(chunk) {
			full = append(full, chunk)
		}
		said, end := chunk, false
		switch n := len(full); {
		case n == 5 && len(chunk) == cap(chunk):
			continue
		case n == 6 && m.first():
			said, end = m.attack.instead(full[3], full[4], full[5])
		case n == 6 && len(chunk) == cap(chunk):
			said = append(full[4], chunk...)
		}
		if _, err := to.Write(said); err != nil || end {
			return
		}
	}
}

// first reports whether nobody has attacked before, and takes the attack.
func (m *meddler) first() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	was := m.attacked
	m.attacked = true
	return !was
}

// hears reports whether some of the bytes, 16 in a row, have passed as they are.
func (m *meddler) hears(b []byte) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.streams {
		for at := 0; at+16 <= len(b); at += 16 << 10 {
			if bytes.Contains(s.heard.Bytes(), b[at:at+16]) {
				return true
			}
		}
	}
	return false
}
