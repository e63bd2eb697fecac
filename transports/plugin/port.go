package plugin

/*
#cgo nocallback tp_epoch
#include <stdlib.h>
#include "port.h"
*/
import "C"

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// port is one opened transport of a plug-in. Any goroutine may call it.
//
// gate is held for reading around every call of the plug-in, and never while the sink is called: the sink may call us.
// Poll holds draining instead, which is one lock less for each slice. Close takes draining, and the gate for good: no
// call is under way when the plug-in closes, and none comes afterwards. One that hangs keeps Close from its end, and no
// other call, since none waits at the gate.
type port struct {
	library *loaded
	api     *C.tent_transport_api
	c       *C.tp_port
	t       *C.tent_transport
	host    transport.Host
	sink    transport.Sink
	info    transport.Info

	life    kit.Lifecycle
	gate    sync.RWMutex // Close takes it for good
	links   kit.Links[link]
	pending kit.Slots[uint64, pending]
	fences  *uint64    // of C: how often fenced was called
	ends    *C.tp_ends // of C: those that wait
	flights flights
	trays   trays

	ctx     context.Context // of calls to peers; ends with Close
	cancel  context.CancelFunc
	calls   atomic.Int32
	drainer sync.WaitGroup
	bell    *os.File // the eventfd
	ending  atomic.Bool

	draining sync.Mutex // guards the buffers of the one goroutine that takes ends out
	buffers  buffers
	shut     bool // Poll calls nobody any more

	breaches  atomic.Int32
	condemned atomic.Pointer[errs.Error]
	downs     atomic.Bool // the drainer owes the links their ends, since condemned was set
}

// link is an attached peer. rails are the drainer's: the newest generation of each, and whether it is up.
type link struct {
	peer  transport.Peer
	rails map[uint16]railState
}

type railState struct {
	newest uint32
	up     bool
}

// pending is a notification or a probe that has not ended.
type pending struct {
	end func(rtt uint64, err *errs.Error)
}

func newPort(l *loaded, c *C.tp_port, host transport.Host, sink transport.Sink) *port {
	p := &port{library: l, api: l.api, c: c, host: host, sink: sink}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.flights.init(c)
	p.fences, p.ends = (*uint64)(unsafe.Pointer(C.tp_fences(c))), C.tp_ends_of(c)
	p.trays.init(c)
	return p
}

// start begins to listen to the plug-in.
func (p *port) start() {
	fd, err := unix.FcntlInt(uintptr(C.tp_eventfd(p.c)), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		fd = -1 // reads fail at once, and the drainer says so
	}
	p.bell = os.NewFile(uintptr(fd), "plug-in "+p.library.name)
	p.drainer.Go(p.drain)
}

// enter begins a call of the plug-in. False means that it was closed; else leave is owed.
func (p *port) enter() bool { return p.gate.TryRLock() }

func (p *port) leave() { p.gate.RUnlock() }

func (p *port) op(call string) string { return p.library.name + "." + call }

// Info implements transport.Transport.
func (p *port) Info() transport.Info { return p.info }

// usable returns why no call of this kind can begin, or nil.
func (p *port) usable(call string) *errs.Error {
	if p.life.Closed() {
		return kit.Closed(p.op(call))
	}
	if e := p.condemned.Load(); e != nil {
		return e
	}
	return nil
}

// limitOf is the time that ctx leaves, in nanoseconds.
func limitOf(ctx context.Context) C.uint64_t {
	at, limited := ctx.Deadline()
	if !limited {
		return C.uint64_t(time.Minute)
	}
	return C.uint64_t(max(time.Until(at), 0))
}

