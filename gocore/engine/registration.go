package engine

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/device"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// A region is registered on all transports of its kind of memory side by side. Those that pin pages (Info.Pins) have a
// goroutine each; the others cost microseconds, and run on the caller's.
//
//	Register ──▶ on each transport ──┬─▶ a key       the region is usable there
//	                                 ├─▶ NotHere     a reason, kept for explain; the region lives on the others
//	                                 ├─▶ too late    the same, after register_timeout and 100 ms a GiB
//	                                 └─▶ an error    undoes all, while Register has not returned
//
// Register returns when all have answered, or when register_wait has passed and one has a key. The others go on by
// themselves: the region becomes usable there when they are ready, and plans that are made later see it. A transport
// that is required is waited for, and a reason of it is an error.

// registerPerGiB is added to register_timeout for each GiB of a region: a driver pins some 10 GiB in a second.
const registerPerGiB = 100 * time.Millisecond

// undoLimit bounds the wait for transports that still register a region which is closed or undone, and for those that
// forget it, with registerPerGiB.
const undoLimit = 30 * time.Second

// registration is a region on one transport. It is immutable.
type registration struct {
	key        transport.LocalKey // 0: it is not there, for the reason why
	descriptor transport.Descriptor
	why        *errs.Error // with a key: it is not shared, and has no descriptor
}

// registering is the work of transports that have not answered yet.
type registering struct {
	mu      sync.Mutex
	ended   bool               // the region is closed or undone: a key that comes now goes back
	pending []*port            // that have not answered
	settled chan struct{}      // closed when none is pending; nil: there never was one
	stop    context.CancelFunc // ends their calls; nil once a region without such transports is registered
	fences  []keptFence        // of the time since they began, for their keys too
}

// keptFence is a fence of a region for one peer, nil for all.
type keptFence struct {
	peer  *transport.Peer
	epoch transport.Epoch
}

// key returns the key of the region on a transport, 0 where it is not registered.
func (r *region) key(i int) transport.LocalKey {
	if at := r.on[i].Load(); at != nil {
		return at.key
	}
	return 0
}

// registered is a region that a transport has taken. A descriptor that is too long is left out: peers would refuse the
// whole description with it.
func (p *port) registered(key transport.LocalKey, descriptor transport.Descriptor) *registration {
	if len(descriptor) <= transport.DescriptorMax {
		return &registration{key: key, descriptor: descriptor}
	}
	why := errs.New(errs.NotHere, "register", "the descriptor of transport %s has %d bytes, more than %d", p.name,
		len(descriptor), transport.DescriptorMax).WithScope(errs.ScopeTransport, errs.SideLocal)
	p.engine.log.Warn("a region is not shared over a transport", "transport", p.name, "why", why.Error())
	return &registration{key: key, why: why}
}

// whyNot returns the reason why the region is not on a transport, or not shared there, "" if there is none.
func (r *region) whyNot(p *port) string {
	at := r.on[p.index].Load()
	switch {
	case at != nil && at.why != nil:
		return at.why.Error()
	case at == nil && r.isPending(p):
		return "the transport has not finished registering it"
	}
	return ""
}

func (r *region) isPending(p *port) bool {
	r.registering.mu.Lock()
	defer r.registering.mu.Unlock()
	return slices.Contains(r.registering.pending, p)
}

// descriptors are those of the region for peers, by transport.
func (r *region) descriptors() map[string]transport.Descriptor {
	list := make(map[string]transport.Descriptor)
	for i, p := range r.engine.ports {
		if at := r.on[i].Load(); at != nil && len(at.descriptor) > 0 {
			list[p.name] = at.descriptor
		}
	}
	return list
}

// usable reports whether some transport has a key.
func (r *region) usable() bool {
	for i := range r.on {
		if r.key(i) != 0 {
			return true
		}
	}
	return false
}

// registersOn reports whether a region is for a transport: one that is open, and moves its kind of memory. Orders are
// for memory of the host only where it is lent for them.
func (e *Engine) registersOn(p *port, r *region) bool {
	return p.transport != nil && p.info.Uses(r.Kind) && (!p.info.Delegates || r.Kind != mem.Host || r.lent)
}

// enroll gives a region its number. deregister takes it back.
func (e *Engine) enroll(r *region) {
	r.ID = e.regions.reserve()
	e.rules.enter(r.rule)
}

