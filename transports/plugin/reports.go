package plugin

/*
#cgo noescape tp_breaches
#cgo nocallback tp_breaches
#cgo nocallback tp_sleep
#cgo nocallback tp_next
#include <stdlib.h>
#include "port.h"

static void free_error(tent_error *e) { free(e); }
static void free_report(tp_report *r) { free(r); }
*/
import "C"

import (
	"context"
	"log/slog"
	"time"
	"unsafe"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

const (
	breachesMax = 3  // a plug-in that breaks the contract so often takes nothing any more
	callsMax    = 64 // messages to peers that wait for their answers
)

func freeError(e *C.tent_error) { C.free_error(e) }

// drain is the goroutine that takes out reports, and ends while no waiter looks.
func (p *port) drain() {
	var eight [8]byte
	for {
		ending := p.ending.Load() // before the look: it finds all that came before the end
		p.draining.Lock()
		n := p.deliver(p.takeEnds())
		p.draining.Unlock()
		for r := C.tp_next(p.c); r != nil; r = C.tp_next(p.c) {
			n++
			p.report(r)
			C.free_report(r)
		}
		p.countBreaches()
		if p.downs.Swap(false) {
			p.endLinks()
		}
		switch {
		case n > 0:
		case ending:
			return
		case p.maySleep():
			if _, err := p.bell.Read(eight[:]); err != nil {
				p.host.Log().Error("plug-in cannot be listened to", "file", p.library.path, "error", err)
				return
			}
		}
	}
}

// maySleep asks C for a wake-up. False: something waits, or the end or the third breach came behind the last look. The
// drainer was awake then, so that woke nobody.
func (p *port) maySleep() bool { return C.tp_sleep(p.c) != 0 && !p.ending.Load() && !p.downs.Load() }

// report hands one report over to the sink or to the host.
func (p *port) report(r *C.tp_report) {
	rail := railFrom(r.rail)
	switch r.kind {
	case C.TP_DONE:
		p.done(r)
		return
	case C.TP_NOTIFIED:
		p.notified(r)
		return
	case C.TP_DESCRIBE:
		p.host.Describe(transport.LocalKey(r.key), C.GoBytes(r.bytes, C.int(r.n)))
		return
	case C.TP_REFUSED:
		p.host.Refused(transport.Refusal(r.level), textOf(r.text[0], C.TP_TEXT_MAX),
			errs.New(errs.PermissionDenied, p.library.name, "%s", textOf(r.text[1], C.TP_TEXT_MAX)))
		return
	case C.TP_LOG:
		text := textOf(r.text[0], C.TP_TEXT_MAX)
		p.host.Log().Log(context.Background(), levelOf(int(r.level)), text, "plug-in", p.library.name)
		return
	}
	l := p.links.Peek(rail.Link)
	if l == nil {
		if !rail.Link.Valid() {
			p.breach("it reports about link %#x, which never was", uint64(rail.Link))
		}
		return // the link was detached meanwhile
	}
	switch r.kind {
	case C.TP_READY:
		p.sink.Ready(rail)
	case C.TP_PROGRESS:
		p.sink.Progress(rail)
	case C.TP_RAIL_UP:
		p.railUp(l, rail, r)
	case C.TP_RAIL_DOWN:
		if state := l.rails[rail.Index]; state.up && state.newest == rail.Generation {
			l.rails[rail.Index] = railState{newest: state.newest}
			p.sink.RailDown(rail, p.causeOf(r))
		}
	case C.TP_LINK_DOWN:
		p.sink.LinkDown(rail.Link, p.causeOf(r).WithPeer(l.peer.Address, p.library.name, ""))
	case C.TP_FENCED:
		p.sink.Fenced(rail.Link, transport.RemoteKey(r.key), transport.Epoch(r.value))
	case C.TP_CALL:
		p.call(l, rail.Link, r)
	}
}

// causeOf returns the error of a report, nil for none.
func (p *port) causeOf(r *C.tp_report) *errs.Error {
	if r.failed == 0 {
		return nil
	}
	return p.takeError("rail", &r.error)
}

// railUp checks the generation: the core counts on one that grows.
func (p *port) railUp(l *link, rail transport.Rail, r *C.tp_report) {
	if before := l.rails[rail.Index]; rail.Generation == 0 || rail.Generation <= before.newest {
		p.breach("rail %d of link %v comes up in generation %d, and %d was there before", rail.Index, rail.Link,
			rail.Generation, before.newest)
		return
	}
	if condemned := p.condemned.Load(); condemned != nil {
		return
	}
	l.rails[rail.Index] = railState{rail.Generation, true}
	i := &r.info
	info := transport.RailInfo{Rail: rail, Local: textOf(r.text[0], C.TP_TEXT_MAX),
		Remote: textOf(r.text[1], C.TP_TEXT_MAX), Device: textOf(r.text[2], C.TP_TEXT_MAX), Node: int(i.node),
		BytesMax: uint64(i.bytes_max), SlicesMax: int(i.slices_max), Alternates: i.alternate != 0}
	if bandwidth := float64(i.bandwidth); bandwidth > 0 && bandwidth < 1e15 {
		info.Bandwidth = bandwidth
	}
	p.sink.RailUp(info)
}

// done ends a notification or a probe.
func (p *port) done(r *C.tp_report) {
	waiting := p.pending.Delete(uint64(r.key))
	if waiting == nil {
		p.breach("it ends a notification or a probe that does not wait: token %#x", uint64(r.key))
		return
	}
	waiting.end(uint64(r.value), p.causeOf(r))
}

// notified hands a message over, and the answer back.
func (p *port) notified(r *C.tp_report) {
	from := transport.Peer{Address: textOf(r.text[0], C.TP_TEXT_MAX), Name: textOf(r.text[1], C.TP_TEXT_MAX),
		MachineID: textOf(r.text[2], C.TP_TEXT_MAX)}
	copy(from.ID[:], unsafe.Slice((*byte)(&r.id[0]), len(from.ID)))
	taken := p.sink.Notified(from, C.GoBytes(r.bytes, C.int(r.n)))
	if p.api.noted != nil && p.enter() {
		C.tp_noted(p.api, p.t, r.key, C.int(asFlag(taken)))
		p.leave()
	}
}

// call sends a message to the same transport of a peer, on a goroutine of its own.
func (p *port) call(l *link, number transport.Link, r *C.tp_report) {
	token, message := r.key, C.GoBytes(r.bytes, C.int(r.n))
	limit := time.Duration(max(r.level, 1)) * time.Millisecond
	if p.api.called == nil {
		p.breach("it sends messages to peers, and has no function called")
		return
	}
	if p.calls.Add(1) > callsMax {
		p.calls.Add(-1)
		p.answer(token, nil, errs.New(errs.TooManyRequests, p.op("call"), "%d calls wait already", callsMax).
			WithScope(errs.ScopeLink, errs.SideLocal))
		return
	}
	if !p.life.Go(func() {
		defer p.calls.Add(-1)
		ctx, cancel := context.WithTimeout(p.ctx, limit)
		defer cancel()
		answer, err := p.host.Call(ctx, l.peer, message)
		p.answer(token, answer, errs.From(p.op("call"), err))
	}) {
		p.calls.Add(-1)
	}
}

// answer hands the answer of a call over. One that is too long is an error.
func (p *port) answer(token C.uint64_t, answer []byte, err *errs.Error) {
	if err == nil && len(answer) > C.TENT_ANSWER_MAX {
		err = errs.New(errs.Protocol, p.op("call"), "the answer has %d bytes", len(answer)).
			WithScope(errs.ScopeLink, errs.SideRemote)
	}
	if !p.enter() {
		return
	}
	defer p.leave()
	if err != nil {
		e := errorTo(err)
		C.tp_called(p.api, p.t, token, nil, 0, &e)
		return
	}
	C.tp_called(p.api, p.t, token, unsafe.Pointer(unsafe.SliceData(answer)), C.size_t(len(answer)), nil)
}

// Notify implements transport.Notifier.
func (p *port) Notify(number transport.Link, message []byte, done func(*errs.Error)) bool {
	if p.links.Lookup(number) == nil || p.condemned.Load() != nil || !p.enter() {
		return false
	}
	defer p.leave()
	token := p.pending.Insert(func(uint64) *pending {
		return &pending{func(_ uint64, err *errs.Error) { done(err) }}
	})
	if token == 0 {
		return false
	}
	if C.tp_notify(p.api, p.t, C.uint64_t(number), unsafe.Pointer(unsafe.SliceData(message)),
		C.size_t(len(message)), C.uint64_t(token)) == 0 {
		return p.pending.Delete(token) == nil // it has ended all the same
	}
	return true
}

// Probe implements transport.Prober.
func (p *port) Probe(rail transport.Rail, done func(clock.Time, *errs.Error)) {
	token, stale := uint64(0), p.links.Lookup(rail.Link) == nil
	if !stale && p.condemned.Load() == nil && p.enter() {
		token = p.pending.Insert(func(uint64) *pending {
			return &pending{func(rtt uint64, err *errs.Error) { done(clock.Time(min(rtt, uint64(time.Minute))), err) }}
		})
		if token != 0 {
			C.tp_probe(p.api, p.t, railTo(rail), C.uint64_t(token))
		}
		p.leave()
	}
	if token == 0 {
		done(0, kit.StaleLink(p.op("probe"), rail.Link))
	}
}

// Explain implements transport.Explainer.
func (p *port) Explain(number transport.Link) string {
	text := "plug-in " + p.library.path
	if e := p.condemned.Load(); e != nil {
		return text + ": " + e.Cause
	}
	if p.links.Lookup(number) == nil || p.api.explain == nil || !p.enter() {
		return text
	}
	defer p.leave()
	var more [textMax]C.char
	C.tp_explain(p.api, p.t, C.uint64_t(number), &more[0], textMax)
	if words := textOf(&more[0], textMax); words != "" {
		text += ": " + words
	}
	return text
}

// countBreaches takes over those that the C side has found.
func (p *port) countBreaches() {
	var counts [C.TP_BREACHES]C.uint64_t
	C.tp_breaches(p.c, &counts[0])
	for kind, words := range [C.TP_BREACHES]string{
		C.TP_STRANGER:  "it completes slices that it does not have: twice, late, or never accepted",
		C.TP_CROWDED:   "it reports faster than anybody reads: 16384 reports wait, and this one is lost",
		C.TP_MALFORMED: "it reports without sense: a struct that is too short, NULL, or a count beyond its bound"} {
		for range min(int(counts[kind]), breachesMax) {
			p.breach("%s", words)
		}
	}
}

// breach notes that the plug-in has broken the contract. After the third time it takes nothing any more, and the
// drainer ends the links: a caller may hold the gate.
func (p *port) breach(format string, args ...any) {
	e := refused(p.library.path, format, args...)
	e.Code, e.Transport = errs.Internal, p.library.name
	n := p.breaches.Add(1)
	if n <= breachesMax {
		p.host.Log().Error("plug-in breaks the contract of transports", "plug-in", p.library.name,
			"file", p.library.path, "why", e.Cause)
	}
	if n != breachesMax {
		return
	}
	e = e.WithHint("it takes nothing any more: report it to its authors, and leave it out of the setting plugins")
	p.condemned.Store(e)
	p.downs.Store(true)
	C.tp_wake(p.c)
}

// endLinks ends the links of a plug-in that is condemned.
func (p *port) endLinks() {
	for number := range p.links.All() {
		p.sink.LinkDown(number, p.condemned.Load())
	}
}

// levelOf is the level of a log record of a plug-in.
func levelOf(level int) slog.Level {
	return []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError}[min(max(level, 0), 3)]
}
