package share

import (
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/qos"
)

// Device is one local NIC as this process and the others use it. It implements qos.Neighbours: its methods are for one
// goroutine at a time (the core is under the engine's mutex), and neither wait nor lock nor enter the kernel. Most
// calls touch only these fields; the file is written and read at most once a grain.
type Device struct {
	memory    *Memory
	name      string // in the file
	transport string
	nic       string
	at        atomic.Pointer[place] // nil while nothing is shared: then we are alone
	refused   bool                  // the keeper's: it was said that there is no room

	// The caller's.
	claimed [qos.Classes]clock.Time
	told    [qos.Classes]clock.Time // as published
	bytes   uint64                  // as published
	said    clock.Time              // when bytes were
	slot    int                     // as published
	seen    look                    // the others' rows, as read last
	looked  clock.Time              // when seen was read
}

var _ qos.Neighbours = (*Device)(nil)

// place is where a device is in a mapped file.
type place struct {
	base        uintptr
	row, device int
}

// grain is the interval in which a process writes and reads the words that change all the time. News are at most two
// grains old, and a claim may seem to end one grain sooner than it does.
func grain(interval time.Duration) clock.Time {
	return clock.Time(min(interval/16, 100*time.Microsecond))
}

// Claim implements qos.Neighbours.
func (d *Device) Claim(class int, until, now clock.Time) {
	d.claimed[class] = until
	if until-max(d.told[class], d.theirs(class)) < d.memory.grain {
		return // we have said it, or another process has, and the line is one for all
	}
	d.told[class] = until
	d.memory.stir()
	if p := d.at.Load(); p != nil && p.want(class, max(until-clock.Time(d.memory.slots.Interval), 1), now) != nil {
		d.lost(p)
	} else if slot := d.memory.slots.Current(now); p != nil && slot != d.slot {
		d.slot = slot
		if p.turn(slot) != nil {
			d.lost(p)
		}
	}
}

// Claimed implements qos.Neighbours.
func (d *Device) Claimed(class int, now clock.Time) clock.Time {
	d.look(now)
	return max(d.claimed[class], d.theirs(class))
}

// theirs is until when the claim of a class is that the file had when it was read last.
func (d *Device) theirs(class int) clock.Time {
	if wanted := d.seen.wanted[class]; wanted != 0 {
		return wanted + clock.Time(d.memory.slots.Interval)
	}
	return 0
}

// Carries implements qos.Neighbours. That there is something in flight, or nothing any more, is published at once.
func (d *Device) Carries(bytes uint64, now clock.Time) {
	if now-d.said < d.memory.grain && (bytes == 0) == (d.bytes == 0) {
		return
	}
	d.bytes, d.said = bytes, now
	d.memory.stir()
	if p := d.at.Load(); p != nil && p.carry(bytes, now) != nil {
		d.lost(p)
	}
}

// Others implements qos.Neighbours.
func (d *Device) Others(now clock.Time) uint64 {
	d.look(now)
	return d.seen.others
}

func (d *Device) look(now clock.Time) {
	if now-d.looked < d.memory.grain {
		return
	}
	d.looked = now
	p := d.at.Load()
	if p == nil {
		d.seen = look{}
	} else if p.read(&d.seen, now) != nil {
		d.lost(p)
	}
}

// lost is called when the file was not there: it was cut short, or has just been left. The keeper finds out which.
func (d *Device) lost(p *place) {
	d.seen = look{}
	d.at.CompareAndSwap(p, nil)
	d.memory.poke()
}

// want writes when a class was last wanted, unless another process claims slots for longer.
func (p *place) want(class int, last, now clock.Time) (fault *mem.Fault) {
	defer mem.Guard(&fault, debug.SetPanicOnFault(true))
	at := word(p.base, deviceAt(p.device)+atWanted+class*8)
	for old := atomic.LoadUint64(at); believed(clock.Time(old), now) < last; old = atomic.LoadUint64(at) {
		if atomic.CompareAndSwapUint64(at, old, uint64(last)) {
			break
		}
	}
	return nil
}

// turn writes the slot for people and tools that look at the file. Nobody depends on it.
func (p *place) turn(slot int) (fault *mem.Fault) {
	defer mem.Guard(&fault, debug.SetPanicOnFault(true))
	at := word(p.base, atVersion)
	if old := atomic.LoadUint64(at); uint32(old) == version { // else it is not ours any more
		atomic.CompareAndSwapUint64(at, old, versionWord(slot))
	}
	return nil
}

func (p *place) carry(bytes uint64, now clock.Time) (fault *mem.Fault) {
	defer mem.Guard(&fault, debug.SetPanicOnFault(true))
	at := cellAt(p.row, p.device)
	store(p.base, at, bytes)
	store(p.base, at+8, uint64(now))
	return nil
}

func (p *place) read(l *look, now clock.Time) (fault *mem.Fault) {
	defer mem.Guard(&fault, debug.SetPanicOnFault(true))
	l.read(p.base, p.device, p.row, now)
	return nil
}