// install registers a region on the transports of its kind. After an error nothing is left.
func (e *Engine) install(r *region) *errs.Error {
	r.on = make([]atomic.Pointer[registration], len(e.ports))
	var ctx context.Context
	limit := e.config.Engine.RegisterTimeout + time.Duration(r.Size>>30)*registerPerGiB
	ctx, r.registering.stop = context.WithTimeout(context.Background(), limit) // the last to answer stops it
	asked := r.Region
	asked.DMABuf, asked.Landing = e.export(r), r.landing()
	var slow, fast []*port
	for _, p := range e.ports {
		switch {
		case !e.registersOn(p, r):
		case p.info.Pins:
			slow = append(slow, p)
		default:
			fast = append(fast, p)
		}
	}
	answers := make(chan *errs.Error, len(slow))
	if r.pinned = len(slow) > 0; r.pinned {
		r.registering.pending, r.registering.settled = slices.Clone(slow), make(chan struct{})
	}
	for _, p := range slow {
		e.regions.retire.start(r, func() {
			answers <- e.registerOn(ctx, r, p, &asked)
			e.answered(r, p, &asked)
		})
	}
	var failure *errs.Error
	for _, p := range fast {
		if failure = e.registerOn(ctx, r, p, &asked); failure != nil {
			break
		}
	}
	if len(slow) == 0 {
		r.registering.stop()
		r.registering.stop = nil // a context each would be a tenth of the objects that the collector marks
		closeExport(&asked)
	} else if failure == nil {
		failure = e.await(ctx, r, slow, answers)
	}
	if failure == nil {
		failure = r.nowhere(append(fast, slow...))
	}
	if failure != nil {
		e.deregister(r)
	}
	return failure
}

// await waits for transports that pin pages, as long as the caller should.
func (e *Engine) await(ctx context.Context, r *region, slow []*port, answers <-chan *errs.Error) *errs.Error {
	wait := time.NewTimer(e.config.Engine.RegisterWait)
	defer wait.Stop()
	patient := true
	for left := len(slow); left > 0; {
		select {
		case failure := <-answers:
			if failure != nil {
				return failure
			}
			left--
		case <-wait.C:
			patient = false
		case <-ctx.Done():
			return e.late(r, slow, answers)
		}
		needed := func(p *port) bool { return p.required && r.isPending(p) }
		if !patient && r.usable() && !slices.ContainsFunc(slow, needed) {
			return nil
		}
	}
	return nil
}

// late gives transports that have not answered in time the reason, which is an error where one of them is required.
// The answers of the others are in the channel: answered comes behind it.
func (e *Engine) late(r *region, slow []*port, answers <-chan *errs.Error) *errs.Error {
	for _, p := range slow {
		if !r.isPending(p) {
			continue
		}
		cause := errs.New(errs.Timeout, "register", "transport %s has not registered %d bytes in time", p.name, r.Size).
			WithScope(errs.ScopeTransport, errs.SideLocal).WithHint("a longer register_timeout")
		if p.required {
			return cause
		}
		r.on[p.index].CompareAndSwap(nil, &registration{why: cause})
	}
	for {
		select {
		case failure := <-answers:
			if failure != nil {
				return failure
			}
		default:
			return nil
		}
	}
}

// registerOn registers a region on one transport and notes the result. A reason is no error, unless the transport is
// required.
func (e *Engine) registerOn(ctx context.Context, r *region, p *port, asked *mem.Region) *errs.Error {
	p.keys.begin()
	defer p.keys.end()
	key, descriptor, err := p.transport.Register(ctx, *asked)
	if err != nil {
		cause := errs.From("register", err)
		r.on[p.index].Store(&registration{why: cause})
		if p.required || cause.Code != errs.NotHere && !errors.Is(err, context.DeadlineExceeded) {
			return cause
		}
		e.logNotHere(p, cause)
		return nil
	}
	at := p.registered(key, descriptor)
	if at.why != nil && p.required {
		e.giveBack(p, r, key)
		return at.why
	}
	e.publish(r, p, at)
	return nil
}

// publish makes a region usable on a transport. Fences that came meanwhile are repeated there first: a task of before
// them must not find a way over the transport that was late. The key of a region that has ended goes back.
func (e *Engine) publish(r *region, p *port, at *registration) {
	w := &r.registering
	for done := 0; ; done++ {
		w.mu.Lock()
		if w.ended || done == len(w.fences) {
			if !w.ended {
				p.enter(r, at)
			}
			ended := w.ended
			w.mu.Unlock()
			if ended {
				e.giveBack(p, r, at.key)
			}
			return
		}
		fence := w.fences[done]
		w.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), undoLimit)
		if err := p.transport.Revoke(ctx, at.key, fence.peer, fence.epoch); err != nil {
			e.log.Warn("fence of a region that was registered late", "transport", p.name, "region", r.Name, "err", err)
		}
		cancel()
	}
}

// answered notes that a transport is done with a region, for better or worse.
func (e *Engine) answered(r *region, p *port, asked *mem.Region) {
	w := &r.registering
	w.mu.Lock()
	w.pending = slices.DeleteFunc(w.pending, func(o *port) bool { return o == p })
	last := len(w.pending) == 0
	w.mu.Unlock()
	if last {
		w.stop()
		closeExport(asked)
		close(w.settled)
	}
	if r.life.state() == regionOpen { // Register has returned: plans and peers have to hear of it
		e.describedAnew(r)
		e.planEpoch.Add(1)
	}
}