// Register implements transport.Transport.
func (p *port) Register(ctx context.Context, m mem.Region) (transport.LocalKey, transport.Descriptor, error) {
	op := p.op("register")
	if err := p.usable("register"); err != nil {
		return 0, nil, err
	}
	switch {
	case !p.info.Uses(m.Kind):
		return 0, nil, errs.New(errs.NotHere, op, "%v memory cannot be moved by this transport", m.Kind)
	case m.Peers != nil:
		return 0, nil, errs.New(errs.NotHere, op, "the region is given to some peers only, and plug-ins ask for no"+
			" identity")
	case !m.IsRange():
		return 0, nil, kit.NoMemory(op, &m)
	}
	if !p.enter() {
		return 0, nil, kit.Closed(op)
	}
	defer p.leave()
	var texts arena
	defer texts.free()
	region := texts.region(&m)
	descriptor := make([]byte, C.TENT_DESCRIPTOR_MAX)
	var key C.uint64_t
	var e C.tent_error
	n := C.size_t(len(descriptor))
	r := C.tp_register(p.api, p.t, region, limitOf(ctx), &key, unsafe.Pointer(&descriptor[0]), &n, &e)
	switch {
	case r != 0:
		return 0, nil, p.failed("register", r, &e)
	case key == 0 || n > C.TENT_DESCRIPTOR_MAX:
		return 0, nil, p.senseless("register gave key %d and a descriptor of %d bytes", uint64(key), uint64(n))
	}
	return transport.LocalKey(key), descriptor[:n:n], nil
}

// Revoke implements transport.Transport.
func (p *port) Revoke(ctx context.Context, key transport.LocalKey, peer *transport.Peer, epoch transport.Epoch) error {
	if !p.enter() {
		return kit.Closed(p.op("revoke"))
	}
	defer p.leave()
	var texts arena
	defer texts.free()
	var whom *C.tent_peer
	if peer != nil {
		whom = texts.peer(*peer)
	}
	var e C.tent_error
	if r := C.tp_revoke(p.api, p.t, C.uint64_t(key), whom, C.uint64_t(epoch), limitOf(ctx), &e); r != 0 {
		return p.failed("revoke", r, &e)
	}
	return nil
}

// Deregister implements transport.Transport.
func (p *port) Deregister(ctx context.Context, key transport.LocalKey) error {
	if !p.enter() {
		return kit.Closed(p.op("deregister"))
	}
	defer p.leave()
	var e C.tent_error
	if r := C.tp_deregister(p.api, p.t, C.uint64_t(key), limitOf(ctx), &e); r != 0 {
		return p.failed("deregister", r, &e)
	}
	return nil
}

// Attach implements transport.Transport.
func (p *port) Attach(peer transport.Peer) (transport.Link, error) {
	if err := p.usable("attach"); err != nil {
		return 0, err
	}
	if !p.enter() {
		return 0, kit.Closed(p.op("attach"))
	}
	defer p.leave()
	number, err := p.links.Attach(p.op("attach"), func(transport.Link) *link {
		return &link{peer: peer, rails: map[uint16]railState{}}
	})
	if err != nil {
		return 0, err
	}
	var texts arena
	defer texts.free()
	var e C.tent_error
	if r := C.tp_attach(p.api, p.t, C.uint64_t(number), texts.peer(peer), &e); r != 0 {
		p.links.Detach(number)
		failure := p.failed("attach", r, &e)
		failure.Peer = peer.Address
		return 0, failure
	}
	return number, nil
}

// Import implements transport.Transport.
func (p *port) Import(number transport.Link, d transport.Descriptor) (transport.RemoteKey, error) {
	op := p.op("import")
	if p.links.Lookup(number) == nil {
		return 0, kit.StaleLink(op, number)
	}
	if p.info.Files {
		return p.importFile(number, d)
	}
	if len(d) == 0 || len(d) > C.TENT_DESCRIPTOR_MAX {
		return 0, errs.New(errs.InvalidArgument, op, "not a descriptor: %d bytes", len(d))
	}
	if !p.enter() {
		return 0, kit.Closed(op)
	}
	defer p.leave()
	var key C.uint64_t
	var e C.tent_error
	r := C.tp_import(p.api, p.t, C.uint64_t(number), unsafe.Pointer(&d[0]), C.size_t(len(d)), &key, &e)
	return p.imported(r, key, &e)
}

// imported is the end of an import.
func (p *port) imported(r C.int, key C.uint64_t, e *C.tent_error) (transport.RemoteKey, error) {
	switch {
	case r != 0:
		return 0, p.failed("import", r, e)
	case key == 0:
		return 0, p.senseless("import gave key 0")
	}
	return transport.RemoteKey(key), nil
}

