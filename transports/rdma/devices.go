package rdma

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// Devices come and go while transfers run.
//
//	open ──an event, or no longer there──▶ lost: its rails are down, its queue pairs and keys go
//	  ▲                                       │ nothing of it is left
//	  └──listed again: opened anew ── given ◀─┘
//
// A device that comes gets an index, or that of the lost device with its name. Then regions are registered with it, and
// only then peers may connect. A NIC that is back may give a key of before to other memory. So the descriptors of all
// regions are replaced first: a peer with one of before is refused, or has lost its queue pairs (tell).

// nics returns the devices by their index, also lost ones.
func (t *Transport) nics() []*device { return *t.devices.Load() }

// scan looks for devices that came and for those that went without an event, until the transport closes.
func (t *Transport) scan() {
	tick := time.NewTicker(t.settings.Scan)
	defer tick.Stop()
	for {
		select {
		case <-t.ctx.Done():
			return
		case <-tick.C:
		}
		names, err := t.library.Devices()
		for _, d := range t.nics() {
			if d.gone(slices.Contains(names, d.name), err) {
				d.lose(errs.New(errs.Lost, Name, "%s was removed", d.name).WithScope(errs.ScopeRail, errs.SideLocal))
			}
		}
		for _, name := range t.settings.chosen(names) {
			if index := t.vacant(name); index >= 0 {
				t.appear(index, name)
			}
		}
		t.stay()
		t.sweep()
	}
}

// gone reports whether a device is not there any more, after a look at the list of devices. One that is not listed may
// be there: the look fails where no descriptor is left. So its open context is asked. A second look that lacks it is
// enough: it has another name.
func (d *device) gone(listed bool, failed error) bool {
	missed := d.missed
	d.missed = !listed && failed == nil
	if listed || !d.use() {
		return false
	}
	defer d.unuse()
	return d.dead() || missed && d.missed
}

// vacant returns the index for a device of a name, -1 if it is open or there is no room.
func (t *Transport) vacant(name string) int {
	list := t.nics()
	for i, d := range list {
		switch {
		case d.name != name:
		case d.given.Load():
			return i
		default:
			return -1
		}
	}
	if len(list) == devicesMax {
		return -1
	}
	return len(list)
}

// appear takes a device into use. One that cannot be opened is tried again at the next scan.
func (t *Transport) appear(index int, name string) {
	d, err := t.openDevice(index, name)
	if err != nil {
		return
	}
	t.changing.Lock()
	before := t.nics()
	list := slices.Clone(before)
	returns := index < len(before)
	if returns {
		list[index] = d
	} else {
		list = append(list, d)
	}
	t.renewAll(list, returns)
	d.listenAndAttend()
	t.devices.Store(&list)
	t.changes.Add(1)
	t.renewAll(nil, false) // regions that came meanwhile
	t.changing.Unlock()
	t.host.Log().Info("rdma: a device came", "device", name)
	for _, l := range t.links.All() {
		l.grow(nil)
	}
	for _, g := range t.guests.all(transport.ID{}) {
		t.life.Go(func() {
			ctx, cancel := context.WithTimeout(t.ctx, silence)
			defer cancel()
			_, _ = t.host.Call(ctx, g.peer, message(kindDevices, g.key.link)) // one that is silent goes on without
		})
	}
}

// renewAll renews the keys of all regions, some side by side. The caller holds changing.
func (t *Transport) renewAll(list []*device, replace bool) {
	var wait sync.WaitGroup
	room := make(chan struct{}, 16)
	for _, r := range t.regions.All() {
		room <- struct{}{}
		wait.Go(func() {
			t.renew(r, list, replace)
			<-room
		})
	}
	wait.Wait()
}

