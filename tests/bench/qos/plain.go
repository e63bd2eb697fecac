package main

import (
	"errors"
	"net"

	"github.com/tent-engine/tent/tests/forked"
	"github.com/tent-engine/tent/tests/netbed"
)

// Plain is an actor without an engine: one end of a connection over loopback that is never idle. Small requests beside
// it wait for a processor and for nothing of tent's flood, which makes it a floor for those beside LOW.
type Plain struct{}

const plainBytes = 512 << 10 // a system call, as a lane of tent's flood moves at most

// Listen takes one connection and throws its bytes away.
func (*Plain) Listen(_ netbed.Nothing, address *string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	*address = l.Addr().String()
	go func() {
		c, err := l.Accept()
		for buffer := make([]byte, plainBytes); err == nil; {
			_, err = c.Read(buffer)
		}
	}()
	return nil
}

// Flood fills a connection until the process ends.
func (*Plain) Flood(address string, _ *netbed.Nothing) error {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	go func() {
		for buffer := make([]byte, plainBytes); err == nil; {
			_, err = c.Write(buffer)
		}
	}()
	return nil
}

// besidePlain does the work beside a flood of two such processes.
func besidePlain(do func() error) (err error) {
	var ends [2]*forked.Child
	for i := range ends {
		if ends[i], err = forked.Start(); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, ends[i].Close()) }()
	}
	var address string
	if err := ends[0].Call("Plain.Listen", netbed.Nothing{}, &address); err != nil {
		return err
	}
	if err := ends[1].Call("Plain.Flood", address, &netbed.Nothing{}); err != nil {
		return err
	}
	return do()
}
