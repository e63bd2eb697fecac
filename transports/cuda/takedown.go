package cuda

import (
	"sync"
	"time"
)

// takedown takes the mappings of a link down, one after the other, on a goroutine of its own while there are some. The
// driver does so behind the work of all streams. One of the program's may wait for a transfer that needs this link. So
// no lock of plans and imports is held meanwhile (docs/design/decisions/0209).
type takedown struct {
	mu    sync.Mutex
	waits []func()
	over  chan struct{} // closed when none is left; nil: none is
}

// takedownSoon is how long a caller waits for a mapping, which usually takes microseconds.
const takedownSoon = 20 * time.Millisecond

// add lets a function run behind those of before. The channel is closed when all have returned.
func (d *takedown) add(f func()) (over <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waits = append(d.waits, f)
	if d.over == nil {
		d.over = make(chan struct{})
		go d.run() // the link's end waits for it
	}
	return d.over
}

func (d *takedown) run() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(d.waits) > 0 {
		f := d.waits[0]
		d.waits = d.waits[1:]
		d.mu.Unlock()
		f()
		d.mu.Lock()
	}
	close(d.over)
	d.waits, d.over = nil, nil
}

// soon is add, and usually returns behind the function.
func (d *takedown) soon(f func()) {
	timer := time.NewTimer(takedownSoon)
	defer timer.Stop()
	select {
	case <-d.add(f):
	case <-timer.C:
	}
}

// wait returns when all functions have.
func (d *takedown) wait() {
	d.mu.Lock()
	over := d.over
	d.mu.Unlock()
	if over != nil {
		<-over
	}
}
