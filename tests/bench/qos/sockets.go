package main

import (
	"errors"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/tests/bench/report"
	"github.com/tent-engine/tent/tests/forked"
)

// plainPair is two such actors, on the hosts of a world.
type plainPair struct {
	near, far *forked.Child
	address   string
	pace      int
}

func (w *world) newPlain() (p *plainPair, err error) {
	p = &plainPair{pace: int(w.rate * 90 / 100 / plainLanes)}
	host := "127.0.0.2"
	start := [2]func() (*forked.Child, error){func() (*forked.Child, error) { return forked.Start() },
		func() (*forked.Child, error) { return forked.Start() }}
	if w.Bed != nil {
		host, start = w.B.Addresses[0], [2]func() (*forked.Child, error){w.A.Start, w.B.Start}
	}
	if p.near, err = start[0](); err == nil {
		p.far, err = start[1]()
	}
	if err == nil {
		err = p.far.Call("Plain.Listen", PlainWork{Address: host, Pace: p.pace}, &p.address)
	}
	if err != nil {
		err = errors.Join(err, p.close())
	}
	return p, err
}

func (p *plainPair) close() (err error) {
	for _, c := range []*forked.Child{p.near, p.far} {
		if c != nil {
			err = errors.Join(err, c.Close())
		}
	}
	return err
}

// once does the work and returns its record.
func (p *plainPair) once(long time.Duration, work Work) ([]*Seen, error) {
	work.From = clock.Now().Add(settle)
	work.To = work.From.Add(long)
	seen, steal := &Seen{}, report.Steal{}
	steal.Share()
	err := p.near.Call("Plain.Run", PlainWork{work, p.address, p.pace}, seen)
	seen.Stolen = steal.Share()
	return []*Seen{seen}, err
}