// nowhere is the error of a region that no transport could take, with the reason of each. Orders are for memory that
// others move, and do not count.
func (r *region) nowhere(asked []*port) *errs.Error {
	var reasons []string
	asked = slices.DeleteFunc(asked, func(p *port) bool { return p.info.Delegates })
	for _, p := range asked {
		why := r.whyNot(p)
		if r.key(int(p.index)) != 0 {
			return nil
		}
		reasons = append(reasons, p.name+": "+why)
	}
	if len(asked) == 0 {
		return nil
	}
	return errs.New(errs.NotHere, "register", "no transport can use %d bytes at %#x: %s", r.Size, r.Addr,
		strings.Join(reasons, "; "))
}

// logNotHere logs the first reason of a transport. The others stand in explanations.
func (e *Engine) logNotHere(p *port, cause *errs.Error) {
	if !p.saidNotHere.Swap(true) {
		e.log.Warn("a region lives without one of its transports; explain() names such regions, this is the first",
			"transport", p.name, "why", cause.Error())
	}
}

// awaitSettled waits for transports that still register the region.
func (r *region) awaitSettled(ctx context.Context) error {
	w := &r.registering
	if w.settled == nil {
		return nil
	}
	select {
	case <-w.settled:
		return nil
	case <-ctx.Done():
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.pending) == 0 {
		return nil
	}
	return errs.New(errs.Timeout, "region", "transport %s is still registering the region %s", w.pending[0].name,
		r.label()).WithScope(errs.ScopeTransport, errs.SideLocal)
}

// finishRegistering ends the work of transports that still register the region. It returns when none does, or an error
// that names one.
func (e *Engine) finishRegistering(ctx context.Context, r *region) error {
	w := &r.registering
	w.mu.Lock()
	w.ended = true
	w.mu.Unlock()
	if w.stop != nil {
		w.stop()
	}
	return r.awaitSettled(ctx)
}

// keepFence notes a fence for transports that come later. The caller fences those that are there, afterwards.
func (r *region) keepFence(peer *transport.Peer, epoch transport.Epoch) {
	w := &r.registering
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.pending) > 0 {
		w.fences = append(w.fences, keptFence{peer, epoch})
	}
}

// deregister takes a region from all transports that have it, and gives its number back.
func (e *Engine) deregister(r *region) {
	ctx, cancel := context.WithTimeout(context.Background(), undoLimit)
	defer cancel()
	if err := e.finishRegistering(ctx, r); err != nil {
		e.log.Warn("deregister", "region", r.Name, "err", err)
	}
	var pinning sync.WaitGroup
	for i, p := range e.ports {
		switch key := r.key(i); {
		case p.transport == nil || key == 0:
		case p.info.Pins: // its driver may hang, and holds up none of the others
			pinning.Go(func() { e.giveBack(p, r, key) })
		default:
			e.giveBack(p, r, key)
		}
	}
	pinning.Wait()
	e.regions.giveBack(r.ID)
	e.rules.leave(r.rule)
}

// giveBack makes a transport forget a region. It returns when the transport has, however long its driver takes, and
// says so where that is too long.
func (e *Engine) giveBack(p *port, r *region, key transport.LocalKey) {
	limit := e.regions.retire.limit(r)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		e.announce(&event.Event{Kind: event.RegionHeld, Transport: p.name, Rail: r.Name, Bytes: r.Size, Took: limit})
	})()
	if err := p.deregister(ctx, key); err != nil {
		e.log.Warn("deregister", "transport", p.name, "region", r.Name, "err", err)
	}
}

// export returns memory of a device as a dma-buf, for transports that hand it to a NIC; nil where there is none.
func (e *Engine) export(r *region) *mem.DMABuf {
	exporter, is := r.platform.(device.Exporter)
	if !is || r.managed {
		return nil
	}
	b, err := exporter.Export(r.Addr, r.Size)
	if err != nil {
		e.log.Debug("no dma-buf", "region", r.Name, "why", err)
		return nil
	}
	return &b
}

// landing says how bytes of a NIC become visible to the device of a region; nil: at once, or it has none.
func (r *region) landing() *mem.Landing {
	f, is := r.platform.(device.Flushing)
	_, ordinal, err := r.Location.Parse()
	if !is || err != nil {
		return nil
	}
	return f.Landing(ordinal)
}

// closeExport closes the dma-buf; transports that need it for longer have duplicated it.
func closeExport(asked *mem.Region) {
	if asked.DMABuf != nil {
		_ = unix.Close(asked.DMABuf.Fd)
	}
}
