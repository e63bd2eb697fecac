package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/rpc"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/forked"
	"github.com/tent-engine/tent/tests/netbed"
)

const (
	floodBytes  = 64 << 20 // of a request
	floodDepth  = 2        // so that there is a next one when one ends
	smallsBytes = smallPlaces * smallBytes
	regionBytes = floodDepth*floodBytes + smallsBytes
)

// place is where engines meet: one rail of a rate between two hosts of a test bed, or loopback.
type place struct {
	name string
	rate uint64 // bytes/s, 0 for as fast as the machine is
	bed  bool
	high uint64 // 5 % of the rail's assumed rate where it is not limited, in bytes/s
	fast bool   // processors are the limit, so plain sockets take turns there
}

// every is the interval at which small requests take at most a twentieth of the rail.
func (p place) every() time.Duration {
	rate := float64(p.high)
	if p.rate > 0 {
		rate = float64(p.rate) / 20
	}
	return time.Duration(smallBytes / rate * float64(time.Second))
}

// burst is how much a limited rail lets pass at once behind a pause. It is a tenth of a millisecond, or alone a small
// request would be as fast as the rail is without a limit; but enough for the timer of the limit to keep the rate.
func (p place) burst() uint32 { return uint32(max(p.rate/10_000, 8<<10)) }

// world is a place with pairs of engines.
type world struct {
	place
	*netbed.Bed // nil on loopback
	pairs       []*pair
}

// pair is an engine that asks and, in another process, the engine that it asks.
type pair struct {
	near, far *forked.Child
	seed      uint64
}

// newWorld makes a place and as many pairs.
func newWorld(p place, pairs int, settings map[string]string) (_ *world, err error) {
	w := &world{place: p}
	if p.bed {
		if w.Bed, err = netbed.New(1); err != nil {
			return nil, err
		}
		if err = w.Rails[0].LimitBurst(p.rate, p.burst()); err != nil {
			w.Bed.Close()
			return nil, err
		}
	}
	for i := range pairs {
		if err := w.add(uint64(i+1)<<32, settings); err != nil {
			w.close()
			return nil, err
		}
	}
	return w, nil
}

// add starts a pair. Its seeds are those from the given one on.
func (w *world) add(seed uint64, settings map[string]string) (err error) {
	p := &pair{seed: seed}
	w.pairs = append(w.pairs, p)
	var address string
	if p.far, address, err = w.start(2, settings); err != nil {
		return err
	}
	if p.near, _, err = w.start(1, settings); err != nil {
		return err
	}
	return p.near.Call("Load.Connect", address, &forked.Nothing{})
}

// start starts an engine in a process of its own, on one of the two hosts.
func (w *world) start(host int, settings map[string]string) (c *forked.Child, address string, err error) {
	args := netbed.OpenArgs{Bytes: regionBytes}
	if w.Bed != nil {
		h := []*netbed.Host{w.A, w.B}[host-1]
		args.Settings = h.Settings()
		c, err = h.Start()
	} else {
		list, _ := json.Marshal([]string{fmt.Sprintf("127.0.0.%d", host)}) // cannot fail
		args.Settings = map[string]string{"transports/tcp/addresses": string(list), "transports/shm/enable": "false"}
		c, err = forked.Start()
	}
	if err != nil {
		return nil, "", err
	}
	maps.Copy(args.Settings, settings)
	err = c.Call("Load.Open", args, &address)
	return c, address, err
}

func (w *world) close() {
	for _, p := range w.pairs {
		for _, c := range []*forked.Child{p.near, p.far} {
			if c != nil {
				_ = c.Call("Load.Close", forked.Nothing{}, &[]string{})
				_ = c.Close()
			}
		}
	}
	if w.Bed != nil {
		w.Bed.Close()
	}
}

// A job is work that a pair has begun.
type job struct {
	pair *pair
	call *rpc.Call
	seen *Seen
}

func (p *pair) begin(work Work) job {
	seen := &Seen{}
	return job{p, p.near.Begin("Load.Run", work, seen), seen}
}

// calm is the share of its time that a virtual machine may lose to its host while something counts.
const calm = 0.03

// together makes pairs work at the same time and returns their records; done collects the places that were moved whole.
// A run in which the machine did not get its time is repeated, a few times, behind a rest: a host that limits the
// average gives more then.
func (w *world) together(long time.Duration, done [][]Place, works ...Work) ([]*Seen, error) {
	return calmly(func() ([]*Seen, error) { return w.once(long, done, works...) })
}

func calmly(once func() ([]*Seen, error)) (all []*Seen, err error) {
	for rest := time.Second; rest <= 4*time.Second; rest *= 2 {
		if all, err = once(); err != nil || all[0].Stolen <= calm {
			break
		}
		<-time.After(rest)
	}
	return all, err
}

func (w *world) once(long time.Duration, done [][]Place, works ...Work) ([]*Seen, error) {
	from := clock.Now().Add(settle)
	var jobs []job
	for i, work := range works {
		work.From, work.To = from, from.Add(long)
		jobs = append(jobs, w.pairs[i].begin(work))
	}
	var all []*Seen
	var failed error
	for i, j := range jobs {
		failed = errors.Join(failed, j.pair.near.End(j.call))
		all = append(all, j.seen)
		done[i] = joined(append(done[i], j.seen.Done...))
	}
	return all, failed
}

// settle is the time until the rates of rails are known and buffers are as full as they become.
const settle = 300 * time.Millisecond

// fill gives both regions fresh patterns, which differ.
func (p *pair) fill() error {
	p.seed += 2
	return errors.Join(p.near.Call("Load.Fill", p.seed, &forked.Nothing{}),
		p.far.Call("Load.Fill", p.seed+1, &forked.Nothing{}))
}

// verify looks at every byte: places that were moved whole hold the source's bytes, the rest the source's or the old
// ones. Then it overwrites the destination and looks again: late bytes would show.
func (p *pair) verify(op transport.Op, done []Place) error {
	source, target, mine, before := p.near, p.far, p.seed, p.seed+1
	if op == transport.Read {
		source, target, mine, before = target, source, before, mine
	}
	check := func(c *forked.Child, args netbed.PartArgs) error {
		return c.Call("Load.CheckPart", args, &forked.Nothing{})
	}
	failed := check(source, netbed.PartArgs{Seed: mine, Bytes: regionBytes})
	at := uint64(0)
	for _, d := range append(done, Place{regionBytes, 0}) {
		failed = errors.Join(failed, check(target,
			netbed.PartArgs{Seed: mine, Or: before, Offset: at, Bytes: d.Offset - at}),
			check(target, netbed.PartArgs{Seed: mine, Offset: d.Offset, Bytes: d.Bytes}))
		at = d.Offset + d.Bytes
	}
	failed = errors.Join(failed, target.Call("Load.Fill", before, &forked.Nothing{}),
		check(target, netbed.PartArgs{Seed: before, Bytes: regionBytes}))
	if failed != nil {
		return fmt.Errorf("wrong, lost or late bytes: %w", failed)
	}
	return nil
}
