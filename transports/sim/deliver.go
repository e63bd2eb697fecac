package sim

import (
	"sync/atomic"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// news says which call of a sink a delivery is.
type news uint8

const (
	completed news = iota
	ready
	railUp
	railDown
	linkDown
	called
)

// delivery is one call of a sink that is waiting to be made.
type delivery struct {
	to         *Transport
	news       news
	completion transport.Completion
	info       transport.RailInfo
	rail       transport.Rail
	cause      *errs.Error
	do         func()
}

// emit puts a call of t's sink on its way. A stopped process gets it when it goes on.
func (t *Transport) emit(d delivery) {
	d.to = t
	if t.stopped {
		t.heldNews = append(t.heldNews, d)
		return
	}
	t.pending++
	t.network.out = append(t.network.out, d)
}

// mute is set when a process is killed: deliveries on their way to its sink go nowhere.
type mute struct{ atomic.Bool }

// completions gathers neighbours, so that a sink is called once for many slices.
type completions struct{ list []transport.Completion }

// deliver makes the calls of a list, in order. Only the network's deliverer calls it, without the mutex.
func (b *completions) deliver(list []delivery) {
	for i := 0; i < len(list); i++ {
		d := &list[i]
		if d.to.mute.Load() {
			continue
		}
		switch d.news {
		case completed:
			b.list = append(b.list[:0], d.completion)
			for i+1 < len(list) && list[i+1].news == completed && list[i+1].to == d.to {
				i++
				b.list = append(b.list, list[i].completion)
			}
			d.to.sink.Complete(b.list)
		case ready:
			d.to.sink.Ready(d.rail)
		case railUp:
			d.to.sink.RailUp(d.info)
		case railDown:
			d.to.sink.RailDown(d.rail, d.cause)
		case linkDown:
			d.to.sink.LinkDown(d.rail.Link, d.cause)
		case called:
			d.do()
		}
	}
	clear(b.list)
}