// renew brings the keys of a region in line with a list of devices, nil for those in use. With replace, keys of before
// are refused from then on.
func (t *Transport) renew(r *region, list []*device, replace bool) {
	r.pinning.Lock()
	defer r.pinning.Unlock()
	if r.over {
		return
	}
	if list == nil {
		list = t.nics()
	}
	old := r.keys.Load()
	k := newKeys(old.version, len(list))
	k.why, k.came = old.why, old.came
	var fresh keys
	var over []*memory
	changed := false
	for i, d := range list {
		own := old.own(i)
		if own != nil && own.device == d && !d.lost.Load() {
			k.local[i], k.remote[i] = own, old.remote[i]
			continue
		}
		if own != nil {
			over = append(over, own, old.remote[i])
			changed = true
		}
		if d.pin(t.ctx, r, k) == nil { // else peers use the other devices
			fresh.local, fresh.remote = append(fresh.local, k.local[i]), append(fresh.remote, k.remote[i])
			changed = true
		}
	}
	if !changed {
		return
	}
	if replace {
		k.version++
	}
	r.mu.Lock()
	if r.ended { // its keys go when it is deregistered
		r.mu.Unlock()
		_ = fresh.close(true)
		return
	}
	r.keys.Store(k)
	r.retired = slices.DeleteFunc(r.retired, func(m *memory) bool {
		if m == nil || !m.device.lost.Load() {
			return m == nil
		}
		over = append(over, m)
		return true
	})
	r.mu.Unlock()
	if replace {
		_ = t.tell(t.ctx, r, nil, news{region: uint64(r.key), version: k.version})
	}
	_ = r.endAll(over)
	if r.key != 0 {
		t.host.Describe(r.key, t.describe(r))
	}
}

// lose gives a device up for good: it has failed, or was taken out.
func (d *device) lose(cause *errs.Error) {
	if d.lost.Swap(true) {
		return
	}
	t := d.t
	t.host.Log().Warn("rdma: a device is lost", "device", d.name, "cause", cause)
	for _, l := range t.links.All() {
		for _, r := range l.list() {
			if r.device == d {
				r.down(cause)
			}
		}
	}
	t.life.Go(d.retire)
}

// retire gives a lost device back once nothing of it is left.
func (d *device) retire() {
	d.t.changes.Add(1)
	d.clear()
	d.t.changing.Lock()
	d.t.renewAll(nil, false)
	d.t.changing.Unlock()
	again := time.NewTicker(endLimit / 2) // ends that failed
	defer again.Stop()
	for d.inUse() {
		select {
		case <-d.unused:
		case <-again.C:
			d.clear()
		case <-d.t.ctx.Done(): // Close gives it back
			return
		}
	}
	d.wake()
	d.running.Wait()
	d.close()
	d.given.Store(true)
}

// clear closes the queue pairs of guests on a device, and the registrations that did not end before.
func (d *device) clear() {
	for _, g := range d.t.guests.all(transport.ID{}) {
		_ = g.close(func(l *guestLane) bool { return l.device == d })
	}
	for _, r := range d.t.regions.All() {
		_ = r.endAll(nil)
	}
}

// pulled reports whether the kernel has taken the device away, with all that it had, by the error of a call that ends
// something.
func (d *device) pulled(err error) bool { return errors.Is(err, syscall.EIO) && d.dead() }

// dead reports whether the open context gives EIO, as to each call once the kernel has taken the device away (ib_uverbs
// of Linux 6.12).
func (d *device) dead() bool {
	_, err := d.verbs.Port(d.t.settings.Port)
	return errors.Is(err, syscall.EIO)
}

// use counts a queue pair, a registration, or a call of the device. It fails on one that is lost.
func (d *device) use() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.lost.Load() {
		return false
	}
	d.uses++
	return true
}

func (d *device) unuse() {
	d.mu.Lock()
	d.uses--
	d.mu.Unlock()
	select {
	case d.unused <- struct{}{}:
	default:
	}
}

func (d *device) inUse() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.uses > 0
}

// errLost is the refusal of a device that is lost.
func (d *device) errLost() *errs.Error {
	return errs.New(errs.DeviceNotFound, Name, "%s has failed or was removed", d.name).
		WithScope(errs.ScopeRail, errs.SideLocal)
}

// pairing is a local and a remote device by their indices.
type pairing struct {
	here, there int
	alternate   bool
}

