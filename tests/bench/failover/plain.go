package main

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/tests/forked"
)

// Plain does the same without tent, in a child. It has a stream over one connection, which the kernel may spread over
// several paths, and requests over several connections in turn.
type Plain struct {
	listener net.Listener
	received atomic.Uint64
}

// The first byte of a connection names its purpose.
const (
	forStream  = 's'
	forRequest = 'r'
)

// Listen takes connections at a host's address until the child ends.
func (p *Plain) Listen(host string, address *string) (err error) {
	config := net.ListenConfig{}
	config.SetMultipathTCP(true)
	if p.listener, err = config.Listen(context.Background(), "tcp", net.JoinHostPort(host, "0")); err != nil {
		return err
	}
	*address = p.listener.Addr().String()
	go func() {
		for {
			c, err := p.listener.Accept()
			if err != nil {
				return
			}
			go p.serve(c)
		}
	}()
	return nil
}

func (p *Plain) serve(c net.Conn) {
	defer func() { _ = c.Close() }()
	buffer := make([]byte, smallBytes)
	if _, err := io.ReadFull(c, buffer[:1]); err != nil {
		return
	}
	request := buffer[0] == forRequest
	for {
		if request {
			if _, err := io.ReadFull(c, buffer); err != nil {
				return
			}
			if _, err := c.Write(buffer[:1]); err != nil {
				return
			}
			continue
		}
		n, err := c.Read(buffer)
		p.received.Add(uint64(n))
		if err != nil {
			return
		}
	}
}

// Watch samples the bytes of streams that have arrived.
func (p *Plain) Watch(long time.Duration, trace *Trace) error {
	trace.Begin = clock.Now()
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for until := trace.Begin.Add(long); clock.Now() < until; <-tick.C {
		trace.Samples = append(trace.Samples, Sample{clock.Now(), p.received.Load()})
	}
	trace.End = clock.Now()
	return nil
}

// SendArgs describe a stream or requests.
type SendArgs struct {
	From, To []string // addresses of both ends of each connection
	For      time.Duration
	Every    time.Duration
	Burst    int
}

// Stream sends over one connection, over as many paths as the kernel has been told of, and says whether it could.
func (p *Plain) Stream(args SendArgs, multipath *bool) error {
	c, err := dialFrom(args.From[0], args.To[0], true, forStream)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	if *multipath, err = c.MultipathTCP(); err != nil || !*multipath {
		return err
	}
	if err := c.SetWriteDeadline(time.Now().Add(args.For)); err != nil {
		return err
	}
	buffer := make([]byte, 1<<20)
	for err == nil {
		_, err = c.Write(buffer)
	}
	if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
		return nil
	}
	return err
}

func dialFrom(from, to string, multipath bool, what byte) (*net.TCPConn, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: forked.Patience}
	d.SetMultipathTCP(multipath)
	c, err := d.Dial("tcp", to)
	if err != nil {
		return nil, err
	}
	tcp := c.(*net.TCPConn)
	_, err = tcp.Write([]byte{what})
	return tcp, err
}

// InTurn sends requests to its connections in turn and returns how long each took.
func (p *Plain) InTurn(args SendArgs, took *[]time.Duration) error {
	var work sync.WaitGroup
	var mu sync.Mutex
	var queues []chan clock.Time
	for i := range args.To {
		c, err := dialFrom(args.From[i], args.To[i], false, forRequest)
		if err != nil {
			return err
		}
		queue := make(chan clock.Time, 1<<12)
		queues = append(queues, queue)
		work.Go(func() {
			defer func() { _ = c.Close() }()
			buffer := make([]byte, smallBytes)
			for begin := range queue {
				if _, err := c.Write(buffer); err != nil {
					return
				}
				if _, err := io.ReadFull(c, buffer[:1]); err != nil {
					return
				}
				mu.Lock()
				*took = append(*took, clock.Now().Sub(begin))
				mu.Unlock()
			}
		})
	}
	tick := time.NewTicker(args.Every)
	defer tick.Stop()
	n := 0
	for until := clock.Now().Add(args.For); clock.Now() < until; <-tick.C {
		for range args.Burst {
			queues[n%len(queues)] <- clock.Now()
			n++
		}
	}
	for _, q := range queues {
		close(q)
	}
	work.Wait()
	return nil
}