// Forget implements transport.Transport.
func (p *port) Forget(number transport.Link, key transport.RemoteKey) {
	if p.links.Lookup(number) != nil && p.enter() {
		C.tp_forget(p.api, p.t, C.uint64_t(number), C.uint64_t(key))
		p.leave()
	}
}

// Detach implements transport.Transport.
func (p *port) Detach(number transport.Link) {
	if p.links.Detach(number) != nil && p.enter() {
		C.tp_detach(p.api, p.t, C.uint64_t(number))
		p.leave()
	}
}

// Epoch implements transport.EpochReader. Peers' news of fences is there when the plug-in has named it, not only when
// the drainer has passed it on.
func (p *port) Epoch(number transport.Link) transport.Epoch {
	if !p.enter() {
		return 0
	}
	defer p.leave()
	if atomic.LoadUint64(p.fences) == 0 {
		return 0
	}
	return transport.Epoch(C.tp_epoch(p.c, C.uint64_t(number)))
}

// Stale implements transport.Transport.
func (p *port) Stale() uint64 { return p.links.Stale() }

// Fence implements transport.Transport.
func (p *port) Fence(rail transport.Rail) {
	if p.links.Lookup(rail.Link) != nil && p.enter() {
		C.tp_fence(p.api, p.t, railTo(rail))
		p.leave()
	}
}

// Serve implements transport.Transport.
func (p *port) Serve(_ context.Context, from transport.Peer, message []byte) ([]byte, error) {
	op := p.op("serve")
	if err := p.usable("serve"); err != nil {
		return nil, err
	}
	if p.api.serve == nil {
		return nil, errs.New(errs.Protocol, op, "the plug-in takes no messages")
	}
	if !p.enter() {
		return nil, kit.Closed(op)
	}
	defer p.leave()
	var texts arena
	defer texts.free()
	answer := make([]byte, C.TENT_ANSWER_MAX)
	var e C.tent_error
	n := C.size_t(len(answer))
	r := C.tp_serve(p.api, p.t, texts.peer(from), unsafe.Pointer(unsafe.SliceData(message)), C.size_t(len(message)),
		unsafe.Pointer(&answer[0]), &n, &e)
	switch {
	case r != 0:
		return nil, p.failed("serve", r, &e)
	case n > C.TENT_ANSWER_MAX:
		return nil, p.senseless("serve gave an answer of %d bytes", uint64(n))
	}
	return answer[:n:n], nil
}

// Close implements transport.Transport.
func (p *port) Close(ctx context.Context) error {
	p.cancel()
	limit := limitOf(ctx) / 10 * 9 // its reason comes before the end of ctx, which has none
	return p.life.Close(ctx, func() error { return p.end(limit) })
}

// end closes the plug-in's transport, then takes its last reports, then ends all that it has left open. Where it fails
// to close, the slices that it has not completed stay outstanding: its threads may still write to their memory.
func (p *port) end(limit C.uint64_t) (err error) {
	p.gate.Lock()
	p.draining.Lock()
	p.shut = true
	p.draining.Unlock()
	var e C.tent_error
	if r := C.tp_close(p.api, p.t, limit, &e); r != 0 {
		err = p.failed("close", r, &e)
	}
	p.ending.Store(true)
	C.tp_wake(p.c)
	p.drainer.Wait()
	keeps := err != nil && p.flights.out()
	if !keeps {
		p.abandon()
	}
	for token := range p.pending.All() {
		if waiting := p.pending.Delete(token); waiting != nil {
			waiting.end(0, kit.Closed(p.op("close")))
		}
	}
	_ = p.bell.Close()
	if keeps {
		p.keep()
	} else {
		C.tp_free(p.c)
	}
	return err
}

// kept are the ports of plug-ins that could not end in time, with slices that their threads may be at work on. Their
// slab and the pins of their offsets stay with them for ever.
var kept struct {
	sync.Mutex
	ports []*port
}

// keep leaves everything to the threads of the plug-in that read its slices, and hears no report of theirs any more.
func (p *port) keep() {
	C.tp_shut(p.c)
	kept.Lock()
	defer kept.Unlock()
	kept.ports = append(kept.ports, p)
}
