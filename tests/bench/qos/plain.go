package main

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/transport"
)

// Plain is an actor without an engine: the floor of moves beside a flood on these processors. It moves the bytes of a
// Work over plain sockets, with one thread for each connection and end, which blocks in the kernel. The flood has as
// many connections as a rail of tent for LOW, as many bytes a system call, and 0.9 of a limited rail, so that no queue
// grows. Each small request under way has its own connection.
type Plain struct{}

const (
	plainBytes = 512 << 10
	plainLanes = 2
	// A connection begins with one of these bytes.
	floodIn  = 'w' // bytes without end, for the listener
	floodOut = 'r' // the same from the listener
	smallIn  = 'W' // small requests for the listener, which answers each with a byte
	smallOut = 'R' // bytes, which the listener answers with a small request each
)

// PlainWork is Work with the address to listen on or to dial.
type PlainWork struct {
	Work
	Address string
	Pace    int // bytes/s of a connection of the flood, 0: no limit
}

// Listen serves the connections that come, each by a goroutine that ends with it.
func (*Plain) Listen(w PlainWork, address *string) error {
	l, err := net.Listen("tcp", net.JoinHostPort(w.Address, "0"))
	if err != nil {
		return err
	}
	*address = l.Addr().String()
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			go w.serve(c)
		}
	}()
	return nil
}

// blocking takes the socket away from Go's poller: a read or a write is one system call.
func blocking(c net.Conn) (*os.File, int, error) {
	f, err := c.(*net.TCPConn).File()
	if err := errors.Join(err, c.Close()); err != nil {
		return nil, -1, err
	}
	return f, int(f.Fd()), nil // which makes it block
}

func (w *PlainWork) serve(c net.Conn) {
	f, fd, err := blocking(c)
	if err != nil {
		return
	}
	defer func() { _ = f.Close() }()
	var kind, one [1]byte
	err = errors.Join(whole(unix.Read, fd, kind[:]), limit(fd, kind[0], w.Pace))
	for places := newPlaces(kind[0]); err == nil; {
		switch part := places.next(); kind[0] {
		case floodIn:
			err = whole(unix.Read, fd, part)
		case floodOut:
			err = whole(unix.Write, fd, part)
		case smallIn:
			err = errors.Join(whole(unix.Read, fd, part), whole(unix.Write, fd, one[:]))
		default: // smallOut
			err = errors.Join(whole(unix.Read, fd, one[:]), whole(unix.Write, fd, part))
		}
	}
}

// places are those of a connection's bytes, one after the other, as many as tent's.
type places struct {
	memory   []byte
	at, step int
}

func newPlaces(kind byte) *places {
	if kind == floodIn || kind == floodOut {
		return &places{make([]byte, floodBytes), 0, plainBytes}
	}
	return &places{make([]byte, smallsBytes), 0, smallBytes}
}

func (p *places) next() []byte {
	place := p.memory[p.at : p.at+p.step]
	p.at = (p.at + p.step) % len(p.memory)
	return place
}

// whole repeats a call until all bytes have passed.
func whole(call func(int, []byte) (int, error), fd int, b []byte) error {
	for len(b) > 0 {
		switch n, err := call(fd, b); {
		case err == unix.EINTR:
		case err != nil:
			return err
		case n == 0:
			return io.EOF
		default:
			b = b[n:]
		}
	}
	return nil
}

// limit bounds the rate at which the kernel sends bytes of a flood.
func limit(fd int, kind byte, pace int) (err error) {
	if pace > 0 && (kind == floodIn || kind == floodOut) {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, pace)
	}
	return err
}

func (w *PlainWork) dial(kind byte) (*os.File, int, error) {
	c, err := net.Dial("tcp", w.Address)
	if err != nil {
		return nil, -1, err
	}
	f, fd, err := blocking(c)
	if err == nil {
		err = errors.Join(whole(unix.Write, fd, []byte{kind}), limit(fd, kind, w.Pace))
	}
	return f, fd, err
}

// Run does the work and returns its record.
func (p *Plain) Run(w PlainWork, seen *Seen) error {
	var running sync.WaitGroup
	var flooded, next atomic.Int64
	failed := make(chan error, smallWorkers+plainLanes)
	var times []clock.Time
	if w.SmallEvery > 0 {
		times = arrivals(w.Work)
	}
	seen.Took, seen.Parts = make([]time.Duration, len(times)), make([]Parts, len(times))
	for range plainLanes * len(w.Floods) {
		running.Go(func() { failed <- w.flood(&flooded) })
	}
	for range min(smallWorkers, len(times)) {
		running.Go(func() { failed <- w.smalls(times, &next, seen) })
	}
	sleepUntil(w.From)
	before := flooded.Load()
	sleepUntil(w.To)
	seen.Flooded = []uint64{uint64(flooded.Load() - before)}
	running.Wait()
	close(failed)
	var err error
	for each := range failed {
		err = errors.Join(err, each)
	}
	return err
}

func (w *PlainWork) flood(flooded *atomic.Int64) error {
	kind, call := byte(floodIn), unix.Write
	if w.Op == transport.Read {
		kind, call = floodOut, unix.Read
	}
	f, fd, err := w.dial(kind)
	for places := newPlaces(kind); err == nil && clock.Now() < w.To; flooded.Add(plainBytes) {
		err = whole(call, fd, places.next())
	}
	return errors.Join(err, f.Close()) // of none: an error, too
}

// smalls makes small requests at their times, one after the other.
func (w *PlainWork) smalls(times []clock.Time, next *atomic.Int64, seen *Seen) error {
	kind := map[transport.Op]byte{transport.Write: smallIn, transport.Read: smallOut}[w.Op]
	f, fd, err := w.dial(kind)
	places := newPlaces(kind)
	for i := int(next.Add(1)) - 1; err == nil && i < len(times); i = int(next.Add(1)) - 1 {
		out, in := places.next(), make([]byte, 1)
		if kind == smallOut {
			out, in = in, out
		}
		sleepUntil(times[i])
		seen.Parts[i].Late = clock.Now().Sub(times[i])
		err = errors.Join(whole(unix.Write, fd, out), whole(unix.Read, fd, in))
		seen.Took[i] = clock.Now().Sub(times[i])
		seen.Parts[i].Way = seen.Took[i] - seen.Parts[i].Late
	}
	return errors.Join(err, f.Close())
}