// pairings lists the rails between n devices here and m there. The i-th goes with the i-th, and the shorter list begins
// anew. All other pairs are alternates, for when an end is blamed.
func pairings(n, m int) (list []pairing) {
	for i := range max(n, m) {
		list = append(list, pairing{i % n, i % m, false})
	}
	matched := len(list)
	for i := range n * m {
		p := pairing{i % n, (i%n + i/n) % m, true}
		if !slices.Contains(list[:matched], pairing{p.here, p.there, false}) {
			list = append(list, p)
		}
	}
	return list[:min(len(list), railsMax)]
}

// grow makes the rails that are missing, after the peer has named its devices, nil for as before, or a device came
// here. A rail whose device is back is made anew at its index, in higher generations.
func (l *link) grow(names []string) {
	l.growing.Lock()
	defer l.growing.Unlock()
	if names != nil {
		l.names = names
	}
	nics := l.t.nics()
	if len(l.names) == 0 || len(nics) == 0 {
		return
	}
	rails := slices.Clone(l.list())
	var fresh []*rail
	list := pairings(len(nics), len(l.names))
	if l.t.pairs != nil {
		list = named(l.t.pairs, nics, l.names)
	}
	for _, p := range list {
		d := nics[p.here]
		at := slices.IndexFunc(rails, func(r *rail) bool { return r.device.index == p.here && r.far == p.there })
		if d.lost.Load() || at >= 0 && rails[at].device == d || at < 0 && len(rails) == railsMax {
			continue
		}
		r := newRail(l, len(rails), d, p.there, l.names[p.there])
		r.alternate = p.alternate
		if at < 0 {
			rails = append(rails, r)
		} else {
			before := rails[at]
			before.mu.Lock()
			r.index, r.generation, r.alternate = before.index, before.generation, before.alternate
			before.unlock()
			rails[at] = r
		}
		fresh = append(fresh, r)
	}
	l.rails.Store(&rails)
	for _, r := range fresh {
		r.mu.Lock()
		if r.wanted = r.alternate && l.lacks.Load(); r.wanted || !r.alternate {
			r.mendLocked()
		}
		r.mu.Unlock()
		if l.over.Load() {
			r.end(l.gone(errs.Lost, "the link has ended"))
		}
	}
}

// lack says to the core that a rail is down, if it was up. From then on the link has its alternates too: an end may be
// to blame.
func (l *link) lack(was transport.Rail, cause *errs.Error) {
	if was.Generation != 0 {
		l.t.sink.RailDown(was, cause)
	}
	if l.lacks.Swap(true) {
		return
	}
	for _, r := range l.list() {
		r.mu.Lock()
		if r.alternate {
			r.wanted = true // it is proved before the core relies on it
			r.mendLocked()
		}
		r.unlock()
	}
}

// namesOf reads an answer to hello.
func namesOf(r *kit.Reader) (names []string, err error) {
	for range r.U8() {
		names = append(names, r.Text())
	}
	if !r.Whole() || len(names) == 0 || len(names) > devicesMax {
		return nil, errs.New(errs.Protocol, "rdma.attach", "a malformed answer").
			WithScope(errs.ScopeLink, errs.SideRemote)
	}
	return names, nil
}

// again asks the peer for its devices, after it has said that one came.
func (l *link) again() {
	answer, err := l.call(l.hello(), l.t.settings.DialLimit)
	if err == nil {
		var names []string
		if names, err = namesOf(kit.NewReader(answer)); err == nil {
			l.grow(names)
			return
		}
	}
	l.t.host.Log().Warn("rdma: a peer has new devices and does not name them", "peer", l.peer.Address,
		"error", fmt.Sprint(err))
}

// serveDevices hears that the peer has a device that it had not.
func (t *Transport) serveDevices(from transport.Peer, r *kit.Reader) ([]byte, *errs.Error) {
	number := transport.Link(r.U64())
	if !r.Whole() {
		return nil, malformed(kindDevices)
	}
	for n, l := range t.links.All() {
		if n == number && l.peer.ID == from.ID {
			t.life.Go(l.again)
		}
	}
	return []byte{1}, nil
}
